"""C2: power cuts. The real commit code on a loop-mounted ext4 image; the image is copied while the writer stands still.

A copy of a mounted image is what a disk holds when the power goes: what was synced, and what the kernel happened to
have written. Every checkpoint that was acknowledged before the cut must be there and verify. Needs root and Linux.
In the last kind two ranks write a share each, by the code of the trainer. Controls: files are not synced, folders are
not, nothing is, the old checkpoint goes before the new one is there, a rank's share stays away.
"""

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from campaign import Campaign

from stoker.engine.parallel import Ranks
from stoker.engine.shares import Part, Share, SharedFile
from stoker.engine.writers import Writers
from stoker.rundir import checkpoints, files

IMAGE_BYTES = 96 << 20
FACTS: dict[str, Any] = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {}}
CUTS_PER_MOUNT = 40
CONTROL_CUTS = 25
CONTROL_TURNS = 4
"""Until it is caught: a cut has to fall into a gap of milliseconds."""
KEEP = 2
VALUES = 1 << 15
KINDS = ("rename is the commit", "record is the commit", "two ranks write shares")


def run(campaign: Campaign) -> None:
    """As many cuts of each kind."""
    for index, kind in enumerate(KINDS):
        share = len(range(index, campaign.n, len(KINDS)))
        for number in range(0, share, CUTS_PER_MOUNT):
            _mount_and_cut(campaign, f"{index}-{number}", min(CUTS_PER_MOUNT, share - number), kind)
    for name, (kind, change) in CONTROLS.items():
        for turn in range(CONTROL_TURNS):
            cuts = min(CONTROL_CUTS, max(6, campaign.n // 10))
            _mount_and_cut(campaign, name, cuts, kind, change=change, turn=turn)
            if campaign.controls[name]["caught"]:
                break


def _mount_and_cut(
    campaign: Campaign, name: str, count: int, kind: str, *, change: Callable[[], None] | None = None, turn: int = 0
) -> None:
    """One image, one writer of one or two ranks, several cuts."""
    random = campaign.random(name, turn)
    acknowledged = campaign.folder / f"{name}.ack"
    acknowledged.write_text("-1 0\n")
    with _mounted(campaign.folder / f"{name}.img") as (image, mount):
        seed, folder = random.random(), mount / "checkpoints"
        if kind == KINDS[-1]:
            acknowledged.with_suffix(".group").unlink(missing_ok=True)
            ranks = (0, 1)
            pids = [_forked(acknowledged, change, _share_forever, folder, acknowledged, seed, rank) for rank in ranks]
        else:
            write = functools.partial(_write_forever, renames=kind == KINDS[0])
            pids = [_forked(acknowledged, change, write, folder, acknowledged, seed)]
        try:
            _until(lambda: _last(acknowledged) >= 2)
            cuts = [_cut(campaign, name, number, pids, image, acknowledged, random) for number in range(count)]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    for number, (copy, step) in enumerate(cuts):
        wrong = _judge(copy, step)
        if change is not None:
            campaign.control(name, caught=bool(wrong), what=wrong)
            continue
        if wrong:
            campaign.fail([name, number], wrong)
        campaign.case(kind)
        campaign.counts["checkpoints acknowledged"] = max(campaign.counts["checkpoints acknowledged"], step)


def _cut(
    campaign: Campaign, name: str, number: int, pids: list[int], image: Path, acknowledged: Path, random: Any
) -> tuple[Path, int]:
    """Stop the writer, all its threads, between two instructions, copy the disk under it, let it go on."""
    time.sleep(random.uniform(0.005, 0.15))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    _until(lambda: all(_states(pid) == {"T"} for pid in pids))
    copy = campaign.folder / f"{name}-{number}.cut"
    subprocess.run(["cp", "--sparse=always", str(image), str(copy)], check=True)
    step = _last(acknowledged)
    for pid in pids:
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


def _forked(acknowledged: Path, change: Callable[[], None] | None, write: Callable[..., None], *arguments: Any) -> int:
    """A process that writes until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if change:
            change()
        write(*arguments)
    except BaseException:
        import traceback

        acknowledged.with_suffix(".log").write_text(traceback.format_exc())
    finally:
        os._exit(1)


def _write_forever(folder: Path, acknowledged: Path, seed: float, *, renames: bool) -> None:
    """Commit, rotate, acknowledge."""
    import numpy
    from safetensors.numpy import save_file

    generator = numpy.random.default_rng(int(seed * 1e9))
    for step in itertools.count(1):
        with checkpoints.writing(folder, step, renames=renames, **FACTS) as aside:
            save_file({"w": numpy.full(VALUES, step, dtype=numpy.float32)}, aside / "model.safetensors")
            noise = generator.integers(0, 255, int(generator.integers(1000, 400_000)), dtype=numpy.uint8)
            save_file({"s": noise}, aside / "state.safetensors")
            (aside / "state.json").write_text(f'{{"step": {step}}}')
        _rotate_and_acknowledge(folder, acknowledged, step, renames=renames)


def _share_forever(folder: Path, acknowledged: Path, seed: float, rank: int) -> None:
    """The same by two ranks: the first lays the files out and commits, each writes its half of every tensor."""
    meeting = dist.FileStore(str(acknowledged.with_suffix(".group")), 2)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=2)
    writers = Writers(Ranks(rank, 2, dist.new_group()), together=True)
    generator = random.Random(seed)
    for step in itertools.count(1):
        weights = SharedFile("model.safetensors", {"w": _half(rank, VALUES, step, torch.float32)}, {"format": "pt"})
        noise = _half(rank, 2 * generator.randrange(500, 200_000), generator.randrange(255), torch.uint8)
        share = Share([weights, SharedFile("state.safetensors", {"s": noise}, {})], {})
        if rank:
            writers.assist(share, folder)
            continue
        with writers.leading():
            with checkpoints.writing(folder, step, **FACTS) as aside:
                share.lay_out(aside)
                (aside / "state.json").write_text(f'{{"step": {step}}}')
                writers.share_out(share, aside, folder)
            _rotate_and_acknowledge(folder, acknowledged, step, renames=True)


def _half(rank: int, values: int, value: int, dtype: torch.dtype) -> Part:
    whole, half = torch.empty(values, dtype=dtype, device="meta"), values // 2
    return Part(whole, rank * half, torch.full((half,), value, dtype=dtype))


def _rotate_and_acknowledge(folder: Path, acknowledged: Path, step: int, *, renames: bool) -> None:
    checkpoints.rotate(folder, KEEP, set(), renames=renames)
    with acknowledged.open("a") as file:
        file.write(f"{step} {time.time()}\n")


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


def _share_stays_away() -> None:
    """As if the commit did not wait for the other rank's bytes."""
    plain = SharedFile.write

    def write(file: SharedFile, folder: Path) -> int:
        return sum(own.numel() for _, own in file._own()) if dist.get_rank() else plain(file, folder)

    SharedFile.write = write  # type: ignore[method-assign]
    SharedFile.read_back = lambda file, folder: 0  # type: ignore[method-assign]


CONTROLS: dict[str, tuple[str, Callable[[], None]]] = {
    "files are not synced": (KINDS[0], _no_file_sync),
    "folders are not synced": (KINDS[0], _no_folder_sync),
    "the old one goes first": (KINDS[0], _old_one_first),
    "nothing is synced": (KINDS[0], _nothing_synced),
    "a share stays away": (KINDS[-1], _share_stays_away),
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
