"""The chain's own decisions, without Kaggle: what is believed, what is pushed next, when it gives up."""

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.places import kaggle, segment
from stoker.places.kaggle import KernelChain
from stoker.places.kaggle_chain import Chain, ChainLink
from stoker.places.kaggle_cli import KaggleCommand
from stoker.places.package import Package
from stoker.places.segment import SegmentReport
from stoker.rundir import checkpoints, layout, pulled
from stoker.rundir.layout import RunDir

FACTS = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {"micro": "1"}}


def _link(number: int, state: str, **fields: Any) -> ChainLink:
    return ChainLink(number=number, kernel=f"me/stoker-tiny-{number}", source=None, state=state, pushed="", **fields)


_REASONS = {"down": "no line", "none": "403 Client Error: Forbidden for url"}


class Scripted(KaggleCommand):
    """`kaggle` that is answered by a function."""

    def __init__(self, answer: Callable[..., str]) -> None:
        self.call = answer  # type: ignore[method-assign]


class Told(KernelChain):
    """A Kaggle whose answers are written down beforehand."""

    def __init__(
        self,
        *links: ChainLink,
        states: tuple[str, ...] = (),
        output: Path | None = None,
        bad: tuple[str | None, ...] = (),
        **native: Any,
    ) -> None:
        """`bad`: what stands in the report instead for the first downloads; None: nothing is listed."""
        run = Run.model_validate(
            {"name": "tiny", "model": "m", "data": {"train": "a"}, "where": {"gpus": 0}, "native": {"kaggle": native}}
        )
        super().__init__(run, look_seconds=0, cli=Scripted(self._say))
        self.states, self.output, self.bad, self.said = list(states), output, list(bad), []
        self.push_fails = False
        self._keep("tiny", Chain(id="c", user="me", bundle="b", links=list(links)))

    def _say(self, *words: str, may_fail: bool = False) -> str:
        self.said.append(words)
        if words[:2] == ("kernels", "status"):
            answer = self.states.pop(0)
            if answer in _REASONS:
                raise StokerError("STK750", command="kernels status", reason=_REASONS[answer])
            return f'{words[2]} has status "{answer}"'
        if words[:2] == ("kernels", "output"):
            if self.bad:
                if (text := self.bad.pop(0)) is not None:
                    (Path(words[4]) / segment.REPORT).write_text(text)
            elif self.output is not None:
                shutil.copytree(self.output, words[4], dirs_exist_ok=True)
            return ""
        if words[:2] == ("kernels", "push"):
            if self.push_fails:
                raise StokerError("STK750", command="kernels push", reason="cut off")
            return "Kernel version 1 successfully pushed.  Please check progress at ..."
        return ""


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "runs"))


def _output(folder: Path, number: int = 1, chain: str = "c", **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    report = SegmentReport(chain=chain, number=number, **fields)
    (folder / segment.REPORT).write_text(json.dumps(report.sealed()))
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


@pytest.mark.parametrize(("step", "source"), [(9, 2), (5, 1), (0, 1)])
def test_hours_of_a_segment_that_failed_are_not_trained_again(step: int, source: int) -> None:
    before = _link(1, "stopped", step=5)
    chain = Chain(id="c", user="me", links=[before, _link(2, "failed", step=step, resumed_step=5)])
    assert chain.good is not None
    assert chain.good.number == source
    assert chain.step == max(5, step)


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


def _finished(folder: Path) -> SegmentReport:
    """An output with a checkpoint and a finished model, and the report of both."""
    source = RunDir(folder / "runs" / "tiny")
    source.path.mkdir(parents=True)
    with checkpoints.writing(source.checkpoints, 9, **FACTS) as aside:
        (aside / "model.safetensors").write_bytes(b"weights")
    source.final.mkdir(parents=True)
    (source.final / "model.safetensors").write_bytes(b"weights")
    (source.path / "events.jsonl").write_text("{}\n")
    return SegmentReport(chain="c", number=1, state="done", step=9, standing=pulled.standing(source))


def test_what_is_brought_home_is_compared_with_the_report(tmp_path: Path) -> None:
    report = _finished(tmp_path / "out")
    (tmp_path / "out" / segment.REPORT).write_text(json.dumps(report.sealed()))
    run_dir = Told(_link(1, "done", step=9), output=tmp_path / "out").get("tiny")
    assert (run_dir.final / "model.safetensors").read_bytes() == b"weights"
    assert checkpoints.newest_verified(run_dir.checkpoints)[0].step == 9
    assert sorted(path.name for path in run_dir.path.iterdir()) == [
        "artifacts",
        "checkpoints",
        "events.jsonl",
        "kaggle.json",
    ]


@pytest.mark.parametrize("arrives_whole", [True, False])
def test_the_best_checkpoint_is_brought_home_too(tmp_path: Path, *, arrives_whole: bool) -> None:
    source = RunDir(tmp_path / "out" / "runs" / "tiny")
    source.path.mkdir(parents=True)
    for step in (3, 6, 9):
        with checkpoints.writing(source.checkpoints, step, **FACTS) as aside:
            (aside / "trainer_state.json").write_text('{"best_global_step": 3}')
    report = SegmentReport(chain="c", number=1, state="stopped", step=9, standing=pulled.standing(source))
    (tmp_path / "out" / segment.REPORT).write_text(json.dumps(report.sealed()))
    told = Told(_link(1, "stopped", step=9), output=tmp_path / "out")
    if arrives_whole:
        assert [one.step for one in checkpoints.committed(told.get("tiny").checkpoints)] == [3, 9]
        return
    (source.checkpoints / "step-00000003" / "trainer_state.json").write_text("{}")
    with pytest.raises(StokerError) as problem:
        told.get("tiny")
    assert problem.value.code == "STK754"


@pytest.mark.parametrize("name", ["artifacts/final/model.safetensors", "checkpoints/step-00000009/model.safetensors"])
def test_a_file_that_arrives_damaged_is_not_taken(tmp_path: Path, name: str) -> None:
    report = _finished(tmp_path / "out")
    (tmp_path / "out" / segment.REPORT).write_text(json.dumps(report.sealed()))
    (tmp_path / "out" / "runs" / "tiny" / name).write_bytes(b"weightz")
    with pytest.raises(StokerError) as problem:
        Told(_link(1, "done", step=9), output=tmp_path / "out").get("tiny")
    assert problem.value.code == "STK754"
    assert not (layout.runs_folder() / "tiny" / "artifacts" / "final").exists()


def test_the_chain_file_holds_no_more_than_it_says() -> None:
    Told(_link(1, "stopped"))
    said = json.loads((layout.runs_folder() / "tiny" / "kaggle.json").read_text())
    assert set(said) == {"id", "user", "bundle", "links"}


PAGE = "<html>503 Service Unavailable</html>"


@pytest.mark.parametrize("bad", [(PAGE,) * 20, (None, None), (None, PAGE, None, "", '{"state": "done"}')])
def test_a_bad_download_never_makes_a_finished_segment_lost(tmp_path: Path, bad: tuple[str | None, ...]) -> None:
    """Kaggle's command line ends with 0 after it has written an error page as the file."""
    output = _output(tmp_path / "out", state="stopped", step=7, exit_code=75)
    kernel = Told(_link(1, "pushed"), states=("complete",) * 25, output=output, bad=bad)
    ended = next(link for link in kernel.go_on("tiny") if link.state != "pushed")
    assert (ended.state, ended.step) == ("stopped", 7)


def test_downloads_that_stay_bad_are_an_error_and_nothing_is_written_down(tmp_path: Path) -> None:
    kernel = Told(_link(1, "pushed"), states=("complete",) * 50, bad=(PAGE,) * 50)
    with pytest.raises(StokerError) as problem:
        kernel.finish("tiny", lambda _: None)
    assert problem.value.code == "STK750"
    assert kernel._chain("tiny").last.state == "pushed"


def test_what_is_brought_home_is_downloaded_again_where_it_came_badly(tmp_path: Path) -> None:
    report = _finished(tmp_path / "out")
    (tmp_path / "out" / segment.REPORT).write_text(json.dumps(report.sealed()))
    run_dir = Told(_link(1, "done", step=9), output=tmp_path / "out", bad=(PAGE, None)).get("tiny")
    assert (run_dir.final / "model.safetensors").read_bytes() == b"weights"


def test_the_clock_of_a_segment_starts_with_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script as it is pushed, with a bundle that takes its time."""
    monkeypatch.setattr(kaggle, "_INPUT", str(tmp_path / "input"))
    monkeypatch.setattr(kaggle, "_WORKING", str(tmp_path))
    bundle = tmp_path / "input" / "stoker-tiny"
    bundle.mkdir(parents=True)
    program = f"import sys, time; time.sleep(1); open({str(tmp_path / 'asked')!r}, 'w').write(sys.argv[2])\n"
    (bundle / "__main__.py").write_text(program)
    record = json.dumps({"program": hashlib.sha256(program.encode()).hexdigest()})
    (bundle / "bundle.json").write_text(record)
    chain = Chain(id="c", user="me", bundle=hashlib.sha256(record.encode()).hexdigest())
    script = Told()._script("tiny", chain, _link(1, "pushed"), 3600)
    before = time.time()
    subprocess.run([sys.executable, "-c", script], check=True)
    asked = segment.SegmentRequest.model_validate({**json.loads((tmp_path / "asked").read_text()), "words": []})
    assert before <= asked.began <= time.time() - 1
    assert script.splitlines()[0].startswith("import time; BEGAN = time.time()")
    # Another program beside the same record is not run.
    (bundle / "__main__.py").write_text(program + "# changed")
    subprocess.run([sys.executable, "-c", script], check=True)
    assert segment.SegmentReport.read(tmp_path / segment.REPORT).state == "lost"


def _cut_off(*states: str) -> Told:
    """A chain whose push was cut off: nobody here knows whether Kaggle has it."""
    kernel = Told(_link(1, "stopped", step=5), states=states)
    kernel.push_fails = True
    with pytest.raises(StokerError, match="cut off"):
        kernel._push("tiny", kernel._chain("tiny"))
    assert kernel._chain("tiny").last.state == "pushing"
    kernel.push_fails = False
    return kernel


@pytest.mark.parametrize(("state", "pushes"), [("running", 1), ("none", 2)])
def test_a_push_that_was_cut_off_is_done_again_only_where_kaggle_has_it_not(state: str, pushes: int) -> None:
    kernel = _cut_off(state)
    kernel.start(Package("tiny", {}, "", (), {}, prepared=True))
    assert [words[:2] for words in kernel.said].count(("kernels", "push")) == pushes
    assert [(link.number, link.state) for link in kernel._chain("tiny").links] == [(1, "stopped"), (2, "pushed")]


def test_where_kaggle_cannot_be_asked_about_a_push_nothing_is_pushed() -> None:
    kernel = _cut_off("down")
    with pytest.raises(StokerError, match="no line"):
        kernel.start(Package("tiny", {}, "", (), {}, prepared=True))
    assert kernel._chain("tiny").last.state == "pushing"
