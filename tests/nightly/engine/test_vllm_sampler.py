"""vLLM as the sampler of every kind of training, on one rank and on several; weights that are not handed over show."""

import shutil
import signal
from pathlib import Path
from typing import Any

import asked_run
import pytest
import taught_run
import tiny_run
import vllm_case

from stoker.engine import rollout_files, vllm_sampler
from stoker.rundir import events
from stoker.rundir.layout import RunDir

pytestmark = [pytest.mark.filterwarnings("default"), vllm_case.NEEDS_VLLM]

STEPS = 3
PLACES = {"one": "", "ddp": ", processes: 2, strategy: ddp", "fsdp2": ", processes: 2, strategy: fsdp2"}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


def generated(run_dir: RunDir) -> list[int]:
    return [one["step"] for one in events.read(run_dir.events_file) if one["event"] == "rollout"]


def answers(run_dir: RunDir) -> list[list[list[int]]]:
    found = sorted(rollout_files.folder(run_dir).glob("*.safetensors"))
    read = [rollout_files._rollout(rollout_files.safetensors.numpy.load(path.read_bytes())) for path in found]
    return [[answer.tolist() for answer in one.answers] for one in read]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_one_rank_two_of_ddp_and_two_of_fsdp2_train_on_the_same_answers(
    tmp_path: Path, base_model: Path, method: str
) -> None:
    found = {}
    for name, where in PLACES.items():
        text = vllm_case.text(base_model, steps=STEPS, method=method, where=where, more=", exact: true")
        run_dir = asked_run.made(tmp_path / name, text, asked_run.prompts(12, seed=1))
        with vllm_case.recorded(tmp_path / name) as pids:
            assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        assert vllm_case.left(pids) == []
        assert len(pids.read_text().split()) == 1  # the first rank's, for all
        assert max(vllm_case.gaps(run_dir)) <= vllm_case.LARGEST_GAP
        found[name] = (answers(run_dir), tiny_run.weights_sha(run_dir.final))
    assert found["one"] == found["ddp"] == found["fsdp2"]
    assert found["one"][0][0] != found["one"][0][1]


def skipped(plain: Any, sampler: Any, process: Any, *words: Any) -> None:
    """Of all weights vLLM is given only the first ones."""
    if not hasattr(process, "given"):
        process.given = True
        plain(sampler, process, *words)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_weights_that_were_not_handed_over_are_noticed(tmp_path: Path, base_model: Path, method: str) -> None:
    text = vllm_case.text(base_model, steps=8, method=method).replace("learning_rate: 1e-3", "learning_rate: 1e-2")
    run_dir = asked_run.made(tmp_path, text, asked_run.prompts(12, seed=1))
    with tiny_run.replaced(vllm_sampler.VllmSampler, "_hand_over", skipped):
        assert tiny_run.train(run_dir) not in (0, -signal.SIGKILL)
    assert "STK448" in tiny_run.said(run_dir)
    assert max(vllm_case.gaps(run_dir)) > 10 * vllm_case.LARGEST_GAP
    assert len(events.steps(run_dir.events_file)) < 8


def test_a_rollout_that_was_killed_comes_out_as_it_would_have(tmp_path: Path, base_model: Path) -> None:
    rows, text = asked_run.prompts(12, seed=1), vllm_case.text(base_model, steps=STEPS)
    whole = asked_run.trained(tmp_path / "whole", text, rows)
    run_dir = asked_run.made(tmp_path / "killed", text, rows)
    with tiny_run.replaced(vllm_sampler._Process, "ask", vllm_case.kill_within(3)):
        assert tiny_run.train(run_dir) == -signal.SIGKILL
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert answers(run_dir) == answers(whole)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)


def test_a_run_goes_on_with_another_sampler_and_says_so(tmp_path: Path, base_model: Path) -> None:
    text = vllm_case.text(base_model, steps=4, save="2 steps")
    run_dir = asked_run.made(tmp_path, text, asked_run.prompts(12, seed=1))
    with vllm_case.recorded(tmp_path) as pids:
        assert tiny_run.train(run_dir, kill_after=3) == -signal.SIGKILL
    assert vllm_case.left(pids) == []  # it had nothing to do: only the end of its stdin could end it
    tiny_run.rewrite(run_dir, "sampler: vllm", "sampler: transformers")
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    attempts = [one for one in events.read(run_dir.events_file) if one["event"] == "attempt"]
    assert attempts[-1]["tier"] == "SAMPLE-EXACT"
    assert attempts[-1]["changed"] == ["sampler: vllm -> transformers"]
    assert attempts[-1]["resumed_step"] == 2
    assert max(vllm_case.gaps(run_dir)) <= vllm_case.LARGEST_GAP


def test_a_student_answers_by_vllm(tmp_path: Path, base_model: Path) -> None:
    teacher = taught_run.teacher(tmp_path / "teacher")
    options, more = ", sampler: vllm, temperature: 0.7", ", eval_every: 2 steps"
    text = taught_run.text(base_model, teacher, steps=STEPS, method="lora", options=options, more=more)
    run_dir = tiny_run.make_run(tmp_path / "run", text, asked_run.prompts(24, seed=1), asked_run.prompts(6, seed=2))
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert max(vllm_case.gaps(run_dir)) <= vllm_case.LARGEST_GAP
    evals = [one["figures"] for one in events.read(run_dir.events_file) if one["event"] == "eval"]
    assert evals
    assert set(evals[0]) == {"divergence", "length", "cut"}


def test_a_run_killed_within_a_rollout_goes_on_and_its_committed_answers_give_its_bits_without_vllm(
    tmp_path: Path, base_model: Path
) -> None:
    rows, held, more = asked_run.prompts(12, seed=1), asked_run.prompts(4, seed=2), ", eval_every: 2 steps"
    text = vllm_case.text(base_model, steps=4, method="lora", options=", temperature: 0.8", more=more)
    run_dir = asked_run.made(tmp_path / "vllm", text, rows, held)
    with vllm_case.recorded(tmp_path) as pids:
        with tiny_run.replaced(vllm_sampler._Process, "ask", vllm_case.kill_within(3)):
            assert tiny_run.train(run_dir) == -signal.SIGKILL, tiny_run.said(run_dir)
        assert generated(run_dir) == [1]
        assert vllm_case.left(pids) == []
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        assert generated(run_dir) == list(range(1, 5))
        assert vllm_case.left(pids) == []
    gaps = vllm_case.gaps(run_dir)
    assert len(gaps) == 4
    assert max(gaps) <= vllm_case.LARGEST_GAP
    assert not (rollout_files.folder(run_dir) / ".weights").exists()

    replay = asked_run.made(tmp_path / "replay", text.replace("sampler: vllm", "sampler: transformers"), rows, held)
    shutil.copytree(rollout_files.folder(run_dir), rollout_files.folder(replay))
    assert tiny_run.train(replay) == 0, tiny_run.said(replay)
    assert generated(replay) == []
    assert tiny_run.weights_sha(replay.final) == tiny_run.weights_sha(run_dir.final)
    assert tiny_run.losses(replay) == tiny_run.losses(run_dir)
