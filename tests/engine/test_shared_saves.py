"""Each rank writes its own share of a checkpoint: what that costs, and what is left when ranks die or disks refuse."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from shared_saves import counted, make, rank
from tiny_run import replaced, said

from stoker.engine import spread
from stoker.engine.shares import Share
from stoker.rundir import checkpoints, events

pytestmark = pytest.mark.filterwarnings("default")

WITHIN = 1.25
"""Of the N-th part of a checkpoint, that each of N ranks may write."""
THIRD = 3
"""The share of step 4: the rehearsal's is the first, that of step 2 the second."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base", width=72)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, base: Path) -> str:
    """The weights of a run that one process trained and saved."""
    run_dir = make(tmp_path_factory.mktemp("whole"), base, 1, "auto")
    assert tiny_run.train(run_dir) == 0, said(run_dir)
    return tiny_run.weights_sha(run_dir.final)


def kinds(run_dir: Any, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind]


@pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="reads the kernel's counts")
def test_what_a_rank_sends_and_writes_falls_with_their_number(tmp_path: Path) -> None:
    """With the first rank alone as the control: it writes all, and all send what they hold."""
    wide = tiny_run.make_base_model(tmp_path / "wide", width=288)
    for ranks in (1, 2, 4):
        run_dir = make(tmp_path / str(ranks), wide, ranks, "fsdp2", "1000 steps")
        counts = counted(run_dir)
        (saved,) = kinds(run_dir, "checkpoint")
        assert (len(counts), saved["writers"]) == (ranks, ranks)
        part = saved["bytes"] / ranks
        assert all(part / WITHIN <= one["written"] <= part * WITHIN for one in counts), (part, counts)
        assert all(one["sent"] <= part * (WITHIN - 1) for one in counts), (part, counts)
    alone = make(tmp_path / "alone", wide, 2, "fsdp2", "1000 steps")
    with replaced(spread, "is_shared", lambda *_: False):
        counts = counted(alone)
    (saved,) = kinds(alone, "checkpoint")
    assert saved["writers"] == 1
    assert counts[0]["written"] > saved["bytes"] / 2 * WITHIN
    assert counts[1]["sent"] > saved["bytes"] / 2 * (WITHIN - 1)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_in_its_share_leaves_the_checkpoint_before(
    tmp_path: Path, base: Path, whole: str, victim: int
) -> None:
    run_dir, seen = make(tmp_path, base, 2), []

    def dying(plain: Any, share: Share, folder: Path) -> int:
        seen.append(folder)
        if len(seen) == THIRD and rank() == victim:
            share.files[0].write(folder)
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(share, folder)

    with replaced(Share, "write", dying):
        assert tiny_run.train(run_dir) == -signal.SIGKILL, said(run_dir)
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [2]
    assert tiny_run.train(run_dir) == 0, said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == whole
    assert [event["resumed_step"] for event in kinds(run_dir, "attempt")] == [0, 2]


def test_one_record_covers_all_shares(tmp_path: Path, base: Path, whole: str) -> None:
    """Killed after it was written and before the rename: the next start finds every file as it says, and renames."""
    run_dir = make(tmp_path, base, 2)

    def dying(plain: Any, folder: Path, final: Path) -> None:
        if final.name == checkpoints.folder_name(4):
            os.kill(os.getpid(), signal.SIGKILL)
        plain(folder, final)

    with replaced(checkpoints, "_put", dying):
        assert tiny_run.train(run_dir) == -signal.SIGKILL, said(run_dir)
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [2]
    assert tiny_run.train(run_dir) == 0, said(run_dir)
    assert tiny_run.weights_sha(run_dir.final) == whole
    assert [event["resumed_step"] for event in kinds(run_dir, "attempt")] == [0, 4]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_share_that_a_disk_refuses_drops_the_save_on_every_rank(
    tmp_path: Path, base: Path, whole: str, victim: int
) -> None:
    run_dir, seen = make(tmp_path, base, 2), []

    def refused(plain: Any, share: Share, folder: Path) -> int:
        seen.append(folder)
        if len(seen) == THIRD and rank() == victim:
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(share, folder)

    with replaced(Share, "write", refused):
        assert tiny_run.train(run_dir) == 0, said(run_dir)
    (dropped,) = kinds(run_dir, "save_failed")
    assert (dropped["step"], dropped["error"]["code"]) == (4, "STK419")
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [2, 5]
    assert tiny_run.weights_sha(run_dir.final) == whole


@pytest.mark.parametrize("what", ["bytes", "layout"])
def test_a_rank_that_writes_something_else_ends_the_run(tmp_path: Path, base: Path, what: str) -> None:
    """Negative control: nothing is committed of files with a hole in them, or that ranks lay out differently."""
    run_dir = make(tmp_path, base, 2)

    def other(plain: Any, share: Share, folder: Path) -> int:
        return 0 if rank() else plain(share, folder)

    if what == "bytes":
        with replaced(Share, "write", other):
            assert tiny_run.train(run_dir) not in (0, 75)
    else:
        plain = Share.layout
        Share.layout = property(lambda share: f"{rank()}")  # in the forked children
        try:
            assert tiny_run.train(run_dir) not in (0, 75)
        finally:
            Share.layout = plain
    assert checkpoints.committed(run_dir.checkpoints) == []
    assert ("bytes of a checkpoint were written" if what == "bytes" else "in different ways") in said(run_dir)
