"""Runs at other places, as a laptop that connects to nobody lists them: where, last known state, what is billed."""

import json
from pathlib import Path

import pytest
from made_runs import CommandLine, attempt, end, make_run, step, write_events
from rich.cells import cell_len

from stoker.api import last_seen
from stoker.cli import remote
from stoker.errors import StokerError
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.hosts.shell import Ssh
from stoker.places import box as box_place
from stoker.places.box import Box
from stoker.rundir import last_known
from stoker.rundir.layout import RunDir

AUTODL, VAST = {"autodl-1": "autodl"}, {"pod": "vast"}
PRICE = (2.5, "CNY")
RUN = """
name: night
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: a.txt, rows: 100, tokens: 100000, length: 64}
"""
STATUS = {"state": "running", "step": 1101, "total_steps": 4000, "loss": 2.125, "eval_loss": None}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))


def _sent(runs: Path, name: str, on: str, rented: dict[str, str], **status: object) -> RunDir:
    run_dir = RunDir(make_run(runs, name))
    run_dir.run_file.write_text(RUN.replace("night", name), encoding="utf-8")
    last_known.sent(run_dir, on, rented, PRICE if rented else None)
    if status:
        last_known.seen(run_dir, on, status)
    return run_dir


def _listed(stoker: CommandLine) -> dict[str, tuple[str, str]]:
    found = json.loads(stoker("runs", "--json").out)
    return {run["name"]: (run["state"], run["elsewhere"]["billed"]) for run in found}


def test_a_run_that_trains_elsewhere_is_neither_failed_nor_new(stoker: CommandLine, runs: Path) -> None:
    pulled = _sent(runs, "night", "autodl-1", AUTODL, **STATUS)
    write_events(pulled.path, attempt(4000), step(900, 2.5))  # an earlier `stoker pull`
    _sent(runs, "lab", "lab-server", {}, **STATUS)
    assert _listed(stoker) == {"lab": ("running", "no"), "night": ("running", "yes")}
    assert "1101/4000  2.1250" in stoker("runs").out


@pytest.mark.parametrize(
    ("rented", "status", "billed"),
    [
        (AUTODL, {"state": "done", "settled": {"state": "waiting"}}, "until_copied"),
        (AUTODL, {"state": "done", "settled": {"state": "stopping"}}, "off"),
        (VAST, {"state": "done", "settled": {"state": "stopping"}}, "disk"),
        (AUTODL, {"state": "stopped", "settled": {"state": "stayed"}}, "until_off"),
        (AUTODL, {"state": "failed", "settled": None}, "until_off"),
        ({"box": "featurize"}, {"state": "done", "settled": {"state": "waiting"}}, "until_off"),
        ({}, {"state": "done"}, "no"),
    ],
)
def test_what_is_billed_follows_from_how_it_ended(
    runs: Path, rented: dict[str, str], status: dict[str, object], billed: str
) -> None:
    last = last_known.read(_sent(runs, "night", "box", rented, **status))
    assert last is not None
    assert last_seen.billed(last) == billed


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_list_says_where_when_and_what_is_billed_in_80_columns(
    stoker: CommandLine, runs: Path, language: str
) -> None:
    _sent(runs, "night", "autodl-1", AUTODL, **STATUS)
    _sent(runs, "finished", "autodl-1", AUTODL, state="done", step=40, total_steps=40, settled={"state": "waiting"})
    _sent(runs, "stopped", "pod", {"pod": "featurize"}, state="stopped", settled={"state": "stayed"})
    silent = _sent(runs, "gone", "pod", VAST, **STATUS)
    last_known.unanswered(silent, "pod")
    out = stoker("runs", language=language).out
    assert max(cell_len(line.rstrip()) for line in out.splitlines()) <= 80
    price, off = ("2.50 CNY/h", "probably switched off") if language == "en" else ("2.50 CNY/小时", "很可能已关机")
    assert price in out
    assert off in " ".join(out.split())
    assert "`stoker pull finished`" in out
    assert ("Featurize console" if language == "en" else "Featurize 控制台") in out


def test_a_run_under_way_at_a_place_that_is_silent_is_unreachable_until_it_answers(
    stoker: CommandLine, runs: Path
) -> None:
    run_dir = _sent(runs, "night", "autodl-1", AUTODL, **STATUS)
    last_known.unanswered(run_dir, "another")
    assert _listed(stoker)["night"] == ("running", "yes")
    last_known.unanswered(run_dir, "autodl-1")
    assert _listed(stoker)["night"] == ("unreachable", "probably_off")
    last_known.unanswered(run_dir, "autodl-1", is_off=True)  # `stoker hosts off`
    assert _listed(stoker)["night"] == ("unreachable", "off")
    last_known.seen(run_dir, "autodl-1", STATUS)
    assert _listed(stoker)["night"] == ("running", "yes")


def test_a_record_of_an_earlier_stoker_or_of_a_stranger_lists_the_run(stoker: CommandLine, runs: Path) -> None:
    before = RunDir(make_run(runs, "before"))
    before.place_file.write_text('{"on": "box"}', encoding="utf-8")
    strange = RunDir(make_run(runs, "strange"))
    strange.place_file.write_text('{"on": "box", "state": "\\u001b[2Jx", "step": 5, "at": null}', encoding="utf-8")
    made_up = RunDir(make_run(runs, "made_up"))
    made_up.place_file.write_text('{"on": ["box"], "step": -1}', encoding="utf-8")
    outcome = stoker("runs")
    assert (outcome.code, "\x1b" in outcome.out) == (0, False)
    assert json.loads(stoker("runs", "--json").out)[0]["name"] == "before"


def test_what_a_place_says_that_is_no_status_is_not_noted(runs: Path) -> None:
    run_dir = _sent(runs, "night", "autodl-1", AUTODL, **STATUS)
    for said in ({"state": 7}, {"state": "x" * 100}, {"step": -1}, {"settled": "on"}, {"price": {"per_hour": "all"}}):
        last_known.seen(run_dir, "autodl-1", said)
    last_known.seen(run_dir, "another", {"state": "failed"})
    last = last_known.read(run_dir)
    assert last is not None
    assert (last.state, last.step) == ("running", 1101)


def _off(shell: Ssh, *_: object, **__: object) -> str:
    raise StokerError("STK716", host=shell.name, platform="AutoDL", reason="Connection refused")


@pytest.fixture
def off(runs: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run on a box that does not respond."""
    known.save(Host(name="autodl-1", host="198.18.0.1", platform="autodl", base="/root/stoker"))
    monkeypatch.setattr(Ssh, "run", _off)
    monkeypatch.setattr(Ssh, "talk", _off)
    return _sent(runs, "night", "autodl-1", AUTODL, **STATUS)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_watch_says_what_was_last_known_and_that_the_box_is_probably_off(
    stoker: CommandLine, off: RunDir, language: str
) -> None:
    outcome = stoker("watch", "night", "--once", language=language)
    assert outcome.code == 1  # it trained when it was last seen
    assert ("night · unreachable" if language == "en" else "night · 连不上") in outcome.out
    assert "1101/4000" in outcome.out
    assert "STK716" in outcome.err
    assert max(cell_len(line) for line in outcome.out.splitlines()) <= 80


def test_watch_of_a_run_that_had_ended_is_no_error(stoker: CommandLine, off: RunDir) -> None:
    last_known.seen(off, "autodl-1", {**STATUS, "state": "done", "step": 4000, "settled": {"state": "stopping"}})
    outcome = stoker("watch", "night", "--once")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("night · done")
    assert json.loads(stoker("watch", "night", "--once", "--json").out)["state"] == "done"


def test_watch_asks_the_store_of_a_box_that_is_off(stoker: CommandLine, off: RunDir, tmp_path: Path) -> None:
    with off.run_file.open("a", encoding="utf-8") as file:
        file.write(f"save: {{store: {tmp_path / 'store'}}}\n")
    copied = tmp_path / "store/night"
    copied.mkdir(parents=True)
    write_events(copied, attempt(4000), step(4000, 1.5), end("done", 4000))
    outcome = stoker("watch", "night", "--once")
    assert (outcome.code, outcome.out.splitlines()[0]) == (0, "night · done")
    assert "stoker pull night" in outcome.out
    assert _listed(stoker)["night"] == ("done", "probably_off")


def test_pull_of_what_is_nowhere_is_refused_with_both_reasons(stoker: CommandLine, off: RunDir, tmp_path: Path) -> None:
    outcome = stoker("pull", "night")
    assert (outcome.code, "STK717" in outcome.err) == (1, True)
    assert "names no store" in outcome.err
    with off.run_file.open("a", encoding="utf-8") as file:
        file.write(f"save: {{store: {tmp_path / 'store'}}}\n")
    (tmp_path / "store").mkdir()
    outcome = stoker("pull", "night")
    assert (outcome.code, "STK717" in outcome.err) == (1, True)
    assert "there is no run `night` in the store" in " ".join(outcome.err.split())


@pytest.mark.parametrize(("platform", "how"), [("autodl", "`stoker hosts off box`"), ("featurize", "console")])
def test_stop_says_that_a_rented_box_is_billed_and_what_ends_it(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch, platform: str, how: str
) -> None:
    known.save(Host(name="box", host="198.18.0.1", platform=platform, base="/root/stoker"))
    _sent(runs, "night", "box", {"box": platform}, **STATUS)
    monkeypatch.setattr(box_place, "_stop_launch", lambda box, run: None)
    monkeypatch.setattr(Box, "_forward", lambda box, *words: 0)
    monkeypatch.setattr(Box, "status", lambda box, run: {**STATUS, "state": "stopped"})
    outcome = stoker("stop", "night")
    assert outcome.code == 0
    assert "is still on and billed, 2.50 CNY/h" in outcome.err
    assert how in outcome.err
    assert _listed(stoker)["night"] == ("stopped", "until_off")


def test_pull_says_that_a_box_without_a_command_stays_on(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.save(Host(name="box", host="198.18.0.1", platform="featurize", base="/root/stoker"))
    run_dir = _sent(runs, "night", "box", {"box": "featurize"}, **STATUS)
    ended = {**STATUS, "state": "done", "settled": {"state": "waiting"}}
    monkeypatch.setattr(Box, "status", lambda box, run: ended)
    monkeypatch.setattr(Box, "get", lambda box, run: write_events(run_dir.path, attempt(9), end("done", 9)))
    outcome = stoker("pull", "night")
    assert outcome.code == 0
    assert "`box` is still on and billed" in outcome.err
    assert not run_dir.place_file.exists()
    assert "report.html" in outcome.err, "a run that came home has its page"
    assert (run_dir.path / "report.html").is_file()


def test_stop_on_a_machine_of_ones_own_says_nothing_of_money(
    stoker: CommandLine, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.save(Host(name="box", host="198.18.0.1", base="/root/stoker"))
    _sent(runs, "night", "box", {}, **STATUS)
    monkeypatch.setattr(Box, "_forward", lambda box, *words: 0)
    monkeypatch.setattr(Box, "status", lambda box, run: None)
    monkeypatch.setattr(Ssh, "run", _off)
    assert "billed" not in stoker("stop", "night").err


def test_a_run_of_another_laptop_can_be_asked_about(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known.save(Host(name="box", host="198.18.0.1", platform="autodl", base="/root/stoker"))
    monkeypatch.setattr(Ssh, "run", _off)
    monkeypatch.setattr(Ssh, "talk", _off)
    with pytest.raises(StokerError, match="STK716"):
        remote.watch("unknown", "box", once=True, as_json=False)
    assert not (runs / "unknown").exists()


def test_a_run_named_by_its_path_is_pulled_there(stoker: CommandLine, off: RunDir, tmp_path: Path) -> None:
    there = _sent(tmp_path / "another", "day", "autodl-1", AUTODL, **STATUS)
    assert stoker("pull", str(there.path)).code == 1  # the box is off, which is noted where the run is
    last = last_known.read(there)
    assert last is not None
    assert last.shown_state == "unreachable"
    assert not (off.path.parent / "day").exists()
