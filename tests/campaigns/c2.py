"""C2: power cuts. The real commit code on a loop-mounted ext4 image; the image is copied while the writer stands still.

A copy of a mounted image is what a disk holds when the power goes: what was synced, and what the kernel happened to
have written. Every checkpoint that was acknowledged before the cut must be there and verify. Needs root and Linux.
Controls: files are not synced, folders are not, nothing is, the old checkpoint goes before the new one is there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from campaign import Campaign

from stoker.rundir import checkpoints, files

IMAGE_BYTES = 96 << 20
FACTS: dict[str, Any] = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {}}
CUTS_PER_MOUNT = 40
CONTROL_CUTS = 25
CONTROL_TURNS = 4
"""Until it is caught: a cut has to fall into a gap of milliseconds."""
KEEP = 2


def run(campaign: Campaign) -> None:
    """Half of the cuts where the rename is the commit, half where the record is."""
    for renames in (True, False):
        share = campaign.n - campaign.n // 2 if renames else campaign.n // 2
        for number in range(0, share, CUTS_PER_MOUNT):
            count = min(CUTS_PER_MOUNT, share - number)
            _mount_and_cut(campaign, f"{'rename' if renames else 'record'}-{number}", count, renames=renames)
    for name, change in CONTROLS.items():
        for turn in range(CONTROL_TURNS):
            cuts = min(CONTROL_CUTS, max(6, campaign.n // 10))
            _mount_and_cut(campaign, name, cuts, renames=True, change=change, turn=turn)
            if campaign.controls[name]["caught"]:
                break


def _mount_and_cut(
    campaign: Campaign,
    name: str,
    count: int,
    *,
    renames: bool,
    change: Callable[[], None] | None = None,
    turn: int = 0,
) -> None:
    """One image, one writer, several cuts."""
    random = campaign.random(name, turn)
    acknowledged = campaign.folder / f"{name}.ack"
    acknowledged.write_text("-1 0\n")
    with _mounted(campaign.folder / f"{name}.img") as (image, mount):
        pid = os.fork()
        if pid == 0:
            _write_forever(mount / "checkpoints", acknowledged, random.random(), renames=renames, change=change)
        try:
            _until(lambda: _last(acknowledged) >= 2)
            cuts = [_cut(campaign, name, number, pid, image, acknowledged, random) for number in range(count)]
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for number, (copy, step) in enumerate(cuts):
        wrong = _judge(copy, step)
        if change is not None:
            campaign.control(name, caught=bool(wrong), what=wrong)
            continue
        if wrong:
            campaign.fail([name, number], wrong)
        campaign.case("rename is the commit" if renames else "record is the commit")
        campaign.counts["checkpoints acknowledged"] = max(campaign.counts["checkpoints acknowledged"], step)


def _cut(
    campaign: Campaign, name: str, number: int, pid: int, image: Path, acknowledged: Path, random: Any
) -> tuple[Path, int]:
    """Stop the writer, all its threads, between two instructions, copy the disk under it, let it go on."""
    time.sleep(random.uniform(0.005, 0.15))
    os.kill(pid, signal.SIGSTOP)
    _until(lambda: _states(pid) == {"T"})
    copy = campaign.folder / f"{name}-{number}.cut"
    subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    step = _last(acknowledged)
    os.kill(pid, signal.SIGCONT)
    return copy, step


def _judge(copy: Path, acknowledged: int) -> str:
    """What a machine finds that is switched on again; nothing where all is well."""
    mount = copy.with_suffix(".mnt")
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(copy), str(mount)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        return f"the image does not mount: {mounted.stderr}"
    try:
        folder = mount / "checkpoints"
        checkpoints.sweep(folder)
        found, rejected = checkpoints.newest_verified(folder)
        if found is None or found.step < acknowledged:
            return f"step {acknowledged} was acknowledged, found {found and found.step}, rejected {rejected}"
        if rejected:
            return f"rejected {rejected}"
        return _content(found.path, found.step)
    finally:
        subprocess.run(["umount", str(mount)], check=True)
        mount.rmdir()
        copy.unlink()


def _content(path: Path, step: int) -> str:
    from safetensors import safe_open

    with safe_open(path / "model.safetensors", framework="np") as tensors:
        value = tensors.get_tensor("w")
    return "" if (value == step).all() else f"step {step} holds other weights"


# ---- the writer


def _write_forever(
    folder: Path, acknowledged: Path, seed: float, *, renames: bool, change: Callable[[], None] | None
) -> None:
    """Commit, rotate, acknowledge; runs until it is killed."""
    try:
        if change:
            change()
        import numpy
        from safetensors.numpy import save_file

        generator = numpy.random.default_rng(int(seed * 1e9))
        step = 0
        while True:
            step += 1
            with checkpoints.writing(folder, step, renames=renames, **FACTS) as aside:
                save_file({"w": numpy.full(1 << 15, step, dtype=numpy.float32)}, aside / "model.safetensors")
                noise = generator.integers(0, 255, int(generator.integers(1000, 400_000)), dtype=numpy.uint8)
                save_file({"s": noise}, aside / "state.safetensors")
                (aside / "state.json").write_text(f'{{"step": {step}}}')
            checkpoints.rotate(folder, KEEP, set(), renames=renames)
            with acknowledged.open("a") as file:
                file.write(f"{step} {time.time()}\n")
    except BaseException:
        import traceback

        acknowledged.with_suffix(".log").write_text(traceback.format_exc())
    finally:
        os._exit(1)


def _no_file_sync() -> None:
    files.sync_file = lambda path: None  # type: ignore[assignment]


def _no_folder_sync() -> None:
    files.sync_folder = lambda path: None  # type: ignore[assignment]


def _old_one_first() -> None:
    plain = checkpoints.writing

    @contextlib.contextmanager
    def writing(folder: Path, step: int, **options: Any) -> Iterator[Path]:
        if folder.is_dir():
            for old in checkpoints.committed(folder):
                shutil.rmtree(old.path)
            os.sync()
        with plain(folder, step, **options) as aside:
            yield aside

    checkpoints.writing = writing  # type: ignore[assignment]
    checkpoints.rotate = lambda *_, **__: []  # type: ignore[assignment]


def _nothing_synced() -> None:
    """As `torch.save` and safetensors leave it."""
    os.fsync = lambda descriptor: None  # type: ignore[assignment]


CONTROLS: dict[str, Callable[[], None]] = {
    "files are not synced": _no_file_sync,
    "folders are not synced": _no_folder_sync,
    "the old one goes first": _old_one_first,
    "nothing is synced": _nothing_synced,
}


# ---- the disk


@contextlib.contextmanager
def _mounted(image: Path) -> Iterator[tuple[Path, Path]]:
    mount = image.with_suffix(".mnt")
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    # The journal is written when somebody syncs, not every 5 seconds: that is the worst case a disk may give us.
    subprocess.run(["mount", "-o", "loop,commit=600", str(image), str(mount)], check=True)
    try:
        yield image, mount
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(mount)], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        mount.rmdir()
        image.unlink()


def _until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.002)


def _states(pid: int) -> set[str]:
    """Of all threads: one that still syncs is not stopped yet, whatever the first one does."""
    try:
        return {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")}
    except (FileNotFoundError, ProcessLookupError):
        return {"a thread ended meanwhile"}


def _last(acknowledged: Path) -> int:
    lines = acknowledged.read_text().splitlines()
    return int(lines[-1].split()[0])


if sys.platform != "linux":
    raise RuntimeError("power cuts are made with Linux' loop devices")
