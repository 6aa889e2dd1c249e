"""A store in a repository of the Hugging Face hub, through huggingface_hub. The token comes from the environment.

A checkpoint's files appear in one commit and are checked; then their record appears in another, which the hub refuses
when somebody else committed in between. The hub keeps deleted files in the repository's history.
"""

import io
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from stoker import env
from stoker.errors import StokerError
from stoker.rundir import files
from stoker.store.address import Address
from stoker.store.store_protocol import Fault, Patience, bounded, require_small

T = TypeVar("T")
_REFUSED = (401, 403)
_MOVED_ON = (409, 412)


class HubStore:
    """Files of one private repository."""

    beats = False
    """A lease that is renewed twice a minute would be a commit twice a minute; the hub's own check does its work."""

    def __init__(self, address: Address, patience: Patience, api: Any = None) -> None:
        self._address = address
        self._patience = patience
        self._api = api or _connect()
        self._sent: dict[str, tuple[Any, str]] = {}
        """Operations whose content the hub has, None once shown, and their digests, until these are checked."""
        self._do(lambda: self._api.create_repo(address.host, private=True, exist_ok=True))

    def names(self, folder: str) -> dict[str, int]:
        """Every file below a folder."""
        try:
            tree = self._do(
                lambda: list(self._api.list_repo_tree(self._repo, self._path(folder) or None, recursive=True))
            )
        except FileNotFoundError:
            return {}
        return {self._name(one.path): one.size for one in tree if hasattr(one, "size")}

    def read(self, name: str) -> bytes:
        """A small file."""
        require_small(name, sum(one.size for one in self._info([name])))
        with tempfile.TemporaryDirectory() as folder:
            return self._fetched(name, Path(folder), 0).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """A commit of its own."""
        self._commit([self._addition(name, io.BytesIO(content))], name)

    def create(self, name: str, content: bytes) -> bool:
        """What was sent before is shown and checked first; refused where the repository moved on meanwhile."""
        self._show()
        head = self._head()
        return not self._info([name]) and self._commit([self._addition(name, io.BytesIO(content))], name, head)

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """A commit on top of the one that was read."""
        head = self._head()
        return self.read(name) == before and self._commit([self._addition(name, io.BytesIO(after))], name, head)

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """Send the content; it appears and is checked before the next record (`create`)."""
        addition = self._addition(name, source)
        seconds = self._patience.seconds_for(source.stat().st_size)
        self._do(lambda: self._api.preupload_lfs_files(self._repo, [addition], free_memory=False), seconds)
        self._sent[name] = (addition, sha256)

    def download(self, name: str, target: Path, size_bytes: int) -> None:
        """huggingface_hub resumes by itself."""
        beside = target.parent / ".hub"
        shutil.move(self._fetched(name, beside, size_bytes), target)
        shutil.rmtree(beside)

    def sha256(self, name: str, size_bytes: int) -> str:
        """Large files are stored under their digest; small ones are read back."""
        (found,) = self._info([name]) or [None]
        if found is None:
            raise FileNotFoundError(name)
        if found.lfs is not None:
            return str(found.lfs.sha256)
        with tempfile.TemporaryDirectory() as folder:
            return files.sha256(self._fetched(name, Path(folder), size_bytes))

    def remove(self, names: list[str]) -> None:
        """One commit."""
        there = {self._name(one.path) for one in self._info(names)}
        operations = [self._deletion(name) for name in names if name in there]
        if operations:
            self._commit(operations, "remove")

    def sweep(self, folder: str, current: str) -> None:  # noqa: ARG002  # a store's words
        """What was sent and belongs to no checkpoint, the run's own records, appears now; the rest is the hub's."""
        self._show()

    def _show(self) -> None:
        """One commit of everything sent, then a comparison with the hub; a fault repeats all of it."""
        if not self._sent:
            return
        if additions := [addition for addition, _ in self._sent.values() if addition is not None]:
            self._commit(additions, "files")
            self._sent = {name: (None, digest) for name, (_, digest) in self._sent.items()}  # none is taken twice
        sizes = self.names("")
        for name, (_, digest) in self._sent.items():
            if self.sha256(name, sizes.get(name, 0)) != digest:
                raise Fault(f"{name}: what was sent reads back otherwise")
        self._sent.clear()

    def _commit(self, operations: list[Any], message: str, parent: str | None = None) -> bool:
        def commit() -> bool:
            try:
                self._api.create_commit(self._repo, operations, commit_message=message, parent_commit=parent)
            except Exception as error:
                if parent is not None and _status(error) in _MOVED_ON:
                    return False
                raise
            return True

        return self._do(commit)

    def _head(self) -> str:
        return str(self._do(lambda: self._api.repo_info(self._repo).sha))

    def _info(self, names: list[str]) -> list[Any]:
        paths = [self._path(name) for name in names]
        return list(self._do(lambda: self._api.get_paths_info(self._repo, paths)))

    def _fetched(self, name: str, folder: Path, size_bytes: int) -> Path:
        seconds = self._patience.seconds_for(size_bytes)
        fetch = lambda: self._api.hf_hub_download(self._repo, self._path(name), local_dir=folder)  # noqa: E731
        return Path(self._do(fetch, seconds))

    def _do(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """One call, bounded in time, its errors in our terms."""
        try:
            return bounded(call, seconds or self._patience.stall_seconds)
        except Fault:
            raise
        except Exception as error:
            if type(error).__name__ in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
                raise FileNotFoundError(str(error)) from error
            reason = env.without_secrets(str(error).strip().splitlines()[0] if str(error).strip() else repr(error))
            if _status(error) in _REFUSED:
                raise StokerError("STK653", store=self._address.text, reason=reason) from error
            raise Fault(reason) from error

    def _addition(self, name: str, content: Any) -> Any:
        from huggingface_hub import CommitOperationAdd

        return CommitOperationAdd(self._path(name), content)

    def _deletion(self, name: str) -> Any:
        from huggingface_hub import CommitOperationDelete

        return CommitOperationDelete(self._path(name))

    @property
    def _repo(self) -> str:
        return self._address.host

    def _path(self, name: str) -> str:
        return f"{self._address.root}/{name}".strip("/")

    def _name(self, path: str) -> str:
        root = self._address.root
        return path[len(root) :].lstrip("/") if root else path


def _connect() -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise StokerError("STK654", package="huggingface_hub") from error
    return HfApi()


def _status(error: BaseException) -> int:
    """The HTTP status behind an error; 0 where there was none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)
