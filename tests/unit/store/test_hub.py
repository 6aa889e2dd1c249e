"""The hub's store against a SIMULATION of huggingface_hub's API in memory, and the names we call against the real one.

There is no network here: that the hub itself answers so is not shown by these tests.
"""

import hashlib
import inspect
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from store_case import HASTY, commit, lease_of, make_run

from stoker.errors import StokerError
from stoker.store import copies, fetch, opening, push, verification
from stoker.store.address import parse
from stoker.store.hub import HubStore
from stoker.store.store_protocol import Fault, Patient

huggingface_hub = pytest.importorskip("huggingface_hub")

CALLS = {
    "create_repo": ("repo_id", "private", "exist_ok"),
    "list_repo_tree": ("repo_id", "path_in_repo", "recursive"),
    "create_commit": ("repo_id", "operations", "commit_message", "parent_commit"),
    "repo_info": ("repo_id",),
    "get_paths_info": ("repo_id", "paths"),
    "preupload_lfs_files": ("repo_id", "additions", "free_memory"),
    "hf_hub_download": ("repo_id", "filename", "local_dir"),
}
LARGE = 1000
"""Above this the simulation stores a file by its digest, as the hub does with large ones."""


class HubError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = SimpleNamespace(status_code=status)


class EntryNotFoundError(HubError):
    pass


@dataclass
class SimulatedHub:
    """What HfApi does, as far as we use it: files, commits with a parent, content that is sent beforehand."""

    files: dict[str, bytes] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    head: int = 0
    commits: list[list[str]] = field(default_factory=list)

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        assert private

    def list_repo_tree(self, repo_id: str, path_in_repo: str | None = None, *, recursive: bool) -> list[Any]:
        prefix = f"{path_in_repo}/" if path_in_repo else ""
        found = [name for name in self.files if name.startswith(prefix)]
        if prefix and not found:
            raise EntryNotFoundError(404, f"{prefix} is not there")
        return [SimpleNamespace(path=name, size=len(self.files[name])) for name in found]

    def repo_info(self, repo_id: str) -> Any:
        return SimpleNamespace(sha=str(self.head))

    def get_paths_info(self, repo_id: str, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths if path in self.files]

    def _info(self, path: str) -> Any:
        content = self.files[path]
        lfs = SimpleNamespace(sha256=hashlib.sha256(content).hexdigest()) if len(content) > LARGE else None
        return SimpleNamespace(path=path, size=len(content), lfs=lfs)

    def preupload_lfs_files(self, repo_id: str, additions: list[Any], *, free_memory: bool) -> None:
        self.sent |= {one.path_in_repo for one in additions}

    def create_commit(
        self, repo_id: str, operations: list[Any], *, commit_message: str, parent_commit: str | None
    ) -> None:
        if parent_commit is not None and parent_commit != str(self.head):
            raise HubError(412, "the repository moved on")
        for one in operations:
            if isinstance(one, huggingface_hub.CommitOperationDelete):
                del self.files[one.path_in_repo]
                continue
            with one.as_file() as content:
                self.files[one.path_in_repo] = content.read()
        self.head += 1
        self.commits.append([one.path_in_repo for one in operations])

    def hf_hub_download(self, repo_id: str, filename: str, *, local_dir: Path) -> str:
        if filename not in self.files:
            raise EntryNotFoundError(404, filename)
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.files[filename])
        return str(path)


@pytest.fixture
def hub() -> SimulatedHub:
    return SimulatedHub()


@pytest.fixture
def store(hub: SimulatedHub) -> Patient:
    return Patient(HubStore(parse("hf://me/runs/deep", Path()), HASTY, hub), HASTY)


@pytest.mark.parametrize("name", CALLS)
def test_the_calls_we_make_are_huggingface_hubs(name: str) -> None:
    assert set(CALLS[name]) <= set(inspect.signature(getattr(huggingface_hub.HfApi, name)).parameters)


def test_operations_have_the_fields_we_use() -> None:
    assert list(inspect.signature(huggingface_hub.CommitOperationAdd).parameters)[:2] == [
        "path_in_repo",
        "path_or_fileobj",
    ]
    assert "sha256" in huggingface_hub.hf_api.BlobLfsInfo.__dataclass_fields__


def test_a_checkpoint_appears_in_one_commit_and_then_its_record(
    tmp_path: Path, hub: SimulatedHub, store: Patient
) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path)
    one = commit(run_dir, 10)
    push.copy_checkpoint(store, run_dir, one, lease_of(store))
    assert sorted(Path(name).name for name in hub.commits[0]) == sorted(one.commit.files)
    assert [[Path(name).name for name in one] for one in hub.commits[1:]] == [["COMMIT.json"]]
    (copy,) = copies.committed(store, "tiny", store.names("tiny"))
    fresh = make_run(tmp_path / "other", tmp_path)
    fetched = fetch.fetch_checkpoint(store, fresh, copy)
    assert fetched.commit == one.commit
    assert sorted(path.name for path in fetched.path.iterdir()) == sorted([*one.commit.files, "COMMIT.json"])


def test_records_appear_though_the_checkpoint_stands_there_already(
    tmp_path: Path, hub: SimulatedHub, store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path)
    commit(run_dir, 10)
    monkeypatch.setattr(opening, "of_run", lambda run, folder: store)
    for _ in range(2):
        assert push.push(run_dir)["copied"]
    written = run_dir.events_file.read_bytes().splitlines(keepends=True)
    assert hub.files["deep/tiny/events.jsonl"] == written[0]


def test_a_commit_by_somebody_else_in_between_is_noticed(tmp_path: Path, hub: SimulatedHub, store: Patient) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path)
    real = hub.repo_info

    def outdated(repo_id: str) -> Any:
        before = real(repo_id)
        hub.head += 1
        return before

    hub.repo_info = outdated  # type: ignore[method-assign]
    with pytest.raises(Fault, match="not accepted"):
        push.copy_checkpoint(store, run_dir, commit(run_dir, 10), lease_of(store))
    assert copies.committed(store, "tiny", store.names("tiny")) == []


def test_what_was_shown_and_not_yet_compared_is_not_shown_again(
    tmp_path: Path, hub: SimulatedHub, store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub takes no operation a second time: a fault behind the commit is tried again without it."""
    run_dir = make_run(tmp_path / "box", tmp_path)
    one, plain, shown = commit(run_dir, 10), hub.create_commit, hub.get_paths_info
    faults = [HubError(503, "busy")]

    def once(repo_id: str, operations: list[Any], **options: Any) -> None:
        assert not any(getattr(each, "_is_committed", False) for each in operations)
        plain(repo_id, operations, **options)
        for each in operations:
            each._is_committed = True

    def busy(*words: Any) -> list[Any]:
        if len(hub.commits) and faults:
            raise faults.pop()
        return shown(*words)

    monkeypatch.setattr(hub, "create_commit", once)
    monkeypatch.setattr(hub, "get_paths_info", busy)
    push.copy_checkpoint(store, run_dir, one, lease_of(store))
    assert not faults
    (examined,) = verification.examine(store, "tiny")["checkpoints"]
    assert examined["verified"]


def test_what_the_hub_holds_otherwise_is_noticed(tmp_path: Path, hub: SimulatedHub, store: Patient) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path)
    one = commit(run_dir, 10)
    plain = hub.create_commit

    def damaging(*words: Any, **options: Any) -> None:
        plain(*words, **options)
        for name in hub.files:
            hub.files[name] = b"x" * len(hub.files[name])

    hub.create_commit = damaging  # type: ignore[method-assign]
    with pytest.raises(Fault, match="reads back otherwise"):
        push.copy_checkpoint(store, run_dir, one, lease_of(store))
    assert copies.committed(store, "tiny", store.names("tiny")) == []
    hub.create_commit = plain  # type: ignore[method-assign]
    push.copy_checkpoint(store, run_dir, one, lease_of(store))
    (examined,) = verification.examine(store, "tiny")["checkpoints"]
    assert examined["verified"]


def test_a_line_that_is_cut_while_the_hub_is_asked_does_not_skip_the_check(
    tmp_path: Path, hub: SimulatedHub, store: Patient
) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path)
    one = commit(run_dir, 10)
    plain, list_tree = hub.create_commit, hub.list_repo_tree

    def damaging(*words: Any, **options: Any) -> None:
        plain(*words, **options)
        hub.files = {name: b"x" * len(content) for name, content in hub.files.items()}
        hub.list_repo_tree = cut  # type: ignore[method-assign]

    def cut(*_: Any, **__: Any) -> Any:
        hub.list_repo_tree = list_tree  # type: ignore[method-assign]
        raise HubError(503, "busy")

    hub.create_commit = damaging  # type: ignore[method-assign]
    with pytest.raises(Fault):
        push.copy_checkpoint(store, run_dir, one, lease_of(store))
    assert not [name for name in hub.files if name.endswith("COMMIT.json")]


def test_a_token_the_hub_refuses_is_an_error_without_the_token(
    hub: SimulatedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-hub-token")

    def refuse(*_: Any, **__: Any) -> None:
        raise HubError(401, "invalid token canary-hub-token")

    hub.create_repo = refuse  # type: ignore[method-assign]
    with pytest.raises(StokerError) as caught:
        HubStore(parse("hf://me/runs", Path()), HASTY, hub)
    assert caught.value.code == "STK653"
    assert "canary" not in str(caught.value)


def test_a_hub_store_with_a_bandwidth_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        opening.open_store("hf://me/runs", tmp_path, "1 MB/s")
    assert caught.value.code == "STK655"
