"""C6: network cuts: a checkpoint to and from real S3 (`rclone serve s3`) and a real sshd, and two ranks that meet.

A proxy resets, stalls, half-opens or slows a connection to 1 B/s at a random byte, up to three times a copy. Judged:
nothing hangs beyond the patience stated, no name ever shows part of a file, what arrived is bit for bit what was sent,
and after a cut only what is missing is sent. Ranks tell each other where they listen in a file, which has no line to
cut; the connections they then open (gloo) are cut in one of eight cases, half of those before the first step: the
supervisor must go on from the checkpoint by itself, for a reason with a name, and end with the same bits. Patience is
shortened (30 and 10 minutes between ranks, 15 for the supervisor). Not cut: NCCL's connections, and two machines.
Controls: sending straight to the final name unchecked, receiving unchecked, no timeout, starting over after a cut;
for ranks no timeout, and checkpoints thrown away before a restart.
"""

import contextlib
import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ranks
import store_servers
from campaign import Campaign
from network import DOWN, KINDS, UP, Cut, Proxy, proxied

from stoker.rundir import checkpoints, files
from stoker.rundir.checkpoints import COMMIT_NAME, Checkpoint
from stoker.rundir.layout import RunDir
from stoker.store import copies, fetch, opening, push
from stoker.store.lease import Lease
from stoker.store.store_protocol import Fault, Patience, Patient

PART = 256 << 10
PATIENCE = Patience(
    stall_seconds=3,
    least_bytes_per_second=PART,
    tries=8,
    part_bytes=PART,
    first_pause_seconds=0.05,
    longest_pause_seconds=0.5,
)
HURRIED = Patience(stall_seconds=2, tries=1)
WITHOUT_CUTS_SECONDS = 60.0
"""For a whole case on a busy machine."""
PER_CUT_SECONDS = 2 * PATIENCE.seconds_for(PART) + PATIENCE.longest_pause_seconds
"""To notice a cut and to be back on a new connection; rclone serves nobody else until it notices, too."""
LOOK_SECONDS = 0.3
OVERHEAD_BYTES = 48 << 10
"""Headers, handshakes and small files, per connection."""
FACTS: dict[str, Any] = {"data_digest": "d", "order_version": 1, "world": 1, "fingerprint": {}}
SIZES = {"model.safetensors": 5 * PART + 12345, "state.safetensors": 3 * PART, "config.json": 700}
RUN = "cut"


@dataclass
class Side:
    """One real server, reached directly and through the proxy."""

    kind: str
    proxy: Proxy
    through: Callable[[Patience], Patient]
    direct: Patient
    watching: Patient
    """Direct as well, and in a hurry."""


@dataclass
class Seen:
    """What was wrong in one case."""

    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    paused_seconds: float = 0.0
    """While the whole machine stood still for us: a stopped process or one that was not given a turn."""
    cuts: list[Cut] = field(default_factory=list)
    """Those that hit; a case may be over before its last one is due."""


def run(campaign: Campaign) -> None:
    """Cuts of copies, and one in eight of the connections between ranks."""
    of_ranks = campaign.n // 8 if ranks.possible() else 0
    cut_copies(campaign, campaign.n - of_ranks)
    if of_ranks:
        ranks.cut(campaign, campaign.n)


def cut_copies(campaign: Campaign, until: int) -> None:
    campaign.measured["servers"] = store_servers.versions()
    all_seconds: list[float] = []
    with _sides(campaign.folder) as sides:
        for number in itertools.count():
            if campaign.done >= until:
                break
            side, task = sides[number % 2], (upload, download)[number // 2 % 2]
            seen = task(campaign, side, number, campaign.random(number))
            for wrong in seen.wrong:
                campaign.fail([number, side.kind, task.__name__, [vars(cut) for cut in seen.cuts]], wrong)
            campaign.counts[f"copies over {side.kind}, {task.__name__}"] += 1
            _measure(campaign, seen, all_seconds)
            for cut in seen.cuts:
                campaign.case(
                    f"{side.kind} {task.__name__} {cut.kind}",
                    "of the answers" if cut.way != WAYS[task] else "of the data",
                )
        for name, control in CONTROLS.items():
            for number in range(max(1, campaign.n // 40)):
                seen = control(campaign, sides, number, campaign.random(name, number))
                campaign.control(name, caught=bool(seen.wrong), what="; ".join(seen.wrong))


def _measure(campaign: Campaign, seen: Seen, all_seconds: list[float]) -> None:
    all_seconds.append(seen.seconds)
    ordered = sorted(all_seconds)
    campaign.measured |= {
        "copies": len(ordered),
        "median_copy_seconds": round(ordered[len(ordered) // 2], 1),
        "longest_copy_seconds": round(ordered[-1], 1),
        "paused_seconds": round(campaign.measured.get("paused_seconds", 0) + seen.paused_seconds, 1),
        "allowed_seconds": f"{WITHOUT_CUTS_SECONDS:.0f} + {PER_CUT_SECONDS:.1f} a cut",
        "bytes_per_checkpoint": sum(SIZES.values()),
    }


@contextlib.contextmanager
def _sides(folder: Path) -> Iterator[list[Side]]:
    """Both servers, each behind a proxy of its own. The proxy's port is in the address, so nothing else knows of it."""
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(store_servers.rclone(folder / "s3"))
        ssh = stack.enter_context(store_servers.sshd(folder / "ssh"))
        s3_proxy = stack.enter_context(proxied(lambda _: s3.port))
        ssh_proxy = stack.enter_context(proxied(lambda _: ssh.port))
        stack.enter_context(_environment({**s3.settings, **ssh.settings}))
        (folder / "there").mkdir()

        def s3_at(port: int, patience: Patience) -> Patient:
            with _environment({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}):
                return opening.open_store(f"s3://{store_servers.BUCKET}/c6", folder, patience=patience)

        def ssh_at(port: int, patience: Patience) -> Patient:
            return opening.open_store(f"ssh://127.0.0.1:{port}{folder}/there/c6", folder, patience=patience)

        def side(kind: str, proxy: Proxy, at: Callable[[int, Patience], Patient], port: int) -> Side:
            calm = Patience(part_bytes=PART)
            return Side(kind, proxy, lambda patience: at(proxy.port, patience), at(port, calm), at(port, HURRIED))

        yield [side("s3", s3_proxy, s3_at, s3.port), side("ssh", ssh_proxy, ssh_at, ssh.port)]


@contextlib.contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


# ---- the two tasks


def upload(campaign: Campaign, side: Side, number: int, chance: random.Random, way: Callable[..., None] | None = None,
           patience: Patience = PATIENCE) -> Seen:  # fmt: skip
    """Copy a new checkpoint while the line is cut."""
    run_dir = RunDir(campaign.folder / "runs" / RUN)
    checkpoint = _committed(run_dir, number, chance)
    folder = copies.folder_of(RUN, checkpoint.commit)
    own = Lease(side.direct, RUN, "campaign")
    own.acquire()

    def copy() -> None:
        store = side.through(patience)
        (way or push.copy_checkpoint)(store, run_dir, checkpoint, own)

    seen = _judged(side, _cuts(chance, UP), copy, lambda: _partial(side.watching, folder, checkpoint))
    seen.wrong += [] if seen.wrong else _not_there(side.direct, folder, checkpoint)
    side.direct.remove(list(side.direct.names(folder)))
    side.direct.sweep(f"{RUN}/checkpoints", f"{RUN}/none")
    shutil.rmtree(run_dir.path)
    return seen


def download(campaign: Campaign, side: Side, number: int, chance: random.Random,
             way: Callable[..., Any] | None = None, patience: Patience = PATIENCE) -> Seen:  # fmt: skip
    """Fetch a checkpoint into an empty run directory while the line is cut."""
    source, run_dir = RunDir(campaign.folder / "source" / RUN), RunDir(campaign.folder / "runs" / RUN)
    checkpoint = _committed(source, number, chance)
    own = Lease(side.direct, RUN, "campaign")
    own.acquire()
    push.copy_checkpoint(side.direct, source, checkpoint, own)
    (copy,) = copies.committed(side.direct, RUN, side.direct.names(RUN))
    run_dir.path.mkdir(parents=True)

    def bring() -> None:
        (way or fetch.fetch_checkpoint)(side.through(patience), run_dir, copy)

    final = run_dir.checkpoints / checkpoint.path.name
    aside = run_dir.store_folder / "fetch" / copy.folder.rpartition("/")[2]
    seen = _judged(side, _cuts(chance, DOWN), bring, lambda: [*_short(final, checkpoint), *_short(aside, checkpoint)])
    seen.wrong += [] if seen.wrong else _differing(final, checkpoint)
    side.direct.remove(list(side.direct.names(copy.folder)))
    shutil.rmtree(run_dir.path)
    shutil.rmtree(source.path)
    return seen


def _judged(side: Side, cuts: list[Cut], work: Callable[[], None], sizes: Callable[[], list[str]]) -> Seen:
    """Do the work with the line armed; what was wrong about it. Sizes are watched all along, digests at the end."""
    seen, problems = Seen(), []
    limit = WITHOUT_CUTS_SECONDS + PER_CUT_SECONDS * len(cuts)
    before = dict(side.proxy.moved)

    def glance() -> list[str]:
        try:
            return [f"part of a file under its final name: {name}" for name in sizes()]
        except Fault:
            return []  # the server is busy

    def working() -> None:
        try:
            work()
        except Exception as error:  # judged below
            problems.append(f"gave up: {type(error).__name__}: {error}")

    side.proxy.arm(cuts)
    thread = threading.Thread(target=working, daemon=True)
    started = time.monotonic()
    thread.start()
    while thread.is_alive() and time.monotonic() - started - seen.paused_seconds < limit:
        looked = time.monotonic()
        thread.join(LOOK_SECONDS)
        seen.wrong += [] if seen.wrong else glance()
        seen.paused_seconds += _paused(time.monotonic() - looked)
    seen.seconds, seen.cuts = time.monotonic() - started - seen.paused_seconds, list(side.proxy.fired)
    if thread.is_alive():
        problems.append(f"hangs: not over after {limit:.0f} s")
    seen.wrong += [*problems, *glance()]
    way = cuts[0].way
    moved, allowed = side.proxy.moved[way] - before[way], sum(SIZES.values()) + _again(len(seen.cuts))
    if moved > allowed:
        seen.wrong.append(f"{moved} bytes were moved, {allowed} allowed: what was there was sent again")
    side.proxy.heal()
    thread.join(WITHOUT_CUTS_SECONDS)  # what hung goes on now; the next case must not meet it
    return seen


def _paused(looked_seconds: float) -> float:
    """Of a look that takes a moment and at most the watching store's patience, what is beyond."""
    usual = LOOK_SECONDS + 2 * HURRIED.stall_seconds
    return looked_seconds if looked_seconds > usual else 0.0


def _again(cuts: int) -> int:
    """What may be moved beside the files themselves: per cut the part that was on its way, and overhead."""
    return OVERHEAD_BYTES + cuts * (PART + OVERHEAD_BYTES)


def _cuts(chance: random.Random, way: str) -> list[Cut]:
    total = sum(SIZES.values())
    count = chance.choice((1, 1, 2, 3))
    cuts = []
    for _ in range(count):
        # Now and then the answers are cut instead of the data, or the connection before it says anything.
        other = chance.random() < 0.2
        against = DOWN if way == UP else UP
        after = chance.randrange(0, 2000) if other else int(total * chance.random() ** 1.5 / count)
        cuts.append(Cut(chance.choice(KINDS), against if other else way, after))
    cuts.sort(key=lambda cut: cut.way != way)
    return cuts if cuts[0].way == way else [Cut(cuts[0].kind, way, total // 3)]


# ---- what must hold


def _committed(run_dir: RunDir, number: int, chance: random.Random) -> Checkpoint:
    run_dir.path.mkdir(parents=True, exist_ok=True)
    with checkpoints.writing(run_dir.checkpoints, number + 1, **FACTS) as aside:
        for name, size in SIZES.items():
            (aside / name).write_bytes(chance.randbytes(size))
    return checkpoints.committed(run_dir.checkpoints)[-1]


def _partial(direct: Patient, folder: str, checkpoint: Checkpoint) -> list[str]:
    """Names in the store that show another size than the whole file's, or a record without all of its files."""
    names = {name.removeprefix(f"{folder}/"): size for name, size in direct.names(folder).items()}
    entries = {name: entry.bytes for name, entry in checkpoint.commit.files.items()}
    short = [name for name, size in names.items() if name != COMMIT_NAME and entries.get(name) != size]
    if COMMIT_NAME in names and entries.keys() - names.keys():
        short.append(COMMIT_NAME)
    return short


def _short(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """The same of a folder here."""
    found = []
    for name, entry in checkpoint.commit.files.items():
        with contextlib.suppress(FileNotFoundError):
            if (folder / name).stat().st_size != entry.bytes:
                found.append(name)
    return found


def _not_there(direct: Patient, folder: str, checkpoint: Checkpoint) -> list[str]:
    names = direct.names(folder)
    wrong = [
        name
        for name, entry in checkpoint.commit.files.items()
        if names.get(f"{folder}/{name}") != entry.bytes
        or direct.sha256(f"{folder}/{name}", entry.bytes) != entry.sha256
    ]
    record = (checkpoint.path / COMMIT_NAME).read_bytes()
    try:
        same = direct.read(f"{folder}/{COMMIT_NAME}") == record
    except FileNotFoundError:
        same = False
    return [f"not whole in the store: {name}" for name in (*wrong, *(() if same else (COMMIT_NAME,)))]


def _differing(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Files here that are not, bit for bit, what was committed."""
    entries = checkpoint.commit.files.items()
    return [
        f"not whole here: {name}"
        for name, entry in entries
        if not (folder / name).exists() or files.sha256(folder / name) != entry.sha256
    ]


# ---- negative controls: one safeguard away, here and nowhere else


def _send_to_the_final_name(store: Patient, run_dir: RunDir, checkpoint: Checkpoint, own: Lease) -> None:
    """As `cp` over the line: no name aside, no digest."""
    inner: Any = store.inner
    folder = copies.folder_of(RUN, checkpoint.commit)
    for name in checkpoint.commit.files:
        content = (checkpoint.path / name).read_bytes()

        def put(line: Any, name: str = name, content: bytes = content) -> None:
            path = inner._path(f"{folder}/{name}")
            inner._make_folders(line, type(inner._root)(path).parent)
            line.write(path, 0, iter([content[at : at + PART] for at in range(0, len(content), PART)]), lambda _: None)

        with contextlib.suppress(Fault):
            inner._do(put)
    store.inner.write(f"{folder}/{COMMIT_NAME}", (checkpoint.path / COMMIT_NAME).read_bytes())


def _unchecked_upload(campaign: Campaign, sides: list[Side], number: int, chance: random.Random) -> Seen:
    return upload(campaign, sides[1], number, chance, _send_to_the_final_name)


def _receive_unchecked(store: Patient, run_dir: RunDir, copy: copies.Copy) -> None:
    """Whatever came is renamed."""
    aside = run_dir.store_folder / "fetch" / copy.folder.rpartition("/")[2]
    aside.mkdir(parents=True)
    for name, entry in copy.commit.files.items():
        with contextlib.suppress(Fault):
            store.inner.download(f"{copy.folder}/{name}", aside / name, entry.bytes)
    run_dir.checkpoints.mkdir()
    aside.rename(run_dir.checkpoints / checkpoints.folder_name(copy.commit.step))


def _unchecked_download(campaign: Campaign, sides: list[Side], number: int, chance: random.Random) -> Seen:
    return download(campaign, sides[number % 2], number, chance, _receive_unchecked)


def _no_timeout(campaign: Campaign, sides: list[Side], number: int, chance: random.Random) -> Seen:
    """The line stalls and nobody looks at the clock."""
    endless = Patience(stall_seconds=3600, least_bytes_per_second=1, tries=6, part_bytes=PART)
    task = (upload, download)[number % 2]
    cuts = lambda chance, way: [Cut("stall", way, (1 + number % 4) * PART)]  # noqa: E731
    with _patched("_cuts", cuts), _patched("WITHOUT_CUTS_SECONDS", 0.0):
        return task(campaign, sides[1], number, chance, patience=endless)


def _starting_over(campaign: Campaign, sides: list[Side], number: int, chance: random.Random) -> Seen:
    """After a cut the partial file is thrown away."""

    def forgetful(store: Patient, run_dir: RunDir, copy: copies.Copy) -> Any:
        inner: Any = store.inner
        download_once = inner.download

        def from_the_start(name: str, target: Path, size_bytes: int) -> None:
            target.unlink(missing_ok=True)
            download_once(name, target, size_bytes)

        inner.download = from_the_start
        return fetch.fetch_checkpoint(store, run_dir, copy)

    with _patched("_cuts", lambda chance, way: [Cut("reset", way, 4 * PART + PART // 2)]):
        return download(campaign, sides[number % 2], number, chance, forgetful)


@contextlib.contextmanager
def _patched(name: str, value: Any) -> Iterator[None]:
    before = globals()[name]
    globals()[name] = value
    try:
        yield
    finally:
        globals()[name] = before


WAYS = {upload: UP, download: DOWN}
CONTROLS = {
    "sent to the final name, unchecked": _unchecked_upload,
    "received unchecked": _unchecked_download,
    "no timeout": _no_timeout,
    "starting over after a cut": _starting_over,
}
