"""The chain of kernels against a simulation of Kaggle (`kaggle_stand_in.py`), through the real `kaggle` command.

Never tried on Kaggle itself. What is pushed runs for real, in an emulated machine.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import kaggle_stand_in
import notebook_case
import pytest
from kaggle_stand_in import Kaggle
from tour import ROOT

from stoker.config import load
from stoker.errors import StokerError
from stoker.places import package
from stoker.places.kaggle import KernelChain
from stoker.places.kaggle_chain import ChainLink, slug
from stoker.rundir import layout

TOOLS = Path(os.environ.get("STOKER_TOOLS", Path.home() / ".stoker" / "tools"))
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.enable_socket,
    pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs namespaces"),
]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kaggle]:
    with kaggle_stand_in.kaggle(tmp_path / "kaggle") as kaggle:
        for name, value in kaggle.environment(TOOLS).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("STOKER_RUNS", str(tmp_path / "laptop" / "runs"))
        monkeypatch.chdir(_made(tmp_path / "laptop"))
        yield kaggle


def _made(folder: Path) -> Path:
    notebook_case.write(folder)
    return folder


def _sent(*overrides: str, name: str = "tiny.yaml") -> tuple[KernelChain, package.Package]:
    run_file = load.load(name, list(overrides))
    layout.create(run_file)
    kernel = KernelChain(run_file.run, look_seconds=3)
    return kernel, package.make(name, run_file, list(overrides))


def test_a_chain_of_segments_gives_the_weights_of_an_uninterrupted_run(there: Kaggle, tmp_path: Path) -> None:
    laptop = tmp_path / "laptop"
    assert notebook_case.stoker(laptop, "prepare", "tiny.yaml").returncode == 0
    there.steps_a_session, there.bad_downloads = 16, 2
    kernel, sent = _sent()
    kernel.put(sent)
    kernel.start(sent)
    told: list[ChainLink] = []

    def tell(link: ChainLink) -> None:
        told.append(link)
        if (link.number, link.state) == (1, "stopped"):
            _damage_newest(there, link)

    assert kernel.finish("tiny", tell) == 0, [session[-1].log for session in there.kernels.values()]

    ended = [link for link in told if link.state != "pushed"]
    assert there.bad_downloads == 0  # they came, and no segment was taken for lost
    assert len(ended) >= 3
    assert [link.state for link in ended] == ["stopped"] * (len(ended) - 1) + ["done"]
    assert ended[0].step < ended[1].step < notebook_case.STEPS
    # The damaged one was passed over and said so, for the one before it: a chain does not start over.
    assert [one["path"] for one in ended[1].rejected] == [f"step-{ended[0].step:08d}"]
    assert 0 < ended[1].resumed_step < ended[0].step
    assert ended[2].resumed_step == ended[1].step
    assert notebook_case.weights_sha(laptop / "runs" / "tiny") == notebook_case.whole_sha()
    assert kernel.status("tiny") == {
        "name": "tiny",
        "state": "done",
        "step": notebook_case.STEPS,
        "total_steps": notebook_case.STEPS,
        "kernel": f"{kaggle_stand_in.USER}/stoker-tiny-{len(ended)}",
    }
    assert [push.get("kernelDataSources", []) for push in there.pushes[:3]] == [
        [],
        ["someone/stoker-tiny-1"],
        ["someone/stoker-tiny-2"],
    ]
    assert all(push["isPrivate"] for push in there.pushes)
    _say_the_page(laptop)


def _say_the_page(laptop: Path) -> None:
    """Every command of the page about Kaggle; the run was trained by then."""
    page = (ROOT / "docs" / "how-to" / "kaggle.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    said = {}
    for line in block.splitlines():
        words = line.replace("night", "tiny").split()[1:]
        done = notebook_case.stoker(laptop, *words)
        assert done.returncode == 0, (line, done.stderr)
        said[words[0]] = done.stdout + done.stderr
    assert set(said) == {"train", "watch", "pull"}
    assert f"{notebook_case.STEPS}/{notebook_case.STEPS}" in said["watch"]


def _damage_newest(there: Kaggle, link: ChainLink) -> None:
    output = there.session(link.kernel).output
    name = f"runs/tiny/checkpoints/step-{link.step:08d}/model.safetensors"
    content = bytearray(output[name].read_bytes())
    content[-1] ^= 1
    output[name].write_bytes(bytes(content))


def test_kernels_that_are_killed_at_their_limit_lose_their_output_and_are_not_pushed_for_ever(there: Kaggle) -> None:
    kernel, sent = _sent("where.session=2s")
    kernel.put(sent)
    kernel.start(sent)
    told: list[ChainLink] = []
    with pytest.raises(StokerError) as problem:
        kernel.finish("tiny", told.append)
    assert problem.value.code == "STK753"
    assert [link.state for link in told] == ["pushed", "lost", "pushed", "lost"]
    assert [push["sessionTimeoutSeconds"] for push in there.pushes] == [2, 2]
    # The same command tries again, with a kernel of a new name.
    there.executes = False
    kernel.start(sent)
    assert there.pushes[-1]["slug"] == "someone/stoker-tiny-3"


def test_what_is_pushed_passes_kaggles_own_checks_and_says_what_was_asked(there: Kaggle) -> None:
    there.executes, there.gpu_hours_left = False, 3.0
    shape = "native.kaggle={machine_shape: NvidiaTeslaP100, model_sources: [a/b/pyTorch/c/1]}"
    kernel, sent = _sent("where.gpus=all", shape)
    kernel.put(sent)
    kernel.start(sent)
    (push,) = there.pushes
    assert push["machineShape"] == "NvidiaTeslaP100"
    assert push["enableGpu"]
    assert push["enableInternet"]
    assert push["isPrivate"]
    assert push["kernelType"] == "script"
    assert push["datasetDataSources"] == ["someone/stoker-tiny"]
    assert push["modelDataSources"] == ["a/b/pyTorch/c/1"]
    assert push["sessionTimeoutSeconds"] == 3 * 3600  # of 8.5, for no more is left of the week's quota
    assert "000000000000" not in push["text"]  # the key to Kaggle
    # Again: nothing new to send, nothing pushed twice.
    uploads = there.calls.count("StartBlobUpload")
    kernel.put(sent)
    kernel.start(sent)
    assert there.calls.count("StartBlobUpload") == uploads
    assert len(there.pushes) == 1
    # Another run file is a new version of the same dataset.
    kernel, sent = _sent("train.steps=47")
    kernel.put(sent)
    assert (there.calls.count("CreateDataset"), there.calls.count("CreateDatasetVersion")) == (1, 1)
    newest = there.datasets["someone/stoker-tiny"][-1] / "bundle" / "bundle.json"
    assert "train.steps=47" in newest.read_text()


def test_after_a_push_that_was_cut_off_kaggle_is_asked_whether_it_has_it(there: Kaggle) -> None:
    there.executes = False
    kernel, sent = _sent()
    kernel.put(sent)
    kernel.start(sent)
    chain = kernel._chain("tiny")
    for has_it in (True, False):
        cut_off = [chain.links[0].model_copy(update={"state": "pushing"})]
        kernel._keep("tiny", chain.model_copy(update={"links": cut_off}))
        if not has_it:
            there.kernels.clear()
        kernel.start(sent)
        assert len(there.pushes) == (1 if has_it else 2)
        assert [(link.number, link.state) for link in kernel._chain("tiny").links] == [(1, "pushed")]


def test_a_chain_waits_for_the_next_week_when_the_quota_is_used_up(there: Kaggle) -> None:
    there.executes, there.gpu_hours_left = False, 0.1
    kernel, sent = _sent("where.gpus=all")
    kernel.start(sent)
    assert there.pushes == []
    assert kernel.finish("tiny", lambda _: None) == 75


def test_a_source_that_kaggle_does_not_take_is_an_error_and_no_segment(there: Kaggle) -> None:
    there.executes = False
    kernel, sent = _sent()
    with pytest.raises(StokerError) as problem:
        kernel.start(sent)  # without its dataset
    assert problem.value.code == "STK750"
    assert "someone/stoker-tiny" in problem.value.what
    assert kernel.status("tiny") is None


@pytest.mark.parametrize(("run", "name"), [("medical", "stoker-medical"), ("My.Run_1", "stoker-my-run-1-")])
def test_names_are_spelled_as_kaggle_spells_them(run: str, name: str) -> None:
    assert slug(run).startswith(name)
    assert slug(run) != slug(run + "x")


def test_a_long_name_fits_kaggles_titles() -> None:
    assert len(slug("a" * 100) + "-9999") <= 50


def test_the_tool_is_the_real_one() -> None:
    assert shutil.which(str(TOOLS / "kaggle" / "bin" / "kaggle"))
