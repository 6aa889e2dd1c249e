"""Run directories of strangers: no link in one is written through, and no escape in one reaches a terminal."""

import json
import sys
from pathlib import Path

import pytest
from made_runs import CommandLine, attempt, make_run, step, write_events

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")

COMMANDS = (
    ("watch", "evil", "--once"),
    ("watch", "evil", "--json"),
    ("report", "evil"),
    ("logs", "evil"),
    ("stop", "evil"),
    ("verify", "evil"),
    ("push", "evil"),
    ("pull", "evil"),
    ("merge", "evil"),
    ("export", "evil"),
    ("export", "evil", "--ollama"),
    ("publish", "evil", "--to", "hf:me/model"),
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
    assert "STK520" in outcome.out + outcome.err
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


HOSTILE = (
    "a\x1b]0;title\x07b\x1b[2J\x1b[31mred\x1b[0m\x9b5n\x1b]52;c;cHduZWQ=\x1b\\\u202e[/x] [link=file:///etc/passwd]c[/]"
)
"""A title, a cleared screen, a colour, a question to the terminal, the clipboard, text backwards, and rich's markup."""


def escapes(text: str) -> set[str]:
    return {one for one in text if (not one.isprintable() and one not in "\n\t") or one == "\u202e"}


def make_hostile(runs: Path) -> Path:
    evil = make_run(runs, "evil[/x]")
    error = {"code": "STK413", "where": HOSTILE, "fields": {"model": HOSTILE, "reason": HOSTILE}}
    write_events(
        evil,
        attempt(10) | {"tier": HOSTILE},
        step(3, 1.5) | {"loss": HOSTILE},
        {"event": "error", "program": "train", "error": error},
    )
    (evil / "run.yaml").write_text("model: m\ndata: {train: a.jsonl}\n")
    (evil / "logs").mkdir()
    (evil / "logs" / "train-1-rank0.log").write_bytes(f"first\n\t{HOSTILE}\nlast \x1b[1;31mred\x1b[m\n".encode())
    (evil / "checkpoints" / "step-00000001").mkdir(parents=True)
    (evil / "checkpoints" / "step-00000001" / "COMMIT.json").write_text(HOSTILE)
    return evil


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("runs", "--json"),
        ("watch", "evil[/x]", "--once"),
        ("watch", "evil[/x]", "--json"),
        ("report", "evil[/x]"),
        ("report", "evil[/x]", "--json"),
        ("logs", "evil[/x]"),
        ("verify", "evil[/x]"),
        ("stop", "evil[/x]"),
        ("merge", f"evil{HOSTILE}"),
    ],
    ids=" ".join,
)
def test_no_escape_of_a_run_directory_reaches_the_terminal(
    stoker: CommandLine, runs: Path, words: tuple[str, ...]
) -> None:
    make_hostile(runs)
    outcome = stoker(*words)
    assert outcome.code in (0, 1), outcome
    assert not escapes(outcome.out + outcome.err)
    assert "Traceback" not in outcome.err


def test_a_log_keeps_lines_and_tabs_and_shows_what_it_does_not_obey(stoker: CommandLine, runs: Path) -> None:
    make_hostile(runs)
    lines = stoker("logs", "evil[/x]").out.split("\n")
    assert lines[0] == "first"
    assert lines[1].startswith("\ta␛]0;title␇b␛[2Jred\ufffd5n␛]52;")
    assert lines[2:] == ["last red", ""]


def test_of_a_progress_bar_in_a_log_the_last_state_is_printed(stoker: CommandLine, runs: Path) -> None:
    folder = make_run(runs, "bars") / "logs"
    folder.mkdir()
    states = b"\rLoading:  10%|\x1b[32m#\x1b[0m |\rLoading:  50%|##|\rLoading: 100%|####|\n"
    (folder / "train-1-rank0.log").write_bytes(b"windows\r\n" + states + b"half\rwhole\r\nnext\n")
    assert stoker("logs", "bars").out == "windows\nLoading: 100%|####|\nwhole\nnext\n"


def test_json_keeps_every_character_and_prints_none_that_a_terminal_obeys(stoker: CommandLine, runs: Path) -> None:
    make_hostile(runs)
    outcome = stoker("watch", "evil[/x]", "--json")
    assert json.loads(outcome.out)["tier"] == HOSTILE


def test_an_unexpected_error_prints_no_escape(stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("stoker.cli.runs_commands.layout.all_runs", broken)
    outcome = stoker("runs")
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert not escapes(outcome.out + outcome.err)
