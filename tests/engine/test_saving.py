"""Saves beside the training: what stalls, what is dropped, what is tried again, and what surfaces."""

import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.engine import host_copies, saving
from stoker.engine.parallel import Ranks
from stoker.engine.saving import Copied, SaveJob, Saver
from stoker.engine.writers import Writers
from stoker.rundir import checkpoints, events, filesystem
from stoker.rundir.events import EventLog

pytestmark = pytest.mark.filterwarnings("default")

FACTS: dict[str, Any] = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {}}


def saver(folder: Path, *, background: bool = True, **more: Any) -> Saver:
    return Saver(folder / "checkpoints", EventLog(folder / "events.jsonl"), keep=2, background=background, **more)


def write(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"w" * 1000)


def job(step: int, writer: Callable[[Path], None] = write, **more: Any) -> SaveJob:
    return SaveJob(step=step, copied=Copied(writer, 1000), facts=FACTS, best=None, stall_seconds=0.01, **more)


def kinds(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(folder / "events.jsonl") if event["event"] == kind]


def failing(error: BaseException) -> Callable[[Path], None]:
    def writer(folder: Path) -> None:
        write(folder)
        raise error

    return writer


def test_training_goes_on_while_a_save_is_written_and_the_next_one_waits(tmp_path: Path) -> None:
    may, order = threading.Event(), []

    def slow(folder: Path) -> None:
        may.wait(20)
        order.append(1)
        write(folder)

    one = saver(tmp_path)
    one.begin(job(1, slow))
    assert one.committed == -1
    threading.Timer(0.1, may.set).start()
    one.begin(job(2, lambda folder: (order.append(2), write(folder))))
    one.wait()
    assert order == [1, 2]
    assert one.committed == 2


def test_in_the_foreground_a_save_is_over_when_begin_returns(tmp_path: Path) -> None:
    one = saver(tmp_path, background=False)
    one.begin(job(3))
    assert one.committed == 3
    assert kinds(tmp_path, "checkpoint")[0]["stall_seconds"] >= 0.01


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EIO, "Input/output error"),
        Exception("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_save_that_a_disk_refuses_is_dropped_and_said(tmp_path: Path, error: Exception) -> None:
    one = saver(tmp_path)
    one.begin(job(1))
    one.begin(job(2, failing(error)))
    one.wait()
    assert one.failed
    assert one.committed == 1
    (said,) = kinds(tmp_path, "save_failed")
    assert said["error"]["code"] == "STK419"
    assert said["needed_bytes"] >= 1000
    assert said["error"]["fields"]["needed"] == f"{said['needed_bytes']:,}"
    assert [c.step for c in checkpoints.committed(one.folder)] == [1]
    assert [p.name for p in one.folder.iterdir()] == ["step-00000001"]


def test_a_dropped_save_is_tried_again_after_a_growing_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    one = saver(tmp_path)
    pauses = []
    for step in (1, 2, 3):
        one.begin(job(step, failing(OSError(errno.ENOSPC, ""))))
        one.wait()
        pauses.append(kinds(tmp_path, "save_failed")[-1]["retry_seconds"])
        assert not one.is_due(due=True)
        now[0] += pauses[-1]
        assert one.is_due(due=False)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1]
    one.begin(job(4))
    one.wait()
    assert not one.failed
    assert one.is_due(due=True)
    assert not one.is_due(due=False)


def test_a_full_disk_is_not_filled_to_the_last_byte_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[Path] = []
    monkeypatch.setattr(filesystem, "room", lambda folder: filesystem.Room(10, None))
    one = saver(tmp_path)
    one.begin(job(1, wrote.append))
    one.wait()
    assert one.failed
    assert not wrote


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESTALE])
def test_a_mount_that_is_gone_is_said_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def gone(folder: Path) -> Any:
        raise OSError(number, "gone")

    monkeypatch.setattr(filesystem, "room", gone)
    one = saver(tmp_path)
    one.begin(job(1))
    one.wait()
    assert (one.failed, one.refused) == (True, number)
    (said,) = kinds(tmp_path, "save_failed")
    assert (said["error"]["code"], said["free_bytes"]) == ("STK419", None)


def test_a_save_that_cannot_be_read_back_is_dropped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = saver(tmp_path)
    for step in (1, 2):
        one.begin(job(step))
    one.wait()
    with monkeypatch.context() as broken:
        broken.setattr(checkpoints, "verify", lambda *_, **__: "model.safetensors has another digest")
        one.begin(job(3))
        one.wait()
    assert (one.failed, one.committed) == (True, 2)
    assert [event["step"] for event in kinds(tmp_path, "save_failed")] == [3]
    assert [event["step"] for event in kinds(tmp_path, "checkpoint")] == [1, 2]
    one.settle(job(4))
    assert (one.failed, one.committed) == (False, 4)


def test_what_no_disk_is_to_blame_for_surfaces(tmp_path: Path) -> None:
    one = saver(tmp_path)
    one.begin(job(1, failing(KeyError("a bug"))))
    with pytest.raises(KeyError):
        one.wait()


def test_what_was_not_written_whole_is_not_committed(tmp_path: Path) -> None:
    def tokenizer_only(folder: Path) -> None:
        (folder / "tokenizer.json").write_bytes(b"t" * 5000)
        (folder / "model.safetensors").write_bytes(b"w" * 999)

    one = saver(tmp_path)
    one.begin(job(1))
    one.begin(job(2, tokenizer_only))
    one.wait()
    assert (one.failed, one.committed, one.refused) == (True, 1, errno.EIO)
    assert [p.name for p in one.folder.iterdir()] == ["step-00000001"]
    one.settle(job(2))
    assert one.committed == 2


def test_what_ended_the_training_is_not_covered_by_a_surprise_but_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = saver(tmp_path)
    one.begin(job(1, failing(KeyError("a bug"))))
    one.join()
    assert "a bug" in capsys.readouterr().err
    with pytest.raises(KeyError):
        one.wait()


def test_tied_weights_are_counted_once() -> None:
    from types import SimpleNamespace

    import torch

    from stoker.engine.trainer import ExactSteps

    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    state = SimpleNamespace(gather=lambda take: ({}, {}))
    plan = SimpleNamespace(strategy="single")
    parts = {"model": model, "processing_class": None, "state": None}
    trainer: Any = SimpleNamespace(_plan=plan, _training_state=state, **parts)
    assert ExactSteps.copied(trainer, Writers()).bytes == 8 * 8 * 4


def test_the_last_save_of_a_run_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_LAST_TRIES_SECONDS", (0.0, 0.0, 0.0))
    tries: list[int] = []

    def second_time(folder: Path) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "")
        write(folder)

    one, last = saver(tmp_path), job(9, second_time)
    one.begin(last)
    one.settle(last)
    assert one.committed == 9
    assert len(tries) == 3


def test_a_dropped_save_of_the_best_step_is_kept_and_written_first(tmp_path: Path) -> None:
    tries: list[int] = []

    def once_refused(folder: Path) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "")
        write(folder)

    one = saver(tmp_path)
    one.begin(SaveJob(2, Copied(once_refused, 1000), FACTS, best=2, stall_seconds=0.0))
    one.wait()
    assert one.failed
    one.begin(SaveJob(5, Copied(write, 1000), FACTS, best=2, stall_seconds=0.0))
    one.wait()
    assert [c.step for c in checkpoints.committed(one.folder)] == [2, 5]
    assert one.committed == 5
    one.begin(SaveJob(8, Copied(write, 1000), FACTS, best=2, stall_seconds=0.0))
    one.wait()
    assert len(tries) == 2


def test_the_auto_interval_follows_the_measured_cost(tmp_path: Path) -> None:
    one = saver(tmp_path, between_failures_seconds=7200.0)
    assert one.interval_seconds == saving._UNMEASURED_SECONDS
    one.measure(stall_seconds=0.5, write_seconds=3.0, size_bytes=10)
    assert one.interval_seconds == pytest.approx((2 * 0.5 * 7200) ** 0.5)
    slower = saver(tmp_path, between_failures_seconds=7200.0, shares_cores=True)
    slower.measure(stall_seconds=0.5, write_seconds=3.0, size_bytes=10)
    assert slower.interval_seconds > one.interval_seconds
    assert kinds(tmp_path, "interval")


def test_a_check_beside_the_training_ends_the_run_before_anything_more_is_committed(tmp_path: Path) -> None:
    one = saver(tmp_path)

    def check() -> None:
        raise ValueError("the data is not what was prepared")

    one.require(check)
    time.sleep(0.05)
    assert not one._surprise, "not before the processes that read data are there"
    one.start_checks()
    deadline = time.monotonic() + 10
    while not one._surprise and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ValueError, match="not what was prepared"):
        one.begin(job(1))
    assert not one.folder.exists()


def test_a_loaded_shard_holds_no_more_than_itself(tmp_path: Path) -> None:
    """Neither the file, which rotation takes away, nor the whole tensor it was cut from."""
    import torch
    import torch.distributed as dist
    from safetensors import safe_open
    from safetensors.torch import save_file
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from stoker.engine import checkpoint

    save_file({"moment": torch.arange(4096.0).view(64, 64)}, tmp_path / "state.safetensors")
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (4,))
        parameter = distribute_tensor(torch.zeros(64, 64), mesh, [Shard(0)], src_data_rank=None)
        with safe_open(tmp_path / "state.safetensors", framework="pt") as tensors:
            shard = checkpoint._value({"tensor": "moment"}, tensors, parameter).to_local()
            whole = checkpoint._value({"tensor": "moment"}, tensors, torch.zeros(64, 64))
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()
    assert shard[0, 0] == 16 * 64
    assert shard.untyped_storage().nbytes() == 16 * 64 * 4
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "state.safetensors" in line]
    assert (mapped, whole[1, 0]) == ([], 64)


def test_copies_are_contiguous_and_nobody_elses() -> None:
    """8-bit optimizers share their code books; a buffer on a CPU is where training goes on."""
    import torch

    from stoker.engine import checkpoint

    live = torch.arange(6.0).view(2, 3).t()
    one, two = (checkpoint.kept(live, host_copies.plain, keep=True) for _ in range(2))
    assert one.is_contiguous()
    assert torch.equal(one, live)
    assert len({one.data_ptr(), two.data_ptr(), live.data_ptr()}) == 3
    assert checkpoint.kept(live, host_copies.plain, keep=False).numel() == 0


def test_zeros_buffers_are_copies_and_kept_by_the_writer_only() -> None:
    import torch

    from stoker.engine import zero

    model = torch.nn.BatchNorm1d(2)
    copied = zero._persistent_buffers(model, Writers().take)
    assert copied["running_mean"].data_ptr() != model.running_mean.data_ptr()
    other = Writers(Ranks(rank=1, world=2))
    assert zero._persistent_buffers(model, other.take)["running_mean"].numel() == 0


def test_a_heart_beats_on_after_a_disk_was_gone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.engine import guard

    monkeypatch.setattr(guard, "_BEAT_SECONDS", 0.0)
    heart = guard.Heartbeat(tmp_path / "folder" / "heartbeat")
    heart.beat()
    (tmp_path / "folder").mkdir()
    heart.beat()
    assert (tmp_path / "folder" / "heartbeat").exists()


def test_a_stop_file_on_a_mount_that_is_gone_is_no_stop_and_no_error() -> None:
    import signal

    from stoker.engine import callbacks

    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        assert not callbacks.StopRequest(Path("x" * 300)).requested  # ENAMETOOLONG, for ENOTCONN
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)


def test_the_scaler_comes_back_with_the_state(tmp_path: Path) -> None:
    """The Trainer has no loss scaler on a CPU; its state goes the same way as on a GPU."""
    import torch

    from stoker.engine import checkpoint

    def state(scale: float) -> tuple[checkpoint.TrainingState, Any]:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=7)
        return checkpoint.TrainingState(model, optimizer, schedule, scaler), scaler

    before, scaler = state(2.0**14)
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    scaler._growth_tracker.fill_(5)
    index, tensors = before.gather(Writers().take)
    checkpoint.save_state(tmp_path, index, tensors)
    after, fresh = state(2.0**8)
    after.load(tmp_path, 0)
    assert fresh.state_dict() == scaler.state_dict()
    assert fresh.state_dict()["_growth_tracker"] == 5
