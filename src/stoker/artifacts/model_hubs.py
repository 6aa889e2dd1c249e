"""Repositories of the Hugging Face hub and of ModelScope to publish a model in, through each one's own client.

Files go up one by one before they appear in a commit, so an interrupted upload goes on with what is missing. Both
clients read tokens themselves: from the environment, or where their own login command keeps them.
"""

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker import env
from stoker.errors import StokerError
from stoker.rundir import files

_ADDRESS = re.compile(r"(hf|modelscope):([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")
_REFUSED = (401, 403)
_TAKEN = (409,)
_NOT_FOUND = 404
_NO_TOKEN = ("LocalTokenNotFoundError", "AuthenticationError", "PermissionDeniedError")
_EXISTS = "AlreadyExistsError"
"""Errors of the clients that may come without a status: nothing was asked, or the answer's body says it."""
_OF_THE_HUB = (".gitattributes", ".gitignore", "README.md", "configuration.json")
"""Files that a hub, or somebody on its web page, puts into an empty repository."""
_MESSAGE = "Published by Stoker"

OnFile = Callable[[str], None]


@dataclass(frozen=True)
class HubFile:
    """A file in a repository."""

    size_bytes: int
    sha256: str | None
    """None: the hub does not say."""


@dataclass(frozen=True)
class Repository:
    """What is there already."""

    private: bool
    files: dict[str, HubFile]

    def foreign(self, names: list[str]) -> list[str]:
        """Files that neither a hub nor this publication put there."""
        return sorted(set(self.files) - set(names) - set(_OF_THE_HUB))


class ModelHub(Protocol):
    """One repository of a hub."""

    address: str
    page: str
    """Where a browser finds it."""

    def check_token(self) -> None:
        """Raise where the hub does not know who is asking."""

    def look(self) -> Repository | None:
        """What is there; None where there is no such repository."""

    def create(self, *, private: bool) -> None:
        """Make the repository."""

    def send(self, folder: Path, names: list[str], on_file: OnFile) -> None:
        """Upload these files of a folder."""


def open_hub(address: str, resume_file: Path) -> ModelHub:
    """The repository of an address `hf:owner/name` or `modelscope:owner/name`.

    Args:
        address: As given by the user.
        resume_file: Where ModelScope's client writes down what it has sent.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise StokerError("STK530", address=address)
    hub, name = found.groups()
    return HuggingFace(name) if hub == "hf" else ModelScope(name, resume_file)


def missing(there: Repository | None, folder: Path, names: list[str]) -> list[str]:
    """The files that the repository lacks, has with another content, or does not say the content of."""
    known = there.files if there else {}
    return [name for name in names if name not in known or not _same(known[name], folder / name)]


def _same(found: HubFile, path: Path) -> bool:
    return found.size_bytes == path.stat().st_size and found.sha256 is not None and found.sha256 == files.sha256(path)


def verify(hub: ModelHub, folder: Path, names: list[str]) -> Repository:
    """Compare what the hub lists now with what was sent; what it lists."""
    there = hub.look()
    if there is None:
        raise StokerError("STK537", address=hub.address, reason=names[0])
    for name in names:
        found = there.files.get(name)
        if found is None or found.size_bytes != (folder / name).stat().st_size or _differs(found, folder / name):
            raise StokerError("STK537", address=hub.address, reason=name)
    return there


def _differs(found: HubFile, path: Path) -> bool:
    return found.sha256 is not None and found.sha256 != files.sha256(path)


@contextmanager
def _named(address: str) -> Iterator[None]:
    """A client's errors in our terms; what it says is shown without secrets."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        reason = env.without_secrets(said[0] if said else type(error).__name__)
        status, kind = _status(error), type(error).__name__
        if status in _REFUSED or kind in _NO_TOKEN:
            raise StokerError("STK532", address=address, reason=reason) from error
        if status in _TAKEN or kind == _EXISTS:
            raise StokerError("STK533", address=address, files=reason) from error
        raise StokerError("STK537" if status else "STK536", address=address, reason=reason) from error


def _status(error: BaseException) -> int:
    """The HTTP status behind an error; 0 where there was no answer."""
    own = getattr(error, "status_code", None)
    return int(own or getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _unless_absent(ask: Callable[[], Any]) -> Any:
    """A client's answer; None where the hub, or ModelScope's client in its own word, has no such thing."""
    try:
        return ask()
    except Exception as error:
        if _status(error) == _NOT_FOUND or type(error).__name__ == "NotExistError":
            return None
        raise


class HuggingFace:
    """A repository of the Hugging Face hub, or of a mirror of it that takes uploads (`HF_ENDPOINT`)."""

    def __init__(self, name: str, api: Any = None) -> None:
        self.address = f"hf:{name}"
        self._name = name
        self._api = api or _client("huggingface_hub", "HfApi")
        self.page = f"{self._api.endpoint}/{name}"

    def check_token(self) -> None:
        """Ask the hub who we are."""
        with _named(self.address):
            self._api.whoami()

    def look(self) -> Repository | None:
        """Large files are stored under their digest; of small ones the hub says the size only."""
        with _named(self.address):
            info = _unless_absent(lambda: self._api.repo_info(self._name))
            if info is None:
                return None
            tree = [one for one in self._api.list_repo_tree(self._name, recursive=True) if hasattr(one, "size")]
        found = {one.path: HubFile(one.size, one.lfs.sha256 if one.lfs else None) for one in tree}
        return Repository(bool(info.private), found)

    def create(self, *, private: bool) -> None:
        """Make the repository."""
        with _named(self.address):
            self._api.create_repo(self._name, private=private)

    def send(self, folder: Path, names: list[str], on_file: OnFile) -> None:
        """Content first, file by file: the hub takes none twice. All appear in one commit."""
        from huggingface_hub import CommitOperationAdd

        additions = [CommitOperationAdd(name, folder / name) for name in names]
        with _named(self.address):
            for addition in additions:
                on_file(addition.path_in_repo)
                self._api.preupload_lfs_files(self._name, [addition], free_memory=False)
            self._api.create_commit(self._name, additions, commit_message=_MESSAGE)


class ModelScope:
    """A repository of ModelScope."""

    def __init__(self, name: str, resume_file: Path, api: Any = None) -> None:
        self.address = f"modelscope:{name}"
        self.page = f"https://modelscope.cn/models/{name}"
        self._name = name
        self._resume_file = resume_file
        self._api = api or _client("modelscope_hub", "HubApi")

    def check_token(self) -> None:
        """Ask ModelScope who we are."""
        with _named(self.address):
            self._api.whoami()

    def look(self) -> Repository | None:
        """ModelScope says size and digest of every file."""
        with _named(self.address):
            info = _unless_absent(lambda: self._api.get_repo(self._name, "model"))
            if info is None:
                return None
            tree = [one for one in self._api.list_repo_files(self._name, "model") if one.type != "tree"]
        private = info.private if info.private is not None else int(info.visibility or 0) != PUBLIC_VISIBILITY
        return Repository(bool(private), {one.path: HubFile(one.size, one.sha256 or None) for one in tree})

    def create(self, *, private: bool) -> None:
        """Make the repository."""
        with _named(self.address):
            self._api.create_repo(self._name, "model", visibility="private" if private else "public")

    def send(self, folder: Path, names: list[str], on_file: OnFile) -> None:
        """Its client uploads in parallel, writes down what it has sent, and commits in batches."""
        on_file(", ".join(names))
        self._resume_file.parent.mkdir(exist_ok=True)
        with _named(self.address):
            self._api.upload_folder(
                self._name,
                "model",
                folder,
                allow_patterns=names,
                commit_message=_MESSAGE,
                disable_tqdm=True,
                use_cache=True,
                tracker_path=self._resume_file,
            )


PUBLIC_VISIBILITY = 5
"""ModelScope's number for a public repository."""


def _client(package: str, name: str) -> Any:
    """A hub's own client, which is imported only here."""
    try:
        return getattr(importlib.import_module(package), name)()
    except ImportError as error:
        raise StokerError("STK538", package=package) from error
