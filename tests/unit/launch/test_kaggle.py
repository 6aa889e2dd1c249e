"""The chain's own decisions, without Kaggle: what is believed, what is pushed next, when it gives up."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.launch import segment
from stoker.launch.kaggle import Chain, Kernel, Link
from stoker.launch.segment import Report
from stoker.rundir import checkpoints, layout, pulled
from stoker.rundir.layout import RunDir

FACTS = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {"micro": "1"}}


def _link(number: int, state: str, **fields: Any) -> Link:
    return Link(number=number, kernel=f"me/stoker-tiny-{number}", source=None, state=state, pushed="", **fields)


class Told(Kernel):
    """A Kaggle whose answers are written down beforehand."""

    def __init__(self, *links: Link, states: tuple[str, ...] = (), output: Path | None = None, **native: Any) -> None:
        run = Run.model_validate(
            {"name": "tiny", "model": "m", "data": {"train": "a"}, "where": {"gpus": 0}, "native": {"kaggle": native}}
        )
        super().__init__(run, look_seconds=0)
        self.states, self.output, self.said = list(states), output, []
        self._keep("tiny", Chain(id="c", user="me", bundle="b", links=list(links)))

    def _say(self, *words: str, may_fail: bool = False) -> str:
        self.said.append(words)
        if words[:2] == ("kernels", "status"):
            answer = self.states.pop(0)
            if answer == "down":
                raise StokerError("STK750", command="kernels status", reason="no line")
            return f'{words[2]} has status "{answer}"'
        if words[:2] == ("kernels", "output"):
            if self.output is not None:
                shutil.copytree(self.output, words[4], dirs_exist_ok=True)
            return ""
        if words[:2] == ("kernels", "push"):
            return "Kernel version 1 successfully pushed.  Please check progress at ..."
        return ""


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))


def _output(folder: Path, number: int = 1, chain: str = "c", **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(chain=chain, number=number, **fields)
    (folder / segment.REPORT).write_text(report.model_dump_json())
    return folder


@pytest.mark.parametrize("word", ["KernelWorkerStatus.COMPLETE", "complete", "ERROR", "cancelAcknowledged"])
def test_a_kernel_that_ended_is_believed_by_its_report_only(tmp_path: Path, word: str) -> None:
    output = _output(tmp_path / "out", state="stopped", step=7, total_steps=9, exit_code=75)
    kernel = Told(_link(1, "pushed"), states=(word,), output=output)
    assert kernel.status("tiny") == {
        "name": "tiny",
        "state": "stopped",
        "step": 7,
        "total_steps": 9,
        "kernel": "me/stoker-tiny-1",
    }


@pytest.mark.parametrize("fields", [{"chain": "another"}, {"number": 2}])
def test_another_kernels_report_is_none(tmp_path: Path, fields: dict[str, Any]) -> None:
    output = _output(tmp_path / "out", state="done", **fields)
    kernel = Told(_link(1, "pushed"), states=("complete",), output=output)
    assert kernel.status("tiny")["state"] == "failed"  # lost


def test_questions_that_go_unanswered_for_a_while_change_nothing(tmp_path: Path) -> None:
    output = _output(tmp_path / "out", state="failed", exit_code=2)
    kernel = Told(_link(1, "pushed"), states=("running", *["down"] * 20, "complete"), output=output)
    with pytest.raises(StokerError) as problem:
        kernel.finish("tiny", lambda _: None)
    assert problem.value.code == "STK759"
    assert "exit code 2" in problem.value.what or "退出码 2" in problem.value.what


def test_the_error_of_the_run_is_told_here(tmp_path: Path) -> None:
    error = StokerError("STK751", number=1, folder="/kaggle/input").to_json()
    kernel = Told(
        _link(1, "pushed"), states=("complete",), output=_output(tmp_path / "out", state="failed", error=error)
    )
    with pytest.raises(StokerError) as problem:
        kernel.finish("tiny", lambda _: None)
    assert problem.value.code == "STK751"


def test_after_a_lost_segment_the_newest_good_one_is_gone_on_from(tmp_path: Path) -> None:
    kernel = Told(_link(1, "stopped", step=5), _link(2, "pushed", step=5, resumed_step=5), states=("error",))
    seen = [(link.number, link.state, link.source) for link in itertools.islice(kernel.go_on("tiny"), 3)]
    assert seen == [(2, "pushed", None), (2, "lost", None), (3, "pushed", 1)]
    folder = Path(next(words[3] for words in kernel.said if words[:2] == ("kernels", "push")))
    assert not folder.exists()  # nothing is left behind


def test_metadata_names_the_segment_before_and_keeps_the_users_fields() -> None:
    kernel = Told(_link(1, "stopped", step=5), dataset_sources=["a/b"], is_private=False, docker_image="x")
    chain = Chain.model_validate_json((layout.runs_folder() / "tiny" / "kaggle.json").read_text())
    link = _link(2, "pushed").model_copy(update={"source": 1})
    said = kernel.metadata("tiny", chain, link)
    assert said["kernel_sources"] == ["me/stoker-tiny-1"]
    assert said["dataset_sources"] == ["me/stoker-tiny", "a/b"]
    assert said["docker_image"] == "x"
    assert said["is_private"] is False
    assert said["enable_gpu"] is False
    assert said["title"] == "stoker-tiny-2"


def _finished(folder: Path) -> Report:
    """An output with a checkpoint and a finished model, and the report of both."""
    source = RunDir(folder / "runs" / "tiny")
    with checkpoints.writing(source.checkpoints, 9, **FACTS) as aside:
        (aside / "model.safetensors").write_bytes(b"weights")
    source.final.mkdir(parents=True)
    (source.final / "model.safetensors").write_bytes(b"weights")
    (source.path / "events.jsonl").write_text("{}\n")
    return Report(chain="c", number=1, state="done", step=9, standing=pulled.standing(source))


def test_what_is_brought_home_is_compared_with_the_report(tmp_path: Path) -> None:
    report = _finished(tmp_path / "out")
    (tmp_path / "out" / segment.REPORT).write_text(report.model_dump_json())
    run_dir = Told(_link(1, "done", step=9), output=tmp_path / "out").get("tiny")
    assert (run_dir.final / "model.safetensors").read_bytes() == b"weights"
    assert checkpoints.newest_verified(run_dir.checkpoints)[0].step == 9
    assert sorted(path.name for path in run_dir.path.iterdir()) == [
        "artifacts",
        "checkpoints",
        "events.jsonl",
        "kaggle.json",
    ]


@pytest.mark.parametrize("name", ["artifacts/final/model.safetensors", "checkpoints/step-00000009/model.safetensors"])
def test_a_file_that_arrives_damaged_is_not_taken(tmp_path: Path, name: str) -> None:
    report = _finished(tmp_path / "out")
    (tmp_path / "out" / segment.REPORT).write_text(report.model_dump_json())
    (tmp_path / "out" / "runs" / "tiny" / name).write_bytes(b"weightz")
    with pytest.raises(StokerError) as problem:
        Told(_link(1, "done", step=9), output=tmp_path / "out").get("tiny")
    assert problem.value.code == "STK754"
    assert not (layout.runs_folder() / "tiny" / "artifacts" / "final").exists()


def test_the_chain_file_holds_no_more_than_it_says() -> None:
    Told(_link(1, "stopped"))
    said = json.loads((layout.runs_folder() / "tiny" / "kaggle.json").read_text())
    assert set(said) == {"id", "user", "bundle", "links"}
