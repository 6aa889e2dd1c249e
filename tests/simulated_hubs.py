"""SIMULATIONS of the clients of the Hugging Face hub and ModelScope, in memory: what `stoker publish` uses of them."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TOKEN = "hf_planted0123456789abcdefghij"
LARGE = 100
"""Above this the simulation stores a file by its digest, as the hub does with large ones."""


class ClientError(Exception):
    """As both clients' errors: with a status, and words that may hold a secret."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = SimpleNamespace(status_code=status)


@dataclass
class SimulatedHub:
    """The calls of both clients, as far as we use them, over one repository."""

    endpoint: str = "https://hub.example.org"
    token_error: Exception | None = None
    exists: bool = False
    private: bool | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    """Large files that arrived, by digest: what is here is not sent again."""
    sent: list[str] = field(default_factory=list)
    cut_after: int | None = None
    """The network ends after so many files."""

    def whoami(self) -> dict[str, str]:
        if self.token_error:
            raise self.token_error
        return {"name": "me"}

    def _found(self) -> None:
        if not self.exists:
            raise ClientError(404, "not found")

    def _create(self, *, private: bool) -> None:
        assert not self.exists
        self.exists, self.private = True, private

    def _receive(self, name: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() in self.content:
            return
        if self.cut_after is not None and len(self.sent) >= self.cut_after:
            raise ConnectionError(f"connection reset, token {TOKEN}")
        self.sent.append(name)
        self.content[hashlib.sha256(content).hexdigest()] = name


class SimulatedHuggingFace(SimulatedHub):
    """As `HfApi`: content first, then one commit."""

    def repo_info(self, repo_id: str) -> Any:
        self._found()
        return SimpleNamespace(private=self.private)

    def list_repo_tree(self, repo_id: str, *, recursive: bool) -> list[Any]:
        return [SimpleNamespace(path=name, size=len(said), lfs=self._lfs(said)) for name, said in self.files.items()]

    def _lfs(self, content: bytes) -> Any:
        return SimpleNamespace(sha256=hashlib.sha256(content).hexdigest()) if len(content) > LARGE else None

    def create_repo(self, repo_id: str, *, private: bool) -> None:
        self._create(private=private)

    def preupload_lfs_files(self, repo_id: str, additions: list[Any], *, free_memory: bool) -> None:
        for one in additions:
            content = Path(one.path_or_fileobj).read_bytes()
            if len(content) > LARGE:
                self._receive(one.path_in_repo, content)

    def create_commit(self, repo_id: str, operations: list[Any], *, commit_message: str) -> None:
        self.files |= {one.path_in_repo: Path(one.path_or_fileobj).read_bytes() for one in operations}


class SimulatedModelScope(SimulatedHub):
    """As `HubApi`: its own upload, a commit for each batch."""

    def get_repo(self, repo_id: str, repo_type: str) -> Any:
        self._found()
        return SimpleNamespace(private=self.private, visibility=None)

    def list_repo_files(self, repo_id: str, repo_type: str) -> list[Any]:
        return [
            SimpleNamespace(path=name, size=len(said), type="blob", sha256=hashlib.sha256(said).hexdigest())
            for name, said in self.files.items()
        ]

    def create_repo(self, repo_id: str, repo_type: str, *, visibility: str) -> None:
        self._create(private=visibility == "private")

    def upload_folder(
        self, repo_id: str, repo_type: str, folder_path: Path, *, allow_patterns: list[str], **options: Any
    ) -> None:
        for name in allow_patterns:
            self._receive(name, (folder_path / name).read_bytes())
            self.files[name] = (folder_path / name).read_bytes()
