"""What a card says of the data and the base model: public names whole, of everything else the last part."""

from pathlib import Path

import pytest
import reported_run
from made_runs import make_run

from stoker.config import load
from stoker.handover import model_card, publish_command
from stoker.report import run_history
from stoker.rundir import events, files
from stoker.rundir.layout import RunDir


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (r"D:\clients\acme\rows.jsonl", "rows.jsonl"),
        (r"clients\acme\rows.jsonl", "rows.jsonl"),
        ("D:/clients/acme/rows.jsonl", "rows.jsonl"),
        ("/data/acme/rows.jsonl", "rows.jsonl"),
        ("~/acme/rows.jsonl", "rows.jsonl"),
        ("clients/acme/rows.jsonl", "rows.jsonl"),
        ("clients/acme/", "acme"),
        ("rows.jsonl", "rows.jsonl"),
        ("hub:acme/rows", "hub:acme/rows"),
        ("modelscope:acme/rows", "modelscope:acme/rows"),
    ],
)
def test_no_folder_of_the_data_is_published(tmp_path: Path, path: str, shown: str) -> None:
    run_dir = RunDir(make_run(tmp_path / "runs", "done"))
    run = load.parse(f"model: acme/base\ndata:\n  train: '{path}'\n  length: 64\n", "run.yaml", [])
    assert model_card._data(run_dir, run)["sources"] == [f"`{shown}`"]


EXPORTED = {"dtype": "bfloat16", "bytes": 2, "licence": {"license": "unknown"}}


def trained_on(runs: Path, name: str, model: str) -> RunDir:
    run_dir = RunDir(make_run(runs, name))
    run_dir.run_file.write_text(f"model: '{model}'\ndata: {{train: rows.jsonl, length: 64}}\n", encoding="utf-8")
    return run_dir


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Relative paths of their run files start here."""
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def said(run_dir: RunDir, kind: model_card.CardKind) -> tuple[str | None, str | None]:
    """The base model of the front matter and of the text."""
    front = model_card._front_matter(run_dir, run_dir.run(), EXPORTED, kind)
    named = [line.partition(": ")[2] for line in front.splitlines() if line.startswith("base_model:")]
    text = model_card._section("en", run_dir, [], kind)
    return (named[0] if named else None, text.partition("Fine-tuned from ")[2].partition(" with Stoker")[0] or None)


@pytest.mark.parametrize(
    ("model", "shown"),
    [
        ("Qwen/Qwen2.5-7B", ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B")),
        ("gpt2", ("gpt2", "gpt2")),
        ("models/qwen", (None, "qwen")),
        ("secret", (None, "secret")),
        ("models/", (None, "models")),
        ("D:/qwen", (None, "qwen")),
        ("/data/models/qwen", (None, "qwen")),
        ("./models/qwen", (None, "qwen")),
        ("a/b/c", (None, "c")),
        (r"D:\models\qwen", (None, "qwen")),
    ],
)
def test_only_a_model_of_the_hub_is_the_base_model_of_a_card(
    runs: Path, model: str, shown: tuple[str | None, str]
) -> None:
    (runs / "models" / "qwen").mkdir(parents=True)
    (runs / "secret").mkdir()
    assert said(trained_on(runs, "one", model), model_card.WHOLE) == shown


def test_a_folder_that_is_gone_is_not_the_hub_s_model_of_that_name(runs: Path) -> None:
    run_dir = trained_on(runs, "one", "models/qwen")
    plan = reported_run.planned()
    local = plan.model_copy(update={"model": plan.model.model_copy(update={"origin": "local"})})
    files.write_json(run_dir.plan_file, local.model_dump())
    assert said(run_dir, model_card.WHOLE) == (None, "qwen")


def test_names_that_were_used_again_lead_to_no_base(runs: Path) -> None:
    trained_on(runs, "sft", "run:dpo")
    assert said(trained_on(runs, "dpo", "run:sft"), model_card.WHOLE)[0] is None


def test_what_was_measured_before_the_last_step_is_not_of_the_finished_model(runs: Path) -> None:
    run_dir = reported_run.make(runs, "measured")
    task = {"event": "task", "task": "a.jsonl", "artifact": None, "rows": 10, "measure": "exact_match", "answers": "a"}
    evaluated = {"event": "evaluated", "artifact": None, "eval_loss": 0.5}
    step = next(one for one in events.read(run_dir.events_file) if one["event"] == "step")
    reported_run.write_events(run_dir, [{**task, "right": 1}, evaluated, {**step, "step": 121}])
    assert model_card._scores(run_dir) == []
    assert model_card.losses(run_dir)["eval"] > 1
    assert run_history.read(run_dir).tasks == run_history.read(run_dir).evaluated == {}
    reported_run.write_events(run_dir, [{**task, "right": 9}, evaluated])
    assert model_card._scores(run_dir) == ["`a.jsonl` 9 / 10"]
    assert model_card.losses(run_dir)["eval"] == 0.5


def test_a_run_on_a_run_has_the_base_of_the_first_and_only_its_adapter_has_not(runs: Path) -> None:
    """An adapter fits the very weights it was trained on."""
    trained_on(runs, "first", "Qwen/Qwen2.5-7B")
    trained_on(runs, "second", "run:first")
    third = trained_on(runs, "third", "run:second")
    assert said(third, model_card.WHOLE) == ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B")
    assert said(third, publish_command._ADAPTER_CARD) == (None, "second")
    assert model_card.hub_id(third) is None
    trained_on(runs, "private", "/data/secret/base")
    assert said(trained_on(runs, "fourth", "run:private"), model_card.WHOLE) == (None, "private")
    assert said(trained_on(runs, "fifth", f"run:{runs}/gone"), model_card.WHOLE) == (None, "gone")
