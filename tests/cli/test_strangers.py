"""Run directories of strangers: no link in one is written through, and no escape in one reaches a terminal."""

import sys
from pathlib import Path

import pytest
from made_runs import CommandLine, attempt, make_run, step, write_events

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")

COMMANDS = (
    ("watch", "evil", "--once"),
    ("watch", "evil", "--json"),
    ("logs", "evil"),
    ("stop", "evil"),
    ("verify", "evil"),
    ("push", "evil"),
    ("pull", "evil"),
    ("merge", "evil"),
    ("export", "evil"),
    ("quantize", "evil", "--int8"),
    ("chat", "evil"),
    ("eval", "evil"),
    ("serve", "evil"),
    ("serve", "evil", "--stop"),
    ("train", "evil.yaml"),
    ("prepare", "evil.yaml"),
    ("plan", "evil.yaml"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_uses_a_run_directory_with_links_in_it(
    stoker: CommandLine, runs: Path, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.yaml").write_text("model: m\ndata: {train: a.jsonl}\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    victim = tmp_path / "bashrc"
    victim.write_text("mine\n")
    evil = make_run(runs, "evil")
    (evil / "run.yaml").write_text("model: m\ndata: {train: a.jsonl}\n")
    (evil / "events.jsonl").symlink_to(victim)
    before = sorted(evil.iterdir())
    outcome = stoker(*words)
    assert outcome.code == 1, outcome
    assert "STK520" in outcome.err
    assert victim.read_text() == "mine\n"
    assert sorted(evil.iterdir()) == before


def test_one_stranger_does_not_hide_the_other_runs(stoker: CommandLine, runs: Path, tmp_path: Path) -> None:
    good, evil, broken = (make_run(runs, name) for name in ("good", "evil", "broken"))
    write_events(good, attempt(10), step(3, 1.5))
    (evil / "logs").symlink_to(tmp_path)
    (broken / "manifest.json").write_text("[" * 100_000)
    outcome = stoker("runs")
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["name", "good"]
    assert "STK520" in outcome.err
    assert "STK512" in outcome.err
