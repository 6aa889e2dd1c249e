"""How exactly a run that was begun goes on is said before anything starts: `stoker plan`, in words and as JSON."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import LANGUAGES, CommandLine

from stoker.api import planning as command
from stoker.cli import remote
from stoker.config import load
from stoker.errors import StokerError
from stoker.facts import own_code
from stoker.facts.mirrors import Network
from stoker.launch import plan_inputs
from stoker.plan import moves
from stoker.plan.make import make_plan
from stoker.rows.order import VERSION
from stoker.rundir import checkpoints, layout
from stoker.rundir.layout import RunDir

TEXT = """
model: Qwen/Qwen2.5-0.5B
data: {train: rows.jsonl, tokens: 1000000}
tune: {method: lora}
train: {batch: 32, steps: 100, deterministic: true}
where: {gpus: 1, loss: plain}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(TEXT, encoding="utf-8")
    return tmp_path / "mine.yaml"


def begin(runs: Path, path: Path, card: str) -> None:
    """A run directory with the checkpoint of step 40 that training on this card leaves."""
    run_file = load.load(str(path))
    run_dir = RunDir(runs / "mine")
    layout.write(run_dir, run_file)
    machine = plan_inputs.machine(card, run_file.run)
    made = make_plan(plan_inputs.inputs(run_file, None, machine))
    fingerprint = {
        "device": machine.devices[0].name,
        "driver": "12080",
        "code": own_code.digest(),
        **moves.decided(made),
    }
    facts = {"data_digest": "", "order_version": VERSION, "world": 1, "fingerprint": fingerprint}
    with checkpoints.writing(run_dir.checkpoints, 40, **facts) as folder:
        (folder / "state.json").write_text("{}", encoding="utf-8")


def plan(stoker: CommandLine, path: Path, *words: str) -> dict[str, Any]:
    done = stoker("plan", str(path), "--json", *words)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_a_run_that_was_never_begun_has_no_tier(stoker: CommandLine, path: Path) -> None:
    assert plan(stoker, path, "--card", "T4")["resume"] is None
    assert plan(stoker, path)["resume"] is None
    assert "EXACT: " not in stoker("plan", str(path), "--card", "T4").out


def test_the_page_of_a_card_says_the_tier_and_what_differs(stoker: CommandLine, runs: Path, path: Path) -> None:
    begin(runs, path, "A100")
    same = plan(stoker, path, "--card", "A100")
    assert (same["resume"]["tier"], same["resume"]["step"], same["resume"]["changed"]) == ("EXACT", 40, [])
    other = plan(stoker, path, "--card", "T4")
    assert other["resume"]["tier"] == "SAMPLE-EXACT"
    assert f"micro: {same['batch']['micro']} -> {other['batch']['micro']}" in other["resume"]["changed"]
    assert other["batch"]["effective"] == 32


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_words_are_those_of_the_trainer_s_own_verdict(
    stoker: CommandLine, runs: Path, path: Path, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker import messages
    from stoker.terminal import console

    begin(runs, path, "A100")
    monkeypatch.setattr(console.stdout, "_width", 400)
    for words in (("--card", "T4"), ("--explain", "T4")):
        said = stoker("plan", str(path), *words, language=language).out
        assert messages.text("train.tier", tier="SAMPLE-EXACT", step=40) in said
        assert "device: NVIDIA A100" in said
        assert "-> Tesla T4" in said


def test_the_table_says_how_it_goes_on_here(stoker: CommandLine, runs: Path, path: Path) -> None:
    path.write_text(TEXT.replace("gpus: 1, ", ""), encoding="utf-8")
    begin(runs, path, "T4")
    assert plan(stoker, path)["resume"]["step"] == 40
    assert "On this machine the run resumes: SAMPLE-EXACT: resuming from step 40." in stoker(
        "plan", str(path)
    ).out.replace("\n", " ")


def test_another_recipe_under_the_same_name_does_not_go_on(stoker: CommandLine, runs: Path, path: Path) -> None:
    begin(runs, path, "T4")
    assert plan(stoker, path, "--card", "T4")["resume"]
    assert plan(stoker, path, "--card", "T4", "--set", "train.batch=64")["resume"] is None
    for words in ((), ("--card", "T4")):
        said = " ".join(stoker("plan", str(path), *words, "--set", "train.batch=64").out.split())
        assert "`stoker train` will refuse (STK401)" in said
        assert "train.batch 32 -> 64" in said
        assert "STK401" not in stoker("plan", str(path), *words).out


def test_less_than_the_run_file_asks_for_is_refused_before_the_start(
    stoker: CommandLine, runs: Path, path: Path
) -> None:
    begin(runs, path, "A100")
    run_file = load.load(str(path), ["save.resume=exact"])
    made = {
        card: make_plan(plan_inputs.inputs(run_file, None, plan_inputs.machine(card, run_file.run)))
        for card in ("A100", "T4")
    }
    command.require_possible(run_file.run, made["A100"])
    with pytest.raises(StokerError) as refused:
        command.require_possible(run_file.run, made["T4"])
    assert refused.value.code == "STK420"


def test_a_machine_elsewhere_is_not_refused_from_here(
    runs: Path, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its packages are not there yet, and with them goes what would be decided by them; the trainer has the word."""
    begin(runs, path, "A100")
    run_file = load.load(str(path), ["save.resume=exact"])
    there: Any = SimpleNamespace(
        facts=lambda: SimpleNamespace(platform=""),
        machines=1,
        surroundings=lambda: plan_inputs.Elsewhere(Network(), None),
        balance=lambda: None,
    )
    monkeypatch.setattr(remote.probe, "to_machine", lambda facts: plan_inputs.machine("T4", run_file.run))
    remote._agree(there, run_file, run_dir=RunDir(runs / "mine"), yes=True, why=False)
    assert "SAMPLE-EXACT" in capsys.readouterr().out
