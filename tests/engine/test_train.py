"""The training program at its edges: what it resumes from, what it refuses, what it leaves behind."""

import errno
import io
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_run

from stoker.engine import callbacks, program
from stoker.engine.trainer import ExactTrainer
from stoker.rundir import artifacts, checkpoints, events, files, filesystem, lock

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


def text(base: Path, extra: str = "", where: str = "micro: 4") -> str:
    return f"""
model: {base}
data: {{train: rows.jsonl, eval: rows.jsonl, length: 64}}
tune: {{method: lora, rank: 4}}
train: {{batch: 8, steps: 12, epochs: 4, learning_rate: 1e-3, eval_every: 3 steps}}
save: {{every: 4 steps, keep: 3{extra}}}
where: {{{where}}}
"""


def make(folder: Path, base: Path, **options: str) -> tiny_run.RunDir:
    rows = tiny_run.random_rows(30, seed=5, longest=64, segments=3)
    return tiny_run.make_run(folder, text(base, **options), rows, rows[:4])


def last_error(run_dir: tiny_run.RunDir) -> str:
    return [e["error"]["code"] for e in events.read(run_dir.events_file) if e["event"] == "error"][-1]


def through_program(run_dir: tiny_run.RunDir) -> int:
    """As the launcher starts it: errors become events and exit codes."""

    def work() -> int:
        import logging
        import sys

        from stoker.engine import program, train

        logging.disable(logging.WARNING)
        sys.argv = ["train", str(run_dir.path)]
        return program.run(train.main)

    return tiny_run.in_child(work)


def test_a_damaged_newest_checkpoint_is_passed_over_and_the_run_ends_the_same(tmp_path: Path, base: Path) -> None:
    whole = make(tmp_path / "whole", base)
    assert tiny_run.train(whole) == 0
    hurt = make(tmp_path / "hurt", base)
    assert tiny_run.train(hurt, kill_after=9) == -9
    weights = hurt.checkpoints / "step-00000008" / "adapter_model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-5] ^= 1
    weights.write_bytes(bytes(raw))
    assert tiny_run.train(hurt) == 0
    attempts = [e for e in events.read(hurt.events_file) if e["event"] == "attempt"]
    assert [a["resumed_step"] for a in attempts] == [0, 4]
    rejected = [e for e in events.read(hurt.events_file) if e["event"] == "rejected"]
    assert rejected[0]["path"] == "step-00000008"
    assert tiny_run.losses(hurt) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(hurt.final) == tiny_run.weights_sha(whole.final)


def test_no_checkpoint_that_verifies_is_an_error_not_a_silent_restart(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir, kill_after=5) == -9
    (run_dir.checkpoints / "step-00000004" / "COMMIT.json").write_text("{")
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK403"


def test_a_strangers_folder_does_not_keep_a_new_run_from_starting(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    (run_dir.checkpoints / "step-00000007").mkdir(parents=True)
    (run_dir.checkpoints / "step-00000007" / "notes.txt").write_text("mine")
    assert tiny_run.train(run_dir) == 0
    (aside,) = (run_dir.checkpoints / checkpoints.QUARANTINE_NAME).iterdir()
    assert (aside / "notes.txt").read_text() == "mine"


def refusing(number: int) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOTCONN])
def test_a_start_on_a_disk_that_takes_nothing_is_an_error_in_words(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run_dir = make(tmp_path, base)
    monkeypatch.setattr(filesystem, "probe", refusing(number))
    assert through_program(run_dir) == 1
    (said,) = [e["error"] for e in events.read(run_dir.events_file) if e["event"] == "error"]
    assert (said["code"], said["fields"]["reason"]) == ("STK421", os.strerror(number))
    needed, free = (int(said["fields"][name].replace(",", "")) for name in ("needed", "free"))
    assert needed > 1 << 20
    assert free > 0
    assert said["fields"]["folder"] == str(run_dir.path)
    monkeypatch.setattr(lock, "held", refusing(number))  # not even the run directory can be written to
    monkeypatch.setattr(program, "EventLog", refusing(number))
    assert through_program(run_dir) == 1


def test_a_checkpoint_that_cannot_be_read_now_ends_the_attempt_and_stays_where_it_is(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir, stop_after=9) == 75
    steps, opened = [one.step for one in checkpoints.committed(run_dir.checkpoints)], io.open

    def refusing(file: Any, *how: Any, **options: Any) -> Any:
        if str(file).endswith(f"step-{steps[-1]:08d}/state.safetensors"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return opened(file, *how, **options)

    monkeypatch.setattr(io, "open", refusing)
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK440"
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == steps
    assert not (run_dir.checkpoints / ".quarantine").exists()


def test_too_little_room_is_said_before_the_disk_is_tried(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make(tmp_path, base)
    monkeypatch.setattr(filesystem, "probe", refusing(errno.ENOSPC))
    monkeypatch.setattr(files.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 10, 0))
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK407"


def test_another_micro_batch_is_said_to_be_sample_exact(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir, stop_after=5) == 75
    again = make(tmp_path, base, where="micro: 2")
    assert again.path == run_dir.path
    assert tiny_run.train(again) == 0
    attempts = [e for e in events.read(run_dir.events_file) if e["event"] == "attempt"]
    assert [a["tier"] for a in attempts] == ["EXACT", "SAMPLE-EXACT"]
    assert attempts[1]["changed"] == ["micro: 4 -> 2"]


def test_other_data_is_refused(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir, stop_after=5) == 75
    newest = checkpoints.committed(run_dir.checkpoints)[-1].path / "COMMIT.json"
    commit = files.read_json(newest)
    files.write_json(newest, checkpoints.sealed({**commit, "data_digest": "0" * 64}))
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK410"


def test_the_best_checkpoint_is_kept_and_becomes_the_result(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base, extra=", best: eval_loss")
    assert tiny_run.train(run_dir) == 0
    evals = {e["step"]: e["eval_loss"] for e in events.read(run_dir.events_file) if e["event"] == "eval"}
    best = min(evals, key=evals.__getitem__)
    kept = [c.step for c in checkpoints.committed(run_dir.checkpoints)]
    assert best in kept
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(run_dir.checkpoints / f"step-{best:08d}")


@pytest.mark.parametrize("name", ["COMMIT.json", "adapter_model.safetensors", ""])
def test_a_damaged_best_checkpoint_is_put_aside_and_the_last_one_becomes_the_result(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run_dir = make(tmp_path, base, extra=", best: eval_loss")
    rising = lambda self, items: {"loss": float(self.state.global_step + len([*items]))}  # noqa: E731
    monkeypatch.setattr(ExactTrainer, "mean_loss", rising)
    assert tiny_run.train(run_dir) == 0
    best, last = run_dir.checkpoints / "step-00000003", run_dir.checkpoints / "step-00000012"
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(best)
    (best / name).write_text("{") if name else shutil.rmtree(best)
    assert tiny_run.train(run_dir) == 0
    assert tiny_run.weights_sha(run_dir.final) == tiny_run.weights_sha(last)
    assert [e["path"] for e in events.read(run_dir.events_file) if e["event"] == "rejected"] == [best.name]
    assert [(e["best"], e["step"]) for e in events.read(run_dir.events_file) if e["event"] == "not_best"] == [(3, 12)]
    aside = run_dir.checkpoints / checkpoints.QUARANTINE_NAME / f"{best.name}.1"
    assert (aside / checkpoints.REASON_NAME).exists() == bool(name)
    assert not best.exists()


def test_a_stop_in_the_last_eval_commits_first_and_the_eval_is_done_by_the_next_start(
    tmp_path: Path, base: Path
) -> None:
    whole, stopped = (make(tmp_path / name, base, extra=", best: eval_loss") for name in ("whole", "stopped"))
    assert tiny_run.train(whole) == 0
    assert tiny_run.train(stopped, stop_after=12) == 75
    assert checkpoints.committed(stopped.checkpoints)[-1].commit.due == ["eval"]
    assert not stopped.final.exists()
    assert tiny_run.train(stopped) == 0
    assert tiny_run.losses(stopped) == tiny_run.losses(whole)
    evals = [
        [(e["step"], e["eval_loss"]) for e in events.read(one.events_file) if e["event"] == "eval"]
        for one in (whole, stopped)
    ]
    assert evals[0] == evals[1]
    assert tiny_run.weights_sha(stopped.final) == tiny_run.weights_sha(whole.final)


def test_a_stop_that_only_another_rank_hears_is_a_stop(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make(tmp_path, base, where="micro: 4, processes: 2")
    plain = callbacks.Schedule.on_step_end

    def asked(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if (state.global_step, self._ranks.rank) == (5, 1):
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, args, state, control, **kwargs)

    monkeypatch.setattr(callbacks.Schedule, "on_step_end", asked)
    assert tiny_run.train(run_dir) == 0
    ends = [(e["status"], e["step"]) for e in events.read(run_dir.events_file) if e["event"] == "end"]
    assert ends == [("stopped", 5)]


def test_the_trainers_own_record_does_not_grow_with_the_run(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir) == 0
    assert files.read_json(run_dir.checkpoints / "step-00000012" / "trainer_state.json")["log_history"] == []


def test_old_checkpoints_rotate_and_nothing_is_left_aside(tmp_path: Path, base: Path) -> None:
    rows = tiny_run.random_rows(30, seed=5, longest=64)
    run_dir = tiny_run.make_run(
        tmp_path, text(base).replace("keep: 3", "keep: 2").replace("4 steps", "2 steps"), rows, rows[:4]
    )
    assert tiny_run.train(run_dir) == 0
    assert sorted(p.name for p in run_dir.checkpoints.iterdir()) == ["step-00000010", "step-00000012"]


def test_a_loss_that_is_not_finite_ends_the_run_in_words(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    plan = files.read_json(run_dir.plan_file)
    plan["native"]["trainer"].update({"learning_rate": 1e30, "max_grad_norm": 0, "warmup_steps": 0})
    files.write_json(run_dir.plan_file, plan)
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK405"


@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_a_gradient_that_is_not_finite_ends_the_run_before_it_is_saved(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, clip: float
) -> None:
    import torch

    from stoker.engine import trainer

    run_dir = make(tmp_path, base)
    plan = files.read_json(run_dir.plan_file)
    plan["native"]["trainer"]["max_grad_norm"] = clip
    files.write_json(run_dir.plan_file, plan)
    plain = trainer.ExactSteps.training_step

    def poisoned(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = plain(self, *args, **kwargs)
        if self.state.global_step == 3:  # the fourth step is a save step
            self._trainable[0].grad[0] = float("nan")
        return loss

    monkeypatch.setattr(trainer.ExactSteps, "training_step", poisoned)
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK416"
    assert not checkpoints.committed(run_dir.checkpoints)


def test_a_second_trainer_in_the_same_directory_leaves_at_once(tmp_path: Path, base: Path) -> None:
    from stoker.rundir import lock

    run_dir = make(tmp_path, base)
    with lock.held(run_dir.lock_file):
        assert tiny_run.train(run_dir) == 1
    assert not run_dir.events_file.exists()


def test_the_stop_file_is_a_stop(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.engine import callbacks

    run_dir = make(tmp_path, base)
    plain = callbacks.Schedule.on_step_end

    def asked(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == 6:
            run_dir.stop_file.touch()
        return plain(self, args, state, control, **kwargs)

    monkeypatch.setattr(callbacks.Schedule, "on_step_end", asked)
    assert tiny_run.train(run_dir) == 75
    monkeypatch.undo()
    assert tiny_run.train(run_dir) == 0
    assert [e["resumed_step"] for e in events.read(run_dir.events_file) if e["event"] == "attempt"] == [0, 6]


@pytest.mark.parametrize("moment", ["before the model is loaded", "before the rehearsal", "after the rehearsal"])
def test_a_stop_before_the_first_step_ends_without_one(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    from stoker.engine import rehearsal, resume, train

    run_dir = make(tmp_path, base)
    at, when = {
        "before the model is loaded": (resume, "newest"),
        "before the rehearsal": (train, "_announce"),
        "after the rehearsal": (rehearsal, "rehearse"),
    }[moment]
    plain = getattr(at, when)

    def asked(*args: Any, **kwargs: Any) -> Any:
        run_dir.stop_file.touch()
        return plain(*args, **kwargs)

    monkeypatch.setattr(at, when, asked)
    assert tiny_run.train(run_dir) == 75
    monkeypatch.undo()
    found = list(events.read(run_dir.events_file))
    assert [(e["status"], e["step"]) for e in found if e["event"] == "end"] == [("stopped", 0)]
    assert not [e for e in found if e["event"] in ("step", "error")]
    assert [e["event"] for e in found].count("attempt") == (moment != "before the model is loaded")
    assert not checkpoints.committed(run_dir.checkpoints)
    assert not run_dir.stop_file.exists()
    assert tiny_run.train(run_dir) == 0


def test_a_cut_data_file_is_refused(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    tokens = run_dir.data / "eval/shard-00000/tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-4])
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK311"


def test_an_adapter_goes_on_on_another_base_model_only_if_told(tmp_path: Path) -> None:
    first = tiny_run.make_base_model(tmp_path / "base")
    run_dir = make(tmp_path / "run", first)
    assert tiny_run.train(run_dir, stop_after=5) == 75
    tiny_run.make_base_model(tmp_path / "base", seed=1)
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK410"
    told = make(tmp_path / "run", first, extra=", resume: any")
    assert tiny_run.train(told) == 0
    tiers = [e["tier"] for e in events.read(run_dir.events_file) if e["event"] == "attempt"]
    assert tiers == ["EXACT", "OTHER"]


def test_what_is_not_exact_is_refused_where_exact_was_asked_for(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base, extra=", resume: exact")
    assert tiny_run.train(run_dir, stop_after=5) == 75
    make(tmp_path, base, extra=", resume: exact", where="micro: 2")
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK420"


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir) == 0
    names = {p.name for p in run_dir.checkpoints.rglob("*") if p.is_file()}
    assert {"adapter_model.safetensors", "state.safetensors", "state.json", "COMMIT.json"} <= names
    assert not [n for n in names if n.endswith((".bin", ".pt", ".pth", ".pkl"))]


def test_an_eight_bit_optimizer_resumes_exactly(tmp_path: Path, base: Path) -> None:
    def run(name: str) -> tiny_run.RunDir:
        rows = tiny_run.random_rows(30, seed=5, longest=64, segments=3)
        words = (
            text(base).replace("learning_rate", "optimizer: adamw_8bit, learning_rate").replace("rank: 4", "rank: 64")
        )
        return tiny_run.make_run(tmp_path / name, words, rows, rows[:4])

    whole, killed = run("whole"), run("killed")
    assert tiny_run.train(whole) == 0, (whole.path / "child.log").read_text()[-2000:]
    assert tiny_run.train(killed, kill_after=6) == -9
    assert tiny_run.train(killed) == 0
    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    assert tiny_run.weights_sha(killed.final) == tiny_run.weights_sha(whole.final)


def test_events_name_every_sequence_of_every_step(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir) == 0
    from stoker.rows.order import Order

    digest = json.loads((run_dir.data / "report.json").read_text())["digest"]
    order = Order(digest, 42, 30, 8)
    assert tiny_run.sequences(run_dir) == {step: order.sequences(step - 1) for step in range(1, 13)}


def test_tensorboard_files_land_in_the_run_directory(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make(tmp_path, base)
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(run_dir.logs / "tensorboard"))
    assert tiny_run.train(run_dir) == 0
    assert list((run_dir.logs / "tensorboard").glob("events.out.tfevents.*"))


def test_processes_that_read_data_change_nothing(tmp_path: Path, base: Path) -> None:
    alone, helped = make(tmp_path / "alone", base), make(tmp_path / "helped", base, where="micro: 4, workers: 2")
    assert tiny_run.train(alone) == 0
    assert tiny_run.train(helped, kill_after=6) == -9
    assert tiny_run.train(helped) == 0
    assert tiny_run.losses(helped) == tiny_run.losses(alone)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir) == 0
    before = tiny_run.weights_sha(run_dir.final)
    shutil.rmtree(run_dir.artifacts)
    assert tiny_run.train(run_dir) == 0
    assert len([e for e in events.read(run_dir.events_file) if e["event"] == "attempt"]) == 1
    assert tiny_run.weights_sha(run_dir.final) == before


def test_a_finished_model_that_is_whole_stays_as_it_is(tmp_path: Path, base: Path) -> None:
    """What was exported of it is served only where it is not older."""
    run_dir = make(tmp_path, base)
    assert tiny_run.train(run_dir) == 0
    made = run_dir.final.stat()
    assert tiny_run.train(run_dir) == 0
    assert (run_dir.final.stat().st_ino, run_dir.final.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    sha = tiny_run.weights_sha(run_dir.final)
    weights = next(run_dir.final.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    assert tiny_run.train(run_dir) == 0
    assert tiny_run.weights_sha(run_dir.final) == sha


def test_the_rehearsal_changes_nothing(tmp_path: Path, base: Path) -> None:
    """A run whose rehearsal is left out has the same bits; one whose rehearsal is written down has all its parts."""
    with_it = make(tmp_path / "with", base)
    assert tiny_run.train(with_it) == 0
    parts = [e["part"] for e in events.read(with_it.events_file) if e["event"] == "rehearsal"]
    assert parts == ["causality", "step", "eval", "save"]
    from stoker.engine import rehearsal

    kept: Any = rehearsal.rehearse
    rehearsal.rehearse = lambda *_, **__: None
    try:
        without = make(tmp_path / "without", base)
        assert tiny_run.train(without) == 0
    finally:
        rehearsal.rehearse = kept
    assert tiny_run.losses(with_it) == tiny_run.losses(without)


def test_a_full_disk_is_found_in_the_rehearsal(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make(tmp_path, base)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK407"
    assert not tiny_run.losses(run_dir)


def test_a_run_whose_checkpoints_were_deleted_is_not_trained_again(tmp_path: Path, base: Path) -> None:
    run_dir = make(tmp_path, base)
    assert through_program(run_dir) == 0
    made = artifacts.digest(run_dir.final)
    shutil.rmtree(run_dir.checkpoints)
    assert through_program(run_dir) == 0  # done, and its model is there
    assert len([e for e in events.read(run_dir.events_file) if e["event"] == "step"]) == 12
    assert artifacts.digest(run_dir.final) == made
    shutil.rmtree(run_dir.final)
    assert through_program(run_dir) == 1
    assert last_error(run_dir) == "STK403"
    assert len([e for e in events.read(run_dir.events_file) if e["event"] == "step"]) == 12


def test_deterministic_kernels_do_not_fill_memory_that_is_written_anyway() -> None:
    import torch

    from stoker.engine import deterministic

    try:
        deterministic.use_deterministic_kernels()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        torch.utils.deterministic.fill_uninitialized_memory = True
