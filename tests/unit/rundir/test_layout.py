"""The run directory: made once, opened again for the same run, refused for another."""

import json
from pathlib import Path

import pytest

from stoker import __version__
from stoker.config import load
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, layout
from stoker.rundir.layout import RunDir

TEXT = "model: m\ndata: {train: a.jsonl}\ntrain: {epochs: 2}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    return tmp_path


def create(text: str = TEXT, *overrides: str) -> RunDir:
    Path("run.yaml").write_text(text, encoding="utf-8")
    return layout.create(load.load("run.yaml", overrides))


def after_a_step(text: str = TEXT, *overrides: str) -> RunDir:
    """A run directory in which training has begun."""
    run_dir = create(text, *overrides)
    log = events.EventLog(run_dir.events_file)
    log.write("step", step=1, loss=1.0)
    log.close()
    return run_dir


def test_a_run_directory_holds_what_was_asked_and_how_it_came_about(folder: Path) -> None:
    run_dir = create(TEXT, "train.batch=4")
    assert run_dir.path == folder / "runs" / "run"
    assert run_dir.run_file.read_text() == TEXT
    manifest = run_dir.manifest()
    assert (manifest.name, manifest.stoker_version, manifest.run_file) == ("run", __version__, "run.yaml")
    assert (manifest.overrides, manifest.folder) == (["train.batch=4"], str(folder))
    asked = run_dir.run()
    assert (asked.name, asked.train.batch, asked.train.epochs) == ("run", 4, 2)
    assert run_dir.folder() == folder


def test_everything_has_its_place(folder: Path) -> None:
    run_dir = create()
    inside = {
        "plan.json": run_dir.plan_file,
        "events.jsonl": run_dir.events_file,
        "data": run_dir.data,
        "checkpoints": run_dir.checkpoints,
        "artifacts/final": run_dir.final,
        "logs/train-2-rank1.log": run_dir.log_file(2, 1),
        "process.json": run_dir.process_file,
    }
    assert {name: path.relative_to(run_dir.path).as_posix() for name, path in inside.items()} == {n: n for n in inside}


def test_the_same_run_opens_its_directory_and_keeps_the_day_it_was_made(folder: Path) -> None:
    first = create()
    manifest = json.loads(first.manifest_file.read_text())
    first.manifest_file.write_text(json.dumps({**manifest, "created": "2026-01-01T00:00:00+00:00"}))
    assert create().manifest().created == "2026-01-01T00:00:00+00:00"


def test_what_was_recorded_about_a_run_stays_when_it_is_opened_again(folder: Path) -> None:
    """A launch that is refused later must not cost the record of the machine and the data it was trained with."""
    run_dir = after_a_step()
    facts = {"data_digest": "d" * 64, "versions": {"torch": "2.10"}, "machine": {"kind": "cpu"}, "git": "abc"}
    layout.record(run_dir, **facts)
    before = run_dir.manifest()
    create()
    assert run_dir.manifest() == before


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model=other", "model m -> other"),
        ("data.length=64", "data.length 2048 -> 64"),
        ("data.on_bad_row=skip", "data.on_bad_row stop -> skip"),
        ("tune={method: lora}", "tune.method full -> lora"),
        ("train.learning_rate=1e-3", "train.learning_rate 0.0002 -> 0.001"),
        ("train.epochs=3", "train.epochs 2 -> 3"),
        ("data.pack=false", "data.pack true -> false"),
        ("native.trainer.adam_beta1=0.8", "native.trainer.adam_beta1 - -> 0.8"),
    ],
)
def test_once_trained_a_run_refuses_words_that_would_change_it(folder: Path, override: str, says: str) -> None:
    run_dir = after_a_step()
    with pytest.raises(StokerError) as caught:
        create(TEXT, override)
    assert caught.value.code == "STK401"
    assert says in caught.value.what
    assert caught.value.hint.startswith("change it back")
    assert run_dir.manifest().overrides == [], "what is there is left as it was"


@pytest.mark.parametrize(
    "override",
    [
        "where.micro=1",
        "where.gpus=0",
        "save.every=5 steps",
        "save.keep=9",
        "budget.time=1h",
        "data.rows=5",
        "data.tokens=9",
    ],
)
def test_where_it_runs_when_it_saves_and_what_it_may_cost_can_change(folder: Path, override: str) -> None:
    after_a_step()
    assert create(TEXT, override).manifest().overrides == [override]


def test_the_same_words_said_in_another_way_are_the_same_run(folder: Path) -> None:
    after_a_step()
    create("# a comment\ndata:\n  train: a.jsonl\nmodel: m\n", "train.epochs=2")


def test_a_committed_checkpoint_counts_as_trained_even_if_the_events_are_gone(folder: Path) -> None:
    run_dir = create()
    facts = {"data_digest": "", "order_version": 1, "world": 1, "fingerprint": {}}
    with checkpoints.writing(run_dir.checkpoints, 1, **facts) as aside:
        (aside / "x").write_text("x")
    with pytest.raises(StokerError) as caught:
        create(TEXT, "train.epochs=3")
    assert caught.value.code == "STK401"


def test_before_the_first_step_the_run_file_may_still_be_mended(folder: Path) -> None:
    run_dir = create()
    log = events.EventLog(run_dir.events_file)
    log.error(StokerError("STK302", "a.jsonl:3", reason="x"), "prepare")
    log.close()
    assert create(TEXT, "data.on_bad_row=skip").run().data.on_bad_row == "skip"
    assert create(TEXT.replace("model: m", "model: n")).run().model == "n"


def test_a_run_that_was_renamed_does_not_start_over_under_its_old_name(folder: Path) -> None:
    run_dir = after_a_step()
    moved = run_dir.path.rename(run_dir.path.with_name("renamed"))
    assert layout.present(run_dir).path == moved
    with pytest.raises(StokerError) as caught:
        create()
    assert caught.value.code == "STK441"
    assert "`stoker train run.yaml --set name=renamed`" in caught.value.hint
    assert not run_dir.path.exists()
    assert create(TEXT, "name=renamed").path == moved
    assert create().path == run_dir.path, "the folder has the name of its own run now"


def test_another_training_may_take_the_name_of_a_renamed_run(folder: Path) -> None:
    run_dir = after_a_step()
    run_dir.path.rename(run_dir.path.with_name("kept"))
    assert create(TEXT, "train.epochs=3").path == run_dir.path


def test_a_renamed_run_that_was_never_trained_is_left_alone(folder: Path) -> None:
    run_dir = create()
    run_dir.path.rename(run_dir.path.with_name("kept"))
    assert create().path == run_dir.path


def test_the_link_of_a_former_name_leads_to_the_present_one(folder: Path) -> None:
    run_dir = after_a_step()
    moved = run_dir.path.rename(run_dir.path.with_name("renamed"))
    run_dir.path.symlink_to(moved, target_is_directory=True)
    assert layout.present(run_dir).path == moved


def test_a_run_is_found_by_name_and_by_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create("name: mine\n" + TEXT)
    assert layout.find("mine").path == made.path
    monkeypatch.setenv("STOKER_RUNS", "elsewhere")
    assert layout.find(str(made.path)).name == "mine"
    with pytest.raises(StokerError) as caught:
        layout.find("mine")
    assert (caught.value.code, str(caught.value.fields["folder"])) == ("STK501", "elsewhere")


def test_a_run_is_found_by_the_name_of_its_file(folder: Path) -> None:
    (folder / "翻译.yaml").write_text(TEXT, encoding="utf-8")
    made = layout.create(load.load("翻译.yaml"))
    assert made.name.isascii()
    assert layout.find("翻译").path == made.path
    create("name: x\n" + TEXT)
    for name in ("../x", ""):
        with pytest.raises(StokerError):
            layout.find(name)


def test_a_run_without_a_finished_model_was_never_begun_or_is_not_fully_trained(folder: Path) -> None:
    assert layout.unfinished(create()).code == "STK502"
    assert layout.unfinished(after_a_step()).code == "STK610"


def test_all_runs_are_listed_and_other_folders_are_not(folder: Path) -> None:
    assert layout.all_runs() == []
    create("name: b\n" + TEXT)
    create("name: a\n" + TEXT)
    (folder / "runs" / "not a run").mkdir()
    assert [run_dir.name for run_dir in layout.all_runs()] == ["a", "b"]


def test_a_folder_without_a_manifest_is_no_run(folder: Path) -> None:
    with pytest.raises(StokerError) as caught:
        RunDir(folder).manifest()
    assert caught.value.code == "STK501"


def test_runs_lie_in_the_current_folder_unless_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_RUNS")
    assert layout.runs_folder() == Path("runs")


def test_a_damaged_manifest_or_run_file_is_named(folder: Path) -> None:
    run_dir = create()
    older = {**json.loads(run_dir.manifest_file.read_text()), "text": ""}  # its text is only in run.yaml
    for path, code in ((run_dir.manifest_file, "STK512"), (run_dir.run_file, "STK117")):
        path.write_bytes(b"\x80\x04\x95")
        with pytest.raises(StokerError) as caught:
            run_dir.run()
        assert caught.value.code == code
        run_dir.manifest_file.write_text(json.dumps(older))


def test_an_edited_copy_of_the_run_file_changes_nothing_and_is_another_run(folder: Path) -> None:
    run_dir = after_a_step()
    edited = TEXT.replace("epochs: 2", "epochs: 2, seed: 7, learning_rate: 1e-3")
    run_dir.run_file.write_text(f"name: run\n{edited}")
    assert run_dir.run().train.seed == 42
    with pytest.raises(StokerError) as caught:
        layout.create(load.load(str(run_dir.run_file)))
    assert caught.value.code == "STK401"
    assert "train.learning_rate 0.0002 -> 0.001, train.seed 42 -> 7" in caught.value.what
