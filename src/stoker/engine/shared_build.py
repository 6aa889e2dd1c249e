"""A model that the ranks of a machine need is built by one of them; the others map its memory.

The builder copies the memory of its tensors into files that only have a descriptor (memfd), tensor by tensor, so that
it never has two models, and pickles the rest of the model; memory that is already a mapped file is only named. Then
every rank, the builder too, unpickles the model and maps the files privately: a page is shared until somebody writes to
it. A file is gone with its last mapping. Where ranks cannot read each other's files each builds its own. Why a pickle
is no danger here: ADR 0032.
"""

import bisect
import ctypes
import gc
import io
import os
import pickle  # between processes of one run, never of a file: ADR 0032
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from stoker import messages
from stoker.engine.parallel import Ranks

_FILES = 128
"""Files of a model, at most: descriptors are few, and a file is kept as a whole while one tensor of it is."""
_SMALL_BYTES = 1 << 16
"""What is below is copied: buffers that stay would keep a file of weights that were moved to a device."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_ALIGNMENT = 64
"""As torch aligns memory that it allocates."""
_UNCHANGED = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \d+ +(/.+)\n"
    r"(?:\w+:.*\n)*?Anonymous: +0 kB\n(?:\w+:.*\n)*?Swap: +0 kB$",
    re.MULTILINE,
)
"""A mapped file in `smaps`: addresses, access, offset, device, inode, path; none of its pages was written to here."""


class _Location(NamedTuple):
    """Where the memory of a tensor is."""

    path: str
    offset: int
    size_bytes: int


def build_once(make: Callable[[], Any], ranks: Ranks) -> Any:
    """A model in main memory, built by the first rank of each machine, or by every rank; a collective call.

    Args:
        make: Builds it. An error of the builder is raised by every rank of its machine.
        ranks: All ranks.
    """
    if sys.platform != "linux" or not any(ranks.numbers(ranks.rank_here)):
        return make()
    if not all(ranks.everyone(_reads_of_builder(ranks))):
        if ranks.first_here:
            sys.stderr.write(messages.text("machine.built_apart") + "\n")
        with _returned_at_once():
            return make()
    failed: Exception | None = None
    with ExitStack() as until_mapped:
        writer = _Writer(until_mapped)
        if ranks.first_here:
            try:
                writer.write(make)
            except Exception as error:  # noqa: BLE001  # the others wait for a model: they are told what happened
                failed = error
                writer.say(error)
        path = _of_builder(ranks, writer.descriptor)
        found = failed or _read(path)
        ranks.meet()  # the files are open until every rank has mapped them
    if isinstance(found, Exception):
        raise found
    return found


def _reads_of_builder(ranks: Ranks) -> bool:
    """Whether this rank can read a file without a name that the builder has.

    A hardened container forbids one or the other, and so does another user. In a namespace of its own, a rank would
    find somebody else's file, or none.
    """
    drawn, descriptor = secrets.token_bytes(7), -1
    with ExitStack() as until_read:
        if ranks.first_here:
            with suppress(OSError):
                file = until_read.enter_context(_new_file())
                file.write(drawn)
                file.flush()
                descriptor = file.fileno()
        expected = ranks.numbers(int.from_bytes(drawn, "big"))[ranks.rank - ranks.rank_here].to_bytes(7, "big")
        path, is_read = _of_builder(ranks, descriptor), False
        with suppress(OSError):
            is_read = path.is_file() and path.read_bytes() == expected  # a pipe of another process would never end
        ranks.meet()
    return is_read


def _of_builder(ranks: Ranks, descriptor: int) -> Path:
    """A file that the builder of this machine has open; a collective call."""
    builder = ranks.rank - ranks.rank_here
    return Path(f"/proc/{ranks.numbers(os.getpid())[builder]}/fd/{ranks.numbers(descriptor)[builder]}")


def _new_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("stoker-model"), "wb")


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return _Reader(file, pickle.load(file)).load()  # noqa: S301  # written by the first rank, see above


def _flat(storage: torch.UntypedStorage) -> Any:
    """The bytes of a storage, not copied."""
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def _give_back() -> None:
    """Return freed memory to the kernel: glibc keeps blocks of up to 32 MiB, so a builder would have two models."""
    ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _returned_at_once() -> Iterator[None]:
    """Return memory as it is freed: what quantising frees is eight times its result, in blocks that glibc would keep.

    It keeps blocks up to a size that rises as they are freed. Here it stays where it begins; afterwards it is where it
    would have ended.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 128 << 10)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 64 << 20)


class _Writer:
    """The builder's side: a file that describes the model, and files with its tensors."""

    def __init__(self, open_files: ExitStack) -> None:
        self.descriptor = 0
        """Of the file that is read first."""
        self._open_files = open_files

    def write(self, make: Callable[[], Any]) -> None:
        """Build a model and put it into files; of what was built nothing is left."""
        with _returned_at_once():
            model = make()
        structure = io.BytesIO()
        pickler = _Pickler(structure)
        pickler.dump(model)
        storages = pickler.storages
        del model, pickler
        gc.collect()  # modules and their parameters refer to each other; now only the list has the memory
        locations = self._located(storages)
        _give_back()
        self._describe(locations, structure.getvalue())

    def say(self, error: Exception) -> None:
        """Let the others raise the builder's error; one that cannot be sent, by its words."""
        try:
            said = pickle.dumps(error)
            pickle.loads(said)  # noqa: S301  # just made
        except Exception:  # noqa: BLE001  # whatever its class does
            said = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        self._describe([], said)

    def _describe(self, locations: list[_Location], structure: bytes) -> None:
        file = self._new_file()
        pickle.dump(locations, file)
        file.write(structure)
        file.flush()
        self.descriptor = file.fileno()

    def _located(self, storages: list[torch.UntypedStorage]) -> list[_Location]:
        """Where the memory of each storage is in the end; it is let go here."""
        mapped, small = _MappedFiles(), self._new_file()
        enough = sum(storage.nbytes() for storage in storages) // _FILES
        file, located = small, list[_Location]()
        storages.reverse()
        while storages:
            storage = storages.pop()
            if storage.nbytes() < _SMALL_BYTES:
                located.append(self._put(storage, small))
                continue
            at = mapped.location(storage)
            if at is None and (file is small or file.tell() >= enough):
                file = self._new_file()
                _give_back()
            located.append(at or self._put(storage, file))
        return located

    def _put(self, storage: torch.UntypedStorage, file: BinaryIO) -> _Location:
        file.write(bytes(-file.tell() % _ALIGNMENT))
        offset = file.tell()
        if storage.nbytes():
            file.write(_flat(storage))
            file.flush()
        return _Location(f"/proc/{os.getpid()}/fd/{file.fileno()}", offset, storage.nbytes())

    def _new_file(self) -> BinaryIO:
        return self._open_files.enter_context(_new_file())


class _Pickler(pickle.Pickler):
    """Pickles a model without the memory of its tensors, which it lists; what shares memory goes on sharing it."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.storages: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, found: Any) -> Any:
        """The number of a storage and the type that a tensor has of it; nothing else is known by a number."""
        if not isinstance(found, torch.storage.TypedStorage):
            return None
        storage = found._untyped_storage
        number = self._numbers.setdefault(storage._cdata, len(self.storages))
        if number == len(self.storages):
            self.storages.append(storage)
        return number, found.dtype

    def reducer_override(self, found: Any) -> Any:
        """Parameters of other classes (4-bit weights): torch would make plain ones of them."""
        if isinstance(found, torch.nn.Parameter) and type(found) is not torch.nn.Parameter:
            state = dict(vars(found))  # apart, because it refers to the module of the parameter
            return _parameter, (type(found), found.data, found.requires_grad), state, None, None, _set_state
        return NotImplemented


def _parameter(kind: type[torch.nn.Parameter], data: torch.Tensor, requires_grad: bool) -> Any:  # noqa: FBT001  # as it was
    return torch.Tensor._make_subclass(kind, data.as_subclass(torch.Tensor), requires_grad)


def _set_state(parameter: torch.nn.Parameter, state: dict[str, Any]) -> None:
    vars(parameter).update(state)


class _Reader(pickle.Unpickler):
    """Unpickles a model whose tensors are where they were put."""

    def __init__(self, file: BinaryIO, locations: list[_Location]) -> None:
        super().__init__(file)
        self._locations = locations
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._mapped: dict[str, Any] = {}

    def persistent_load(self, pid: tuple[int, torch.dtype]) -> Any:
        """The storage with a number."""
        number, dtype = pid
        if number not in self._storages:
            self._storages[number] = self._storage(self._locations[number])
        return torch.storage.TypedStorage(wrap_storage=self._storages[number], dtype=dtype, _internal=True)

    def _storage(self, at: _Location) -> torch.UntypedStorage:
        if not at.size_bytes:
            return torch.UntypedStorage(0)
        if at.path not in self._mapped:
            size = Path(at.path).stat().st_size
            self._mapped[at.path] = torch.from_file(at.path, shared=False, size=size, dtype=torch.uint8).numpy()
        found = torch.frombuffer(self._mapped[at.path], dtype=torch.uint8, count=at.size_bytes, offset=at.offset)
        return (found.clone() if at.size_bytes < _SMALL_BYTES else found).untyped_storage()


class _MappedFiles:
    """Files that this process has mapped and not written to, by their addresses."""

    def __init__(self) -> None:
        listed = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="surrogateescape")
        found = [(int(one[1], 16), int(one[2], 16), int(one[3], 16), one[4]) for one in _UNCHANGED.finditer(listed)]
        self._mappings = [one for one in found if Path(one[3]).is_file()]  # others were deleted
        self._starts = [start for start, *_ in self._mappings]

    def location(self, storage: torch.UntypedStorage) -> _Location | None:
        """Where in a file a storage is; None if it is not in one."""
        begin, size = storage.data_ptr(), storage.nbytes()
        number = bisect.bisect(self._starts, begin) - 1
        if number < 0 or begin + size > self._mappings[number][1]:
            return None
        start, _, offset, path = self._mappings[number]
        return _Location(path, offset + begin - start, size)
