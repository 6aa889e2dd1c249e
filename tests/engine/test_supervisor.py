"""The supervisor with the real trainer: killed, out of memory, a step that is not finite."""

import dataclasses
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_trainer
import metadata_server
import pytest
import tiny_run

from stoker.rundir import checkpoints, events, files
from stoker.supervise.settings import SupervisorSettings
from stoker.supervise.supervisor import Supervisor

pytestmark = pytest.mark.filterwarnings("default")

QUICK = SupervisorSettings(look_seconds=0.05, first_wait_seconds=0.1, hang_floor_seconds=120)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", dropout=0.1)


def text(base: Path, extra: str = "", save: str = "4 steps", where: str = "micro: 4") -> str:
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 12, epochs: 4, learning_rate: 1e-3{extra}}}
save: {{every: {save}, keep: 20}}
where: {{{where}}}
"""


def make(folder: Path, words: str) -> tiny_run.RunDir:
    return tiny_run.make_run(folder, words, tiny_run.random_rows(30, seed=5, longest=64, segments=3))


def supervise(run_dir: tiny_run.RunDir, injure: Callable[[int], None] = lambda attempt: None) -> int:
    run_dir.logs.mkdir(exist_ok=True)
    return Supervisor(run_dir.path, QUICK, start=forked_trainer.starter(injure)).run()


def noted(run_dir: tiny_run.RunDir, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind]


def at_step(step: int, act: Callable[[Any], None]) -> None:
    """Do something to this process when a step has ended."""
    from stoker.engine import callbacks

    plain = callbacks.Schedule.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == step:
            act(self)
        return plain(self, args, state, control, **kwargs)

    callbacks.Schedule.on_step_end = on_step_end  # only in this child


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, base: Path) -> tiny_run.RunDir:
    """A run nobody disturbed."""
    run_dir = make(tmp_path_factory.mktemp("whole"), text(base))
    assert tiny_run.train(run_dir) == 0
    return run_dir


def test_killed_three_times_it_ends_with_the_same_bits(tmp_path: Path, base: Path, whole: tiny_run.RunDir) -> None:
    run_dir = make(tmp_path, text(base))
    kill = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731

    def injure(attempt: int) -> None:
        if attempt <= 3:
            at_step({1: 5, 2: 6, 3: 11}[attempt], kill)

    assert supervise(run_dir, injure) == 0, forked_trainer.logs(run_dir.path)
    assert [one["reason"] for one in noted(run_dir, "restart")] == ["SIGKILL"] * 3
    assert [one["resumed_step"] for one in noted(run_dir, "attempt")] == [0, 4, 4, 8]
    assert {one["tier"] for one in noted(run_dir, "attempt")} == {"EXACT"}
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no folder in use")
@pytest.mark.parametrize("killed_at", [5, 10])
def test_renamed_while_it_trains_it_goes_on_under_its_new_name(
    tmp_path: Path, base: Path, whole: tiny_run.RunDir, killed_at: int
) -> None:
    run_dir = make(tmp_path, text(base))
    moved = tiny_run.RunDir(run_dir.path.with_name("renamed"))

    def injure(attempt: int) -> None:
        if attempt == 1:
            at_step(killed_at, lambda _: os.kill(os.getpid(), signal.SIGKILL))
            at_step(5, lambda _: run_dir.path.rename(moved.path))

    run_dir.logs.mkdir(exist_ok=True)
    supervisor = Supervisor(run_dir.path, QUICK, start=forked_trainer.starter(injure))
    assert supervisor.run() == 0, forked_trainer.logs(moved.path)
    assert run_dir.path.is_symlink()  # as long as somebody works there
    supervisor.settle()
    assert not os.path.lexists(run_dir.path)
    assert [one["tier"] for one in noted(moved, "attempt")] == ["EXACT", "EXACT"]
    assert tiny_run.weights_sha(moved.final) == tiny_run.weights_sha(whole.final)


def test_the_program_itself_survives_a_kill_of_its_trainer(
    tmp_path: Path, base: Path, whole: tiny_run.RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As users have it: processes of their own from the first to the last."""
    from stoker.launch import training

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_dir = make(tmp_path, text(base))

    def kill_once() -> None:
        while not checkpoints.committed(run_dir.checkpoints):
            time.sleep(0.02)
        os.kill(files.read_json(run_dir.process_file)["pid"], signal.SIGKILL)

    threading.Thread(target=kill_once, daemon=True).start()
    process = training.start(run_dir)
    assert process.wait(500) == 0, forked_trainer.logs(run_dir.path)
    assert training.running_pid(run_dir) is None
    assert [one["reason"] for one in noted(run_dir, "restart")] == ["SIGKILL"]
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for ranks in /proc")
def test_a_killed_rank_ends_all_and_all_go_on(
    tmp_path: Path, base: Path, whole: tiny_run.RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun says 1, its log says which signal; no rank is left behind to hold the lock."""
    from stoker.launch import training

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_dir = make(tmp_path, text(base, where="micro: 4, processes: 2"))

    def ranks() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode().split("\0")
            except OSError:
                continue
            if str(run_dir.path.resolve()) in words and "torch.distributed.run" not in words:
                found += [int(path.parent.name)] if "stoker.engine.train" in words else []
        return sorted(found)

    def kill_last() -> None:
        while not checkpoints.committed(run_dir.checkpoints):
            time.sleep(0.02)
        os.kill(ranks()[-1], signal.SIGKILL)

    threading.Thread(target=kill_last, daemon=True).start()
    assert training.start(run_dir).wait(900) == 0, forked_trainer.logs(run_dir.path)
    assert [one["reason"] for one in noted(run_dir, "restart")] == ["SIGKILL"]
    assert ranks() == []
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)


def wide_model(folder: Path) -> Path:
    """A model whose vocabulary makes every sequence cost memory."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=16384, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process' memory as Linux does")
def test_out_of_memory_is_planned_again_with_the_same_batch(tmp_path: Path) -> None:
    """A real limit on the process' memory: the first plan's micro batch does not get what it needs."""
    words = f"""
model: {wide_model(tmp_path / "wide")}
data: {{train: rows.jsonl, length: 128}}
tune: {{method: full}}
train: {{batch: 16, steps: 4, epochs: 40, learning_rate: 1e-3}}
save: {{every: 2 steps}}
"""
    rows = tiny_run.random_rows(40, seed=5, longest=128, segments=4)
    run_dir = tiny_run.make_run(tmp_path, words, rows)
    first = files.read_json(run_dir.plan_file)["batch"]

    def injure(attempt: int) -> None:
        from stoker.engine import trainer

        plain = trainer.ExactSteps.forward_backward

        def forward_backward(*arguments: Any, **options: Any) -> Any:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            room = pages * os.sysconf("SC_PAGE_SIZE") + (200 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
            try:
                return plain(*arguments, **options)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        trainer.ExactSteps.forward_backward = forward_backward

    assert supervise(run_dir, injure) == 0, forked_trainer.logs(run_dir.path)
    plans = noted(run_dir, "replan")
    assert plans
    assert plans[0]["before"]["micro"] == first["micro"]
    assert plans[0]["after"]["micro"] < first["micro"]
    plan = files.read_json(run_dir.plan_file)
    batch = plan["batch"]
    assert batch["effective"] == first["effective"] == batch["micro"] * batch["accumulation"] * batch["devices"]
    assert [rung["micro"] for rung in plan["out_of_memory"]] == [one["before"]["micro"] for one in plans]
    assert "why.out_of_memory" in [reason["key"] for reason in plan["reasons"]]
    assert [one["reason"] for one in noted(run_dir, "restart")] == ["memory"] * len(plans)
    assert {one["tokens"] for one in noted(run_dir, "step")}


def test_where_nothing_smaller_is_left_it_ends_in_words(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, text(base, where="micro: 4, gradient_checkpointing: true"))

    def injure(attempt: int) -> None:
        from stoker.engine import rehearsal

        def rehearse(*_: Any, **__: Any) -> None:
            raise MemoryError("injected")

        rehearsal.rehearse = rehearse

    assert supervise(run_dir, injure) == 1
    assert [one["error"]["code"] for one in noted(run_dir, "error")] == ["STK408", "STK675"]


def poison(step: int, factor: float) -> Callable[[int], None]:
    """The data of one step makes its loss this many times larger."""

    def injure(attempt: int) -> None:
        from stoker.engine import trainer

        plain = trainer.ExactSteps.loss_of

        def loss(self: Any, *arguments: Any, **options: Any) -> Any:
            found = plain(self, *arguments, **options)
            rehearsed = self.last_item is None and step > 1
            hit = self.state.global_step == step - 1 and not rehearsed
            return found._replace(loss=found.loss * factor) if hit else found

        trainer.ExactSteps.loss_of = loss

    return injure


def test_a_step_that_is_not_finite_stops_the_run_by_default(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, text(base))
    assert supervise(run_dir, poison(7, float("nan"))) == 1
    assert [one["error"]["code"] for one in noted(run_dir, "error")] == ["STK405"]
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [4]


@pytest.mark.parametrize(("factor", "extra"), [(float("nan"), ""), (50.0, ", spike: 3")])
def test_a_bad_step_is_passed_over_where_the_run_file_says_so(
    tmp_path: Path, base: Path, whole: tiny_run.RunDir, factor: float, extra: str
) -> None:
    run_dir = make(tmp_path, text(base, extra=f", on_bad_step: skip{extra}", save="1 steps"))
    assert supervise(run_dir, poison(7, factor)) == 0, forked_trainer.logs(run_dir.path)
    assert [one["step"] for one in noted(run_dir, "passed_over")] == [7]
    assert [one["resumed_step"] for one in noted(run_dir, "attempt")] == [0, 6]
    last = events.steps(run_dir.events_file)
    assert last[7]["loss"] is None
    assert sorted(last) == list(range(1, 13))
    sha = {one.step: tiny_run.weights_sha(one.path) for one in checkpoints.committed(run_dir.checkpoints)}
    assert sha[7] == sha[6]  # no update
    assert sha[8] != sha[7]
    rates = {step: event["learning_rate"] for step, event in last.items()}
    assert rates == {step: event["learning_rate"] for step, event in events.steps(whole.events_file).items()}
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(whole)


def test_after_a_step_was_passed_over_a_kill_changes_nothing(tmp_path: Path, base: Path) -> None:
    words = text(base, extra=", on_bad_step: skip")
    plain, killed = make(tmp_path / "plain", words), make(tmp_path / "killed", words)
    assert supervise(plain, poison(6, float("nan"))) == 0

    def injure(attempt: int) -> None:
        poison(6, float("nan"))(attempt)
        if attempt == 2:
            at_step(7, lambda _: os.kill(os.getpid(), signal.SIGKILL))

    assert supervise(killed, injure) == 0, forked_trainer.logs(killed.path)
    assert [one["reason"] for one in noted(killed, "restart")] == ["bad_step", "SIGKILL"]
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(plain.final)


def test_a_time_budget_commits_and_goes_on_when_it_is_raised(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, text(base))
    plan = files.read_json(run_dir.plan_file)
    files.write_json(run_dir.plan_file, {**plan, "limits": {"time_seconds": 6}})  # on a loaded machine it starts slowly

    def until_asked(_: Any) -> None:
        while not (run_dir.path / "stop").exists():
            time.sleep(0.01)

    def injure(attempt: int) -> None:
        at_step(2, until_asked)

    assert supervise(run_dir, injure) == 75, forked_trainer.logs(run_dir.path)
    assert [one["reason"] for one in noted(run_dir, "limit")] == ["time"]
    assert checkpoints.committed(run_dir.checkpoints)
    assert supervise(run_dir) == 1
    files.write_json(run_dir.plan_file, {**plan, "limits": {"time_seconds": 600}})
    assert supervise(run_dir) == 0


def test_a_spot_notice_commits_the_step_it_is_at_and_the_rest_has_the_same_bits(
    tmp_path: Path, base: Path, whole: tiny_run.RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated cloud marks the machine while step 6 is under way; saves are due at 4, 8 and 12."""
    run_dir = make(tmp_path, text(base))
    stop = run_dir.path / "stop"

    def until_asked(_: Any) -> None:
        (tmp_path / "step-6").touch()
        while not stop.exists():
            time.sleep(0.01)

    def mark(server: metadata_server.Simulated) -> None:
        while not (tmp_path / "step-6").exists():
            time.sleep(0.01)
        server.mark()

    with metadata_server.simulated("aws") as server:
        monkeypatch.setenv("STOKER_METADATA", server.address)
        marking = threading.Thread(target=mark, args=(server,), daemon=True)
        marking.start()
        run_dir.logs.mkdir(exist_ok=True)
        start = forked_trainer.starter(lambda attempt: at_step(6, until_asked))
        quick = dataclasses.replace(QUICK, notice_seconds=0.05)
        assert Supervisor(run_dir.path, quick, start=start).run() == 75, forked_trainer.logs(run_dir.path)
        marking.join()
    assert [one["reason"] for one in noted(run_dir, "limit")] == ["notice"]
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [4, 6]
    assert supervise(run_dir) == 0
    assert [one["resumed_step"] for one in noted(run_dir, "attempt")] == [0, 6]
    assert tiny_run.losses(run_dir) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(whole.final)
