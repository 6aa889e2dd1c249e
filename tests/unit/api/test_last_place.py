"""A run that moves between places: its last place is asked, and steps are never lost in silence.

The places are those of an installed package: what each has of the run is in a file of its name.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from installed_package import install

from stoker import plugins
from stoker.api import start
from stoker.api.start import Listener
from stoker.cli import remote
from stoker.cli.remote import TrainOptions
from stoker.config import load
from stoker.errors import StokerError
from stoker.launch import programs, training
from stoker.places import registry
from stoker.rundir import checkpoints, last_known, layout
from stoker.rundir.layout import RunDir
from stoker.store import opening, push
from stoker.store.directory import DirectoryStore
from stoker.store.store_protocol import Bandwidth, Patience, Patient

RUN = """
name: night
model: {shape: llama, layers: 2, width: 64, heads: 2}
tokenizer: {train: bpe, vocab: 300}
data: {train: a.txt, rows: 100, tokens: 100000, length: 64}
"""
PLACES = """
import json
from pathlib import Path
from stoker.errors import StokerError
from stoker.places.place import Place
from stoker.rundir import checkpoints, layout

HERE = Path(__file__).parent


class Box1(Place):
    takes_checkpoint = True

    def facts(self): return None
    def watch(self, run, terminal, *, once, as_json): return 0
    def logs(self, run, *, follow, lines): return 0
    def runs(self): return 0
    def stop(self, run): return 0
    def stop_meter(self): ...

    def status(self, run):
        file = HERE / f"{self.name}.json"
        found = json.loads(file.read_text()) if file.exists() else None
        if found == "off":
            raise StokerError("STK701", host=self.name, reason="no route")
        return found

    def words(self, run):
        file = HERE / f"{self.name}.words"
        return json.loads(file.read_text()) if file.exists() else None

    def get(self, run):
        if saved := self.status(run).get("saved"):
            with checkpoints.writing(layout.named(run).checkpoints, saved, data_digest="", order_version=1, world=1,
                                     fingerprint={}) as folder:
                (folder / "state.json").write_text("{}")

    def put(self, package):
        steps = sorted({name.split("/")[3] for name in package.files if "/checkpoints/" in name})
        (HERE / f"{self.name}.put").write_text(json.dumps(steps))

    def start(self, package): ...


class Box2(Box1):
    pass


class Kernels(Box1):
    takes_checkpoint = False
"""
RUNNING, STOPPED = ({"state": state, "step": 1101, "saved": 1100} for state in ("running", "stopped"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.setattr(programs, "check_engine", lambda: (_ for _ in ()).throw(StokerError("STK402")))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "two_boxes", raising=False)
    names = {"box1": "Box1", "box2": "Box2", "kernels": "Kernels"}
    install(tmp_path, "two-boxes", {plugins.PLACES: names}, PLACES)
    (tmp_path / "a.txt").write_text("a text\n")
    (tmp_path / "night.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path


def _train(folder: Path, on: str, *overrides: str, yes: bool = True) -> list[str]:
    """The checkpoints that were sent along."""
    path, given = str(folder / "night.yaml"), list(overrides)
    remote.train(load.load(path, given), path, given, TrainOptions(on=on, detach=False, yes=yes))
    sent: list[str] = json.loads((folder / f"{on}.put").read_text())
    return sent


def _refused(folder: Path, on: str, *overrides: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        _train(folder, on, *overrides)
    assert not (folder / f"{on}.put").exists()
    return caught.value


def _on_box1(folder: Path, found: Any, *overrides: str) -> RunDir:
    """The run was sent to the first box, which says this of it by now."""
    _train(folder, "box1", *overrides)
    (folder / "box1.put").unlink()
    (folder / "box1.json").write_text(json.dumps(found))
    return layout.find("night")


def _save(run_dir: RunDir, step: int) -> None:
    facts: dict[str, Any] = {"data_digest": "", "order_version": 1, "world": 1, "fingerprint": {}}
    with checkpoints.writing(run_dir.checkpoints, step, **facts) as folder:
        (folder / "state.json").write_text("{}")


# ---- a store is no reason not to ask


@pytest.mark.parametrize("store", ["/data/copies", "hf://me/copies"])
def test_two_places_with_a_directory_or_the_hub_do_not_train_at_once(folder: Path, store: str) -> None:
    _on_box1(folder, RUNNING, f"save.store={store}")
    assert _refused(folder, "box2", f"save.store={store}").code == "STK777"


def test_a_stopped_run_with_a_directory_store_takes_its_checkpoint_along(folder: Path) -> None:
    _on_box1(folder, STOPPED, "save.store=/data/copies")
    assert _train(folder, "box2", "save.store=/data/copies") == ["step-00001100"]


@pytest.mark.parametrize(
    ("before", "now"), [("", "s3://one/x"), ("s3://one/x", ""), ("s3://one/x", "s3://two/x"), ("ssh://me@nas/x", "/x")]
)
def test_a_store_that_was_added_changed_or_removed_is_no_reason_not_to_ask(folder: Path, before: str, now: str) -> None:
    run_dir = _on_box1(folder, RUNNING, f"save.store={before}")
    assert _refused(folder, "box2", f"save.store={now}").code == "STK777"
    with pytest.raises(StokerError) as caught:
        start.begin(load.load(str(folder / "night.yaml"), [f"save.store={now}"]), Listener())
    assert caught.value.code == "STK777"
    assert registry.recorded(run_dir) == "box1"


@pytest.mark.parametrize("store", ["s3://one/x", "ssh://me@nas/x"])
def test_one_leased_store_before_and_now_keeps_two_trainings_apart_by_itself(folder: Path, store: str) -> None:
    _on_box1(folder, "off", f"save.store={store}")
    assert _train(folder, "box2", f"save.store={store}/") == []


def test_the_store_it_was_sent_with_counts_and_not_what_the_manifest_says_by_now(folder: Path) -> None:
    _on_box1(folder, RUNNING)
    layout.create(load.load(str(folder / "night.yaml"), ["save.store=s3://one/x"]))  # as `stoker prepare` does
    assert _refused(folder, "box2", "save.store=s3://one/x").code == "STK777"


# ---- a place that has lost it


def _lost_on_box1(folder: Path, *overrides: str) -> RunDir:
    """The run was at step 1101 on a box that was then replaced by another one of this name."""
    run_dir = _on_box1(folder, STOPPED, *overrides)
    last_known.seen(run_dir, "box1", STOPPED)
    (folder / "box1.json").unlink()
    return run_dir


@pytest.mark.parametrize("on", ["box1", "box2"])
def test_a_run_whose_box_was_replaced_is_not_begun_again(folder: Path, on: str) -> None:
    run_dir = _lost_on_box1(folder)
    error = _refused(folder, on)
    assert (error.code, error.fields["step"], error.fields["host"]) == ("STK718", 1101, "box1")
    assert (registry.recorded(run_dir), _known_step(run_dir)) == ("box1", 1101)


@pytest.mark.parametrize("on", ["box1", "box2"])
@pytest.mark.parametrize(("here", "key"), [(900, "later steps are repeated"), (1101, "resuming from what is here")])
def test_what_is_here_of_it_is_gone_on_with_and_said(
    folder: Path, on: str, here: int, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _save(_lost_on_box1(folder), here)
    assert _train(folder, on) == [checkpoints.folder_name(here)]
    assert key in capsys.readouterr().err.replace("\n", " ")


def test_an_older_checkpoint_here_is_not_taken_without_being_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(_lost_on_box1(folder), 900)
    monkeypatch.setattr(remote, "says_yes", lambda: False)
    with pytest.raises(StokerError) as caught:
        _train(folder, "box1", yes=False)
    assert (caught.value.code, caught.value.fields["here"]) == ("STK718", "checkpoint of step 900")


def test_neither_a_launch_nor_another_start_makes_the_step_unknown(folder: Path) -> None:
    run_dir = _lost_on_box1(folder)
    last_known.seen(run_dir, "box1", {"state": "running", "step": 0})
    last_known.sent(run_dir, "box1", {}, None)
    (folder / "box1.json").write_text(json.dumps({"state": "failed", "step": 0}))  # begun there anew, and refused
    assert _refused(folder, "box1").fields["step"] == 1101


@pytest.mark.parametrize("found", [None, {"state": "failed", "step": 0}, {"state": "stopped", "step": 7}])
def test_step_0_after_a_place_without_a_checkpoint_is_said(
    folder: Path, found: dict[str, Any] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_box1(folder, found)
    assert _train(folder, "box2") == []
    assert "it starts from step 0" in capsys.readouterr().err.replace("\n", " ")


def _known_step(run_dir: RunDir) -> int:
    last = last_known.read(run_dir)
    assert last is not None
    return last.step


# ---- a place that has another training of this name


@pytest.mark.parametrize("state", ["queued", "running", "done"])
def test_a_run_file_of_another_training_is_not_called_the_one_that_is_there(folder: Path, state: str) -> None:
    run_dir = _on_box1(folder, {"state": state, "step": 1101})
    before = _records(run_dir)
    error = _refused(folder, "box1", "train.seed=7", "train.learning_rate=1e-5")
    assert error.code == "STK401"
    assert "train.seed 42 -> 7" in str(error.what)
    assert "box1:runs/night" in str(error.what)
    assert _records(run_dir) == before


@pytest.mark.parametrize("has_records", [True, False])
def test_the_words_there_count_and_not_those_that_are_here(folder: Path, *, has_records: bool) -> None:
    run_dir = _on_box1(folder, {"state": "done", "step": 1101})
    there = layout.named("night").words(load.load(str(folder / "night.yaml"), ["train.seed=7"]).run)
    (folder / "box1.words").write_text(json.dumps({**there, "forked_from.run": "day"} if not has_records else there))
    if not has_records:
        shutil.rmtree(run_dir.path)
    assert _refused(folder, "box1").fields["changes"] == ["train.seed 7 -> 42"]
    path, given = str(folder / "night.yaml"), ["train.seed=7"]
    remote.train(load.load(path, given), path, given, TrainOptions(on="box1", detach=False, yes=True))
    assert registry.recorded(run_dir) == "box1"


@pytest.mark.parametrize("override", ["save.keep=5", "data.rows=200", "train.seed=42"])
def test_words_that_do_not_change_the_training_may_differ(folder: Path, override: str) -> None:
    _on_box1(folder, RUNNING)
    path = str(folder / "night.yaml")
    remote.train(load.load(path, [override]), path, [override], TrainOptions(on="box1", detach=False, yes=True))
    assert not (folder / "box1.put").exists()


# ---- a place that takes no checkpoint


def test_a_place_that_takes_no_checkpoint_does_not_begin_a_run_again(folder: Path) -> None:
    run_dir = _on_box1(folder, STOPPED)
    before = _records(run_dir)
    error = _refused(folder, "kernels", "train.seed=7")
    assert (error.code, error.fields["step"]) == ("STK719", 1100)
    assert (_records(run_dir), registry.recorded(run_dir)) == (before, "box1")


def test_a_place_goes_on_with_what_it_has_itself(folder: Path) -> None:
    _train(folder, "kernels")
    _save(layout.find("night"), 1100)  # as a pull leaves it
    (folder / "kernels.json").write_text(json.dumps(STOPPED))
    assert _train(folder, "kernels") == []


def test_what_a_store_has_need_not_go_along(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Patient(DirectoryStore(tmp_path / "bucket", Patience(), Bandwidth(0)), Patience())
    monkeypatch.setattr(opening, "of_run", lambda *_: there)
    run_dir = _on_box1(folder, STOPPED, "save.store=hf://me/copies")
    assert _refused(folder, "kernels", "save.store=hf://me/copies").code == "STK719"
    assert push.push(run_dir)["copied"]
    assert _train(folder, "kernels", "save.store=hf://me/copies") == []


def test_a_task_that_the_user_starts_is_not_written_without_the_checkpoint(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Patient(DirectoryStore(tmp_path / "bucket", Patience(), Bandwidth(0)), Patience())
    monkeypatch.setattr(opening, "of_run", lambda *_: empty)
    run_dir = layout.create(load.load(str(folder / "night.yaml")))
    _save(run_dir, 40)
    before = _records(run_dir)
    assert _refused(folder, "sky", "save.store=s3://one/x").code == "STK719"
    assert _records(run_dir) == before


# ---- a start that is refused


def test_a_start_here_of_a_run_that_trains_elsewhere_changes_no_word_of_it(folder: Path) -> None:
    run_dir = _on_box1(folder, RUNNING)
    before = _records(run_dir)
    with pytest.raises(StokerError) as caught:
        start.begin(load.load(str(folder / "night.yaml"), ["train.seed=7"]), Listener())
    assert caught.value.code == "STK777"
    assert _records(run_dir) == before


@pytest.mark.parametrize(("override", "code"), [("where.micro=3", "STK207"), ("where.gpus=4", "STK208")])
def test_a_start_that_its_plan_refuses_changes_no_word_of_the_run(folder: Path, override: str, code: str) -> None:
    run_dir = layout.create(load.load(str(folder / "night.yaml")))
    before = _records(run_dir)
    silent: Any = Listener(prepare=lambda _: None)
    with pytest.raises(StokerError) as caught:
        start.begin(load.load(str(folder / "night.yaml"), [override]), silent)
    assert caught.value.code == code
    assert _records(run_dir) == before


def _records(run_dir: RunDir) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in (run_dir.manifest_file, run_dir.run_file)]


def test_a_stop_while_a_run_is_sent_starts_nothing_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_record", lambda run_dir, *_: training.ask_to_stop(run_dir))
    monkeypatch.setattr(remote, "_begin", lambda *_: pytest.fail("it was started"))
    layout.named("night").path.mkdir(parents=True)
    training.ask_to_stop(layout.named("night"))  # an earlier one is none of this launch
    with pytest.raises(SystemExit) as ended:
        _train(folder, "box1")
    assert ended.value.code == 1
    assert not layout.named("night").stop_file.exists()
