"""Prepared sets in a store: pushed once, fetched by any machine, whole or without the tokens that training streams.

Files are stored by their digests, the list of a set after its files: a set whose list is there is whole, and what is
there already is not sent again. Layout: `rundir/set_list.py`.
"""

import json
import mmap
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from stoker import messages
from stoker.config import mixing
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.rundir import checkpoints, file_check, files, inputs, layout, prepared, set_list
from stoker.rundir.checkpoints import Commit, FileEntry
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report
from stoker.rundir.set_list import SetList
from stoker.store import fetch, mixed_set, opening
from stoker.store.store_protocol import Fault, Patient, Ranged

Progress = Callable[[int, int], None]
"""Told the bytes that are there so far, and those of all files."""
_POINTER = "set.json"


def push(run_dir: RunDir, where: str, folder: Path, progress: Progress = lambda *_: None) -> int:
    """Put a run's prepared set into a store; the bytes that were sent.

    Args:
        run_dir: Whose data is prepared.
        where: The store's address.
        folder: Where a relative one starts.
        progress: Called after each file.
    """
    data = run_dir.data
    report = prepared.read_report(data)
    if report is None:
        raise StokerError("STK206")
    if (own := set_list.read(data)) is not None and own.streamed:
        raise StokerError("STK347", name=run_dir.name)
    with reached(where):
        store = opening.open_store(where, folder)
        if known := _known(store, report.digest):
            _point(store, known)
            return 0
        prepared.check_digests(data, report)
        sums = run_dir.store_folder / "sums"
        try:
            paths = {**_own_files(data, report), **_row_sums(data, report, sums)}
            return _push(store, report, paths, progress)
        finally:
            shutil.rmtree(sums, ignore_errors=True)


def _own_files(data: Path, report: Report) -> dict[str, Path]:
    names = [*report.files, prepared.report_file(data).name]
    return {name: data / name for name in names}


def _push(store: Patient, report: Report, paths: dict[str, Path], progress: Progress) -> int:
    entries = {name: FileEntry(bytes=path.stat().st_size, sha256=files.sha256(path)) for name, path in paths.items()}
    total, sent, passed = sum(entry.bytes for entry in entries.values()), 0, 0
    there = store.names("objects")
    for name, entry in entries.items():
        stored = set_list.object_name(entry)
        if there.get(stored) != entry.bytes:
            store.upload(paths[name], stored, entry.sha256)
            sent += entry.bytes
        passed += entry.bytes
        progress(passed, total)
    listed = SetList(digest=report.digest, files=entries).sealed()
    text = files.json_text(listed.model_dump(exclude={"where", "streamed"})).encode()
    name = _list_name(report.digest)
    if not store.create(name, text) and store.read(name) != text:
        store.write(name, text)  # a list that lost its files
    _point(store, listed)
    return sent


def _known(store: Patient, digest: str) -> SetList | None:
    """The set's list, where the store has it and, by its listing, all of its files."""
    try:
        listed = _read(store, _list_name(digest))
    except FileNotFoundError:
        return None
    there = store.names("objects")
    whole = all(there.get(set_list.object_name(entry)) == entry.bytes for entry in listed.files.values())
    return listed if whole else None


def _point(store: Patient, listed: SetList) -> None:
    text = files.json_text({"digest": listed.digest}).encode()
    try:
        if store.read(_POINTER) == text:
            return
    except FileNotFoundError:
        pass
    store.write(_POINTER, text)


def _row_sums(data: Path, report: Report, folder: Path) -> dict[str, Path]:
    """A file for each shard of the training split: a row's SHA-256, cut short, for every row."""
    made = {}
    for shard in report.train.shards:
        name = f"train/{shard}/{set_list.SUMS_NAME}"
        made[name] = folder / name
        made[name].parent.mkdir(parents=True, exist_ok=True)
        with made[name].open("wb") as file:
            for row in _rows(data / "train" / shard):
                file.write(sha256(row).digest()[: set_list.SUM_BYTES])
    return made


def _rows(shard: Path) -> Iterator[memoryview]:
    """The bytes of each row of a shard, as `rundir/prepared.py` describes them."""
    with (
        _mapped(shard / set_list.TOKENS_NAME) as tokens,
        _mapped(shard / "segments.bin") as segments,
        _mapped(shard / "rows.bin") as rows,
    ):
        begin = 0
        for (segment,) in struct.iter_unpack("<q", rows[8:]):
            (tokens_before,) = struct.unpack_from("<q", segments, 8 * segment)
            with tokens[begin : 4 * tokens_before] as row:
                yield row
            begin = 4 * tokens_before


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view


# ---- fetch


def look(run: Run, folder: Path) -> Report:
    """The report of the set that a run file names, without the set; of several sets that of all, each looked at."""
    if not isinstance(run.data.set, list):
        return _look(str(run.data.set), folder, None)
    return mixed_set.together(mixing.names(run.data), _look_all(run, folder, {}))


def _look_all(run: Run, folder: Path, digests: dict[str, str]) -> list[Report]:
    """The reports of several sets, each of which fits the run file."""
    found = []
    for one in run.data.set if isinstance(run.data.set, list) else ():
        found.append(_look(one.path, folder, digests.get(mixing.name_of(one))))
        prepared.require_fits(found[-1], run, one.path)
    return found


def _look(where: str, folder: Path, digest: str | None) -> Report:
    if local := local_data(where, folder):
        return _report_of(local, where)
    with reached(where), tempfile.TemporaryDirectory() as aside:
        store = opening.open_store(where, folder)
        entry = _meant(store, where, digest).files["report.json"]
        report = Path(aside, "report.json")  # of many sources it is larger than a record may be
        fetch.fetch_named(store, set_list.object_name(entry), report, entry)
        return Report.model_validate_json(report.read_bytes())


def bring(run_dir: RunDir, run: Run, folder: Path, progress: Progress = lambda *_: None) -> Report:
    """Bring the set that a run file names, or all sets of a mixture, into the run directory; gone on with after a cut.

    A run that was trained gets the set it was trained on, also where another was pushed since; if it cannot be had, the
    data that is here stays.
    """
    aside, commit = run_dir.store_folder / "set", _trained(run_dir)
    wanted = len(run.data.set) if isinstance(run.data.set, list) else 0
    parts = [aside.with_name(f"set-{number}") for number in range(wanted)]
    for left in run_dir.store_folder.glob("set-*"):
        if left not in parts:
            shutil.rmtree(left)
    if isinstance(run.data.set, list):
        digests = commit.set_digests if commit else {}
        mixed_set.together(mixing.names(run.data), _look_all(run, folder, digests))  # before anything is fetched
        for one, part in zip(run.data.set, parts, strict=True):
            _bring_one(run_dir, run, one.path, digests.get(mixing.name_of(one)), folder, part, progress)
        listed = mixed_set.link(mixing.names(run.data), parts, aside, mixing.set_address(run.data))
    else:
        digest = commit.data_digest if commit else None
        listed = _bring_one(run_dir, run, str(run.data.set), digest, folder, aside, progress)
    here = prepared.read_report(run_dir.data) if commit and commit.data_digest != listed.digest else None
    if here is not None and commit is not None and here.digest == commit.data_digest:
        raise StokerError("STK410", reason=messages.text("other.data"))
    files.write_json(set_list.list_file(aside), listed.model_dump())
    for below in (aside, *(path for path in aside.rglob("*") if path.is_dir())):
        files.sync_folder(below)
    shutil.rmtree(run_dir.data, ignore_errors=True)
    aside.rename(run_dir.data)
    files.sync_folder(run_dir.path)
    for part in parts:
        shutil.rmtree(part)
    return _report_of(run_dir.data, mixing.set_address(run.data))


def _trained(run_dir: RunDir) -> Commit | None:
    """The newest checkpoint's record; weights that were taken from another run were trained on other data."""
    newest = checkpoints.next_found(run_dir.checkpoints)
    if newest is None or (newest.commit.forked_from and newest.commit.forked_from["weights_only"]):
        return None
    return newest.commit


def _bring_one(
    run_dir: RunDir, run: Run, where: str, digest: str | None, folder: Path, aside: Path, progress: Progress
) -> SetList:
    """Link or fetch a set into a folder beside the data."""
    if local := local_data(where, folder):
        listed = _link(local, aside, where, streamed=run.data.stream)
    else:
        with reached(where):
            store = opening.open_store(where, folder)
            if run.data.stream and not isinstance(store.inner, Ranged):
                raise StokerError("STK343", store=where)
            found = _meant(store, where, digest)
            listed = found.model_copy(update={"where": where, "streamed": run.data.stream})
            _fetch(store, aside, listed, run_dir.data, progress)
    prepared.require_fits(_report_of(aside, where), run, where)
    return listed


def local_data(where: str, folder: Path) -> Path | None:
    """The data folder that `run:NAME` or a path names; None where it is a store."""
    if where.startswith(inputs.EARLIER_RUN):
        return layout.find(where.removeprefix(inputs.EARLIER_RUN)).data
    local = folder / Path(where).expanduser()
    return local if "://" not in where and prepared.report_file(local).is_file() else None


def _link(data: Path, aside: Path, where: str, *, streamed: bool) -> SetList:
    """Second names of a set on this machine."""
    if streamed:
        raise StokerError("STK344", store=where)
    report = _report_of(data, where)
    if (own := set_list.read(data)) is not None and own.streamed:
        raise StokerError("STK347", name=where.removeprefix(inputs.EARLIER_RUN))
    shutil.rmtree(aside, ignore_errors=True)
    entries = {}
    for name, path in _own_files(data, report).items():
        if not path.is_file():
            raise StokerError("STK311", str(path), reason=messages.text("damage.missing", name=path.name), folder=data)
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
        files.link(path, aside / name)
        digest = report.files.get(name) or files.sha256(path)
        entries[name] = FileEntry(bytes=path.stat().st_size, sha256=digest)
    if _report_of(data, where) != report:  # prepared anew meanwhile
        return _link(data, aside, where, streamed=streamed)
    return SetList(digest=report.digest, files=entries, where=where).sealed()


def _fetch(store: Patient, aside: Path, listed: SetList, data: Path, progress: Progress) -> None:
    """Files that are in the data folder already, as where only the tokens are missing, are not brought again."""
    wanted = listed.local_files
    for name in wanted:
        if not file_check.is_inside(name):
            raise StokerError("STK658", file=name, reason=messages.text("damage.name"))
    aside.mkdir(parents=True, exist_ok=True)
    total = sum(entry.bytes for entry in wanted.values())
    files.require_room(aside, max(0, total - files.folder_bytes(aside)))
    passed = 0
    for name, entry in wanted.items():
        target, here = aside / name, data / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() and here.is_file() and here.stat().st_size == entry.bytes:
            files.link(here, target)
        fetch.fetch_named(store, set_list.object_name(entry), target, entry)
        passed += entry.bytes
        progress(passed, total)
    for path in files.below(aside):
        if path.relative_to(aside).as_posix() not in wanted:
            path.unlink()


def _meant(store: Patient, where: str, digest: str | None) -> SetList:
    """The list of a set by its digest, or of the one that was pushed last."""
    try:
        if digest is None:
            digest = str(json.loads(store.read(_POINTER))["digest"])
        return _read(store, _list_name(digest))
    except FileNotFoundError as error:
        raise StokerError("STK340", store=where) from error
    except (ValueError, LookupError, TypeError) as error:
        raise StokerError("STK658", file=_POINTER, reason=files.reason(error)) from error


def _read(store: Patient, name: str) -> SetList:
    try:
        listed = SetList.model_validate(files.parse_json(store.read(name)))
    except ValueError as error:
        raise StokerError("STK658", file=name, reason=files.reason(error)) from error
    if not listed.is_whole or name != _list_name(listed.digest):
        raise StokerError("STK658", file=name, reason=messages.text("damage.changed", name=name))
    return listed


def _report_of(data: Path, where: str) -> Report:
    report = prepared.read_report(data)
    if report is None:
        raise StokerError("STK349", name=where.removeprefix(inputs.EARLIER_RUN))
    return report


def _list_name(digest: str) -> str:
    return f"sets/{digest}.json"


@contextmanager
def reached(where: str) -> Iterator[None]:
    """A store that does not answer, after all retries, is an error with a name."""
    try:
        yield
    except Fault as fault:
        raise StokerError("STK341", store=where, reason=fault) from fault
