"""A store in a directory: a mounted Drive, a provider's file storage, NFS, another disk.

A mount may die under us, so nothing is waited for without an end; and a mount that is missing is not made up for by a
new folder on the box itself: only the last part of the path is created.
"""

import functools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from stoker import messages
from stoker.errors import StokerError
from stoker.rundir import files
from stoker.store.store_protocol import Bandwidth, ByteRange, Fault, Patience, bounded, require_small

T = TypeVar("T")


class DirectoryStore:
    """Files in a folder. Each is written under a temporary name, synced, read back, renamed."""

    beats = True

    def __init__(self, root: Path, patience: Patience, bandwidth: Bandwidth) -> None:
        self._root = root
        self._patience = patience
        self._bandwidth = bandwidth
        try:
            self._disk = self._do(lambda: disk_of(root))
        except FileNotFoundError as error:
            raise Fault(messages.text("store.no_folder", folder=root.parent)) from error

    def names(self, folder: str) -> dict[str, int]:
        """Every file below a folder; names of partial files begin with a dot."""
        if not folder and not self._do(self._root.is_dir):
            raise StokerError("STK652", store=self._root, reason=messages.text("store.no_folder", folder=self._root))

        def listed() -> dict[str, int]:
            found = sorted(files.sizes_below(self._root / folder).items())
            return {path.relative_to(self._root).as_posix(): size for path, size in found if path.name[0] != "."}

        return self._do(listed)

    def read(self, name: str) -> bytes:
        """A small file."""

        def content() -> bytes:
            require_small(name, (self._root / name).stat().st_size)
            return (self._root / name).read_bytes()

        return self._do(content)

    def write(self, name: str, content: bytes) -> None:
        """Written under a temporary name, synced, renamed."""
        self._do(lambda: self._put(name, content))

    def create(self, name: str, content: bytes) -> bool:
        """A link is made only where there is no such name; where there are no links, exclusive creation is."""
        return self._do(lambda: self._put_new(name, content))

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """A directory cannot compare and replace in one; the moment between the two is short."""

        def swapped() -> bool:
            if (self._root / name).read_bytes() != before:
                return False
            self._put(name, after)
            return (self._root / name).read_bytes() == after

        return self._do(swapped)

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """Append to what is there of it, sync it, read it back, rename."""
        final = self._root / name
        # The name holds the digest: a partial file of other content is never continued.
        aside = final.with_name(f".{final.name}.{sha256[:16]}.part")
        self._do(lambda: self._make_folder(final.parent))
        size = source.stat().st_size
        if self._do(final.exists) and self._size(final) == size and self._digest(final, size) == sha256:
            return  # an earlier attempt came as far as this file
        if self._size(aside) > size:
            self._do(aside.unlink)
        try:
            self._append(source, aside, size)
            self._do(lambda: files.sync_file(aside), size)
            if self._digest(aside, size) != sha256:
                self._do(aside.unlink)
                raise Fault(f"{name}: what was written reads back otherwise")
            self._do(lambda: _put_in_place(aside, final))
        except FileNotFoundError as error:  # another run that sends the same file was faster
            if self._digest(final, size) != sha256:
                raise Fault(f"{name}: what was written is gone") from error

    def download(self, name: str, target: Path, size_bytes: int) -> None:
        """Append the missing bytes to the target."""
        self._append(self._root / name, target, size_bytes)

    def ranges(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """One after the other: a local disk needs no more, and a mount reads ahead by itself."""
        for number, one in enumerate(wanted):
            yield number, self._do(functools.partial(_read_range, self._root, one), one.end - one.begin)

    def sha256(self, name: str, size_bytes: int) -> str:
        """Read again."""
        return self._digest(self._root / name, size_bytes)

    def remove(self, names: list[str]) -> None:
        """Delete files; `sweep` takes their folders."""

        def removed() -> None:
            for name in names:
                (self._root / name).unlink(missing_ok=True)

        self._do(removed)

    def sweep(self, folder: str, current: str) -> None:
        """Parts of files, and folders that hold nothing."""

        def swept() -> None:
            below = [path for path in (self._root / folder).rglob("*") if (self._root / current) not in path.parents]
            for path in below:
                if path.name.startswith(".") and path.name.endswith(".part"):
                    path.unlink(missing_ok=True)
            for path in sorted((path for path in below if path.is_dir()), reverse=True):
                if not any(path.iterdir()):
                    path.rmdir()

        self._do(swept)

    def _make_folder(self, folder: Path) -> None:
        """Of the store's own path only the last part is made, and only on the disk that was there at the start."""
        if disk_of(self._root) != self._disk:
            raise Fault(messages.text("store.unmounted", folder=self._root))
        self._root.mkdir(exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)

    def _append(self, source: Path, target: Path, size_bytes: int) -> None:
        begun = done = self._size(target)
        self._do(target.touch)
        try:
            while done < size_bytes:
                self._bandwidth.spend(min(self._patience.part_bytes, size_bytes - done))
                done += self._do(functools.partial(_copy_chunk, source, target, done, self._patience.part_bytes))
        except FileNotFoundError:
            raise
        except (Fault, OSError) as fault:
            raise Fault(fault, gained_bytes=done - begun) from fault

    def _size(self, path: Path) -> int:
        return self._do(lambda: path.stat().st_size if path.exists() else 0)

    def _digest(self, path: Path, size_bytes: int) -> str:
        return self._do(lambda: files.sha256(path, from_disk=True), size_bytes)

    def _put(self, name: str, content: bytes) -> None:
        final = self._root / name
        self._make_folder(final.parent)
        _put_in_place(_written_aside(final, content), final)

    def _put_new(self, name: str, content: bytes) -> bool:
        final = self._root / name
        self._make_folder(final.parent)
        aside = _written_aside(final, content)
        try:
            os.link(aside, final)
        except FileExistsError:
            return False
        except OSError:
            return _create_without_links(final, content)
        finally:
            aside.unlink()
        files.sync_folder(final.parent)
        return True

    def _do(self, operation: Callable[[], T], size_bytes: int = 0) -> T:
        """One look at the disk, bounded in time; what the system complains of may pass."""
        try:
            return bounded(operation, self._patience.seconds_for(size_bytes or self._patience.part_bytes))
        except FileNotFoundError:
            raise
        except PermissionError as error:
            raise StokerError("STK653", store=self._root, reason=error) from error
        except OSError as error:
            raise Fault(error) from error


def disk_of(root: Path) -> int:
    """The disk a store is on: its own where it is a mount, else that of the folder it will be made in."""
    return (root if root.exists() else root.parent).stat().st_dev


def _read_range(root: Path, wanted: ByteRange) -> bytes:
    if not root.is_dir():
        raise Fault(messages.text("store.unmounted", folder=root))  # it may be back soon
    with (root / wanted.name).open("rb") as file:
        file.seek(wanted.begin)
        content = file.read(wanted.end - wanted.begin)
    if len(content) != wanted.end - wanted.begin:
        raise Fault(f"{wanted.name}: {len(content)} bytes came in place of {wanted.end - wanted.begin}")
    return content


def _copy_chunk(source: Path, target: Path, begin: int, part_bytes: int) -> int:
    """Opened for each chunk, as `open` hangs on a dead mount; at an offset, in case an abandoned write ends late."""
    with source.open("rb") as reading, target.open("rb+") as writing:
        reading.seek(begin)
        chunk = reading.read(part_bytes)
        if not chunk:
            raise Fault("the file is shorter than its record says")
        writing.seek(begin)
        writing.write(chunk)
    return len(chunk)


def _written_aside(final: Path, content: bytes) -> Path:
    aside = final.with_name(f".{final.name}.{secrets.token_hex(6)}.part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return aside


def _put_in_place(aside: Path, final: Path) -> None:
    aside.replace(final)
    files.sync_folder(final.parent)


def _create_without_links(final: Path, content: bytes) -> bool:
    try:
        with final.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True
