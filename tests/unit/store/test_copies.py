"""Copying a run to a store and bringing it back: the record last, only what verifies, nothing of another run."""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from store_case import FILES, commit, lease_of, make_run, open_folder, shown

from stoker.config import load
from stoker.errors import StokerError
from stoker.rundir import checkpoints, events, files, layout
from stoker.rundir.layout import RunDir
from stoker.store import copies, fetch, opening, push, store_protocol, verification
from stoker.store.store_protocol import Fault, Patient


@pytest.fixture
def store(tmp_path: Path) -> Patient:
    return open_folder(tmp_path / "store")


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "box", tmp_path / "store")


def test_push_copies_records_checkpoint_and_result_and_notes_it(tmp_path: Path, run_dir: RunDir) -> None:
    one = commit(run_dir, 10)
    run_dir.final.mkdir(parents=True)
    (run_dir.final / "model.safetensors").write_bytes(b"final")
    outcome = push.push(run_dir)
    assert outcome["copied"] is True
    assert outcome["step"] == 10
    folder = f"tiny/checkpoints/step-00000010-{one.commit.digest[:12]}"
    assert shown(tmp_path / "store") == sorted(
        [
            *(f"{folder}/{name}" for name in (*FILES, "trainer_state.json", "COMMIT.json")),
            *(f"tiny/{name}" for name in ("run.yaml", "manifest.json", "plan.json", "events.jsonl")),
            "tiny/artifacts/final/model.safetensors",
            "tiny/artifacts/final/FILES.json",
        ]
    )
    assert checkpoints.stored(run_dir.checkpoints) == {10: one.commit.digest}
    written = [event for event in events.read(run_dir.events_file) if event["event"] == "store"]
    assert [(event["step"], event["copied"]) for event in written] == [(10, True)]


def test_the_record_is_written_after_every_file(
    run_dir: RunDir, store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = commit(run_dir, 10)
    order: list[str] = []
    for verb in ("upload", "create"):
        real = getattr(store.inner, verb)

        def noted(first: Any, second: Any, *rest: Any, verb: str = verb, real: Any = real) -> Any:
            order.append(Path(second if verb == "upload" else first).name)
            return real(first, second, *rest)

        monkeypatch.setattr(store.inner, verb, noted)
    own = lease_of(store)
    own.acquire()
    order.clear()
    push.copy_checkpoint(store, run_dir, one, own)
    assert order[-1] == "COMMIT.json"
    assert sorted(order[:-1]) == sorted(one.commit.files)


def test_a_push_that_fails_says_so_and_the_next_goes_on(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run_dir, 10)
    opened = open_folder(tmp_path / "store")
    real = opened.inner.upload
    monkeypatch.setattr(opening, "of_run", lambda run, folder: opened)

    def cut(source: Path, name: str, sha256: str) -> None:
        if name.endswith("state.safetensors"):
            raise Fault("the line is cut")
        real(source, name, sha256)

    monkeypatch.setattr(opened.inner, "upload", cut)
    outcome = push.push(run_dir)
    assert (outcome["copied"], outcome["reason"]) == (False, "the line is cut")
    assert checkpoints.stored(run_dir.checkpoints) == {}
    assert not [name for name in shown(tmp_path / "store") if name.endswith("COMMIT.json")]
    monkeypatch.undo()
    assert push.push(run_dir)["copied"] is True


def test_what_the_store_lost_is_copied_again(tmp_path: Path, run_dir: RunDir, store: Patient) -> None:
    """The note here that a step is in the store says nothing about the store."""
    commit(run_dir, 10)
    _finish(run_dir, b"final")
    assert push.push(run_dir)["copied"]
    shutil.rmtree(tmp_path / "store")
    assert push.push(run_dir)["copied"]
    _assert_whole(store)
    (lost,) = (tmp_path / "store").glob("tiny/checkpoints/*/config.json")
    lost.unlink()
    (tmp_path / "store/tiny/artifacts/final/model.safetensors").write_bytes(b"")
    assert push.push(run_dir)["copied"]
    _assert_whole(store)


def test_another_store_gets_copies_of_its_own(tmp_path: Path, run_dir: RunDir) -> None:
    commit(run_dir, 10)
    assert push.push(run_dir)["copied"]
    text = run_dir.run_file.read_text(encoding="utf-8")
    run_dir.run_file.write_text(text.replace(str(tmp_path / "store"), str(tmp_path / "other")), encoding="utf-8")
    assert push.push(run_dir)["copied"]
    assert len(list((tmp_path / "other").glob("tiny/checkpoints/*/COMMIT.json"))) == 1


def _finish(run_dir: RunDir, content: bytes) -> None:
    run_dir.final.mkdir(parents=True, exist_ok=True)
    (run_dir.final / "model.safetensors").write_bytes(content)


def _assert_whole(store: Patient) -> None:
    examined = verification.examine(store, "tiny")
    assert [one["verified"] for one in (*examined["checkpoints"], examined["final"])] == [True, True]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_push_that_ends_otherwise_is_not_written_down_as_a_copy(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    commit(run_dir, 10)

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(push.shutil, "copyfile", broken)
    with contextlib.suppress(KeyboardInterrupt):
        assert "No space left" in push.push(run_dir)["reason"]
    (event,) = events.read(run_dir.events_file)
    assert event["copied"] is False


def test_the_copies_of_another_run_of_the_same_name_are_not_touched(tmp_path: Path, run_dir: RunDir) -> None:
    commit(run_dir, 10)
    assert push.push(run_dir)["copied"]
    before = {name: (tmp_path / "store" / name).read_bytes() for name in shown(tmp_path / "store")}
    other = make_run(tmp_path / "other box", tmp_path / "store", **{"batch: 4": "batch: 8"})
    commit(other, 20)
    with pytest.raises(StokerError) as caught:
        push.push(other)
    assert caught.value.code == "STK659"
    assert {name: (tmp_path / "store" / name).read_bytes() for name in shown(tmp_path / "store")} == before


def test_local_rotation_neither_waits_nor_breaks_a_copy(
    run_dir: RunDir, store: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = commit(run_dir, 10)
    real, own = store.inner.upload, lease_of(store)
    own.acquire()

    def meanwhile(source: Path, name: str, sha256: str) -> None:
        for step in (20, 30, 40):
            commit(run_dir, step)
            checkpoints.rotate(run_dir.checkpoints, 2, set())
        assert not one.path.exists()
        real(source, name, sha256)

    monkeypatch.setattr(store.inner, "upload", meanwhile)
    push.copy_checkpoint(store, run_dir, one, own)
    (copy,) = copies.committed(store, "tiny", store.names("tiny"))
    assert copy.commit == one.commit
    assert not (run_dir.store_folder / "held").exists()


def test_rotation_keeps_the_newest_that_is_in_the_store(run_dir: RunDir) -> None:
    commit(run_dir, 10)
    push.push(run_dir)
    for step in (20, 30, 40):
        commit(run_dir, step)
        checkpoints.rotate(run_dir.checkpoints, 2, set())
    assert [one.step for one in checkpoints.committed(run_dir.checkpoints)] == [10, 30, 40]


def test_the_store_keeps_the_newest_and_the_best(tmp_path: Path, store: Patient) -> None:
    run_dir = make_run(tmp_path / "box", tmp_path / "store", **{"keep: 2": "keep: 2, best: eval_loss",
                                                               "text.txt": "text.txt, eval: 5%"})  # fmt: skip
    for step in (10, 20, 30, 40):
        commit(run_dir, step)
        assert push.push(run_dir)["copied"]
    assert [copy.commit.step for copy in copies.committed(store, "tiny", store.names("tiny"))] == [10, 30, 40]
    assert len(list((tmp_path / "store/tiny/checkpoints").iterdir())) == 3


def test_the_best_is_copied_too_and_comes_back_with_the_newest(tmp_path: Path, store: Patient) -> None:
    words = {"keep: 2": "keep: 2, best: eval_loss", "text.txt": "text.txt, eval: 5%"}
    run_dir = make_run(tmp_path / "box", tmp_path / "store", **words)
    for step in (10, 20, 30):  # the copier was slow: only the last of them is the newest now
        commit(run_dir, step)
    assert push.push(run_dir)["copied"]
    assert [copy.commit.step for copy in copies.committed(store, "tiny", store.names("tiny"))] == [10, 30]
    other = make_run(tmp_path / "other box", tmp_path / "store", **words)
    fetch.newer_checkpoint(store, other, lambda copy: None)
    assert [one.step for one in checkpoints.committed(other.checkpoints)] == [10, 30]


def test_nothing_is_deleted_in_the_store_before_the_newer_copy_stands(run_dir: RunDir, store: Patient) -> None:
    own = lease_of(store)
    own.acquire()
    for step in (10, 20, 30):
        push.copy_checkpoint(store, run_dir, commit(run_dir, step), own)
    missing = commit(run_dir, 40)
    with pytest.raises(Fault, match="not in the store"):
        push.retain(store, run_dir, run_dir.run(), missing)
    assert len(copies.committed(store, "tiny", store.names("tiny"))) == 3


def test_copies_beyond_the_newest_do_not_count(run_dir: RunDir, store: Patient) -> None:
    """Step 40 was damaged here and there, and training went on from 10."""
    own = lease_of(store)
    own.acquire()
    for step in (10, 40):
        push.copy_checkpoint(store, run_dir, commit(run_dir, step), own)
    for step in (15, 20):
        newest = commit(run_dir, step)
        push.copy_checkpoint(store, run_dir, newest, own)
        push.retain(store, run_dir, run_dir.run(), newest)
    assert [copy.commit.step for copy in copies.committed(store, "tiny", store.names("tiny"))] == [15, 20, 40]


def test_two_states_of_one_step_do_not_overwrite_each_other(run_dir: RunDir, store: Patient) -> None:
    own = lease_of(store)
    own.acquire()
    push.copy_checkpoint(store, run_dir, commit(run_dir, 10), own)
    push.copy_checkpoint(store, run_dir, commit(run_dir, 10, b"after a resume"), own)
    assert len(copies.committed(store, "tiny", store.names("tiny"))) == 2


def test_a_checkpoint_that_rotted_here_is_not_copied(run_dir: RunDir, store: Patient) -> None:
    one, own = commit(run_dir, 10), lease_of(store)
    own.acquire()
    (one.path / "model.safetensors").write_bytes(b"x" * one.commit.files["model.safetensors"].bytes)
    with pytest.raises(StokerError) as caught:
        push.copy_checkpoint(store, run_dir, one, own)
    assert caught.value.code == "STK658"
    assert copies.committed(store, "tiny", store.names("tiny")) == []


# ---- and back


@pytest.fixture
def stored(run_dir: RunDir, store: Patient) -> Patient:
    for step in (10, 20):
        commit(run_dir, step)
        assert push.push(run_dir)["copied"]
    return store


def fresh(tmp_path: Path, **changes: str) -> RunDir:
    return make_run(tmp_path / "other box", tmp_path / "store", **changes)


def test_the_newest_copy_comes_to_a_fresh_machine(tmp_path: Path, stored: Patient) -> None:
    run_dir = fresh(tmp_path)
    assert fetch.require_same_run(stored, run_dir, run_dir.run())
    found, passed = fetch.newer_checkpoint(stored, run_dir, lambda copy: None)
    assert (found.step if found else None, passed) == (20, [])
    here, rejected = checkpoints.newest_verified(run_dir.checkpoints)
    assert (here.step if here else None, rejected) == (20, [])
    assert list((run_dir.store_folder / "fetch").iterdir()) == []


def test_what_is_newer_here_stays(tmp_path: Path, stored: Patient) -> None:
    run_dir = fresh(tmp_path)
    commit(run_dir, 30)
    assert fetch.newer_checkpoint(stored, run_dir, lambda copy: None) == (None, [])


def test_a_damaged_copy_is_passed_over_for_an_older_one(tmp_path: Path, stored: Patient) -> None:
    (damaged,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000020-*/model.safetensors")
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    run_dir = fresh(tmp_path)
    found, passed = fetch.newer_checkpoint(stored, run_dir, lambda copy: None)
    assert found is not None
    assert found.step == 10
    assert len(passed) == 1
    assert "model.safetensors" in passed[0].reason


def test_a_copy_without_its_record_does_not_exist(tmp_path: Path, stored: Patient) -> None:
    (record,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000020-*/COMMIT.json")
    record.unlink()
    found, _ = fetch.newer_checkpoint(stored, fresh(tmp_path), lambda copy: None)
    assert found is not None
    assert found.step == 10


def test_a_fetch_goes_on_after_a_cut(tmp_path: Path, stored: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = fresh(tmp_path)
    real, asked = stored.inner.download, []

    def counted(name: str, target: Path, size_bytes: int) -> None:
        begun = target.stat().st_size if target.exists() else 0
        asked.append((Path(name).name, begun))
        if name.endswith("model.safetensors") and not begun:
            target.write_bytes(b"m" * 2000)
            raise Fault("cut", gained_bytes=2000)
        real(name, target, size_bytes)

    monkeypatch.setattr(stored.inner, "download", counted)
    found, _ = fetch.newer_checkpoint(stored, run_dir, lambda copy: None)
    assert found is not None
    assert ("model.safetensors", 2000) in asked


def test_a_copy_of_other_data_is_refused(tmp_path: Path, stored: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        digest = "d2"

    monkeypatch.setattr(fetch.prepared, "read_report", lambda data: Other)
    with pytest.raises(StokerError) as caught:
        fetch.newer_checkpoint(stored, fresh(tmp_path), lambda copy: None)
    assert caught.value.code == "STK660"


def test_another_run_of_the_same_name_is_refused_with_the_words_that_differ(tmp_path: Path, stored: Patient) -> None:
    run_dir = fresh(tmp_path, **{"batch: 4": "batch: 8"})
    with pytest.raises(StokerError) as caught:
        fetch.require_same_run(stored, run_dir, run_dir.run())
    assert caught.value.code == "STK659"
    assert "train.batch 4 -> 8" in str(caught.value)


def test_how_it_is_saved_and_where_it_runs_may_differ(tmp_path: Path, stored: Patient) -> None:
    run_dir = fresh(tmp_path, **{"keep: 2": "keep: 5"})
    assert fetch.require_same_run(stored, run_dir, run_dir.run())


OUTSIDE = ["../../escaped", "/etc/escaped", "a/../../escaped", "a\\..\\escaped", "C:escaped"]
IMPOSSIBLE = ["COMMIT.json", "a\0b", "x" * 300, "config.json/below"]


@pytest.mark.parametrize("name", [*OUTSIDE, *IMPOSSIBLE])
def test_a_record_that_names_files_outside_or_impossible_ones_is_passed_over(
    tmp_path: Path, stored: Patient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (path,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000020-*/COMMIT.json")
    said = json.loads(path.read_text(encoding="utf-8"))
    said["files"][name] = {"bytes": 1, "sha256": hashlib.sha256(b"1").hexdigest()}
    real = stored.inner.download

    def obliging(wanted: str, target: Path, size_bytes: int) -> None:
        target.write_bytes(b"1") if wanted.endswith(name) else real(wanted, target, size_bytes)

    monkeypatch.setattr(stored.inner, "download", obliging)
    sealed = checkpoints.sealed(said)
    path.write_text(files.json_text(sealed), encoding="utf-8")
    moved = path.parent.with_name(f"step-00000020-{sealed['digest'][:12]}")
    path.parent.rename(moved)
    found, _ = fetch.newer_checkpoint(stored, fresh(tmp_path), lambda copy: None)
    assert found is not None
    assert found.step == 10


def test_a_record_that_is_not_utf_8_is_no_record(tmp_path: Path, stored: Patient) -> None:
    (path,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000020-*/COMMIT.json")
    said = json.loads(path.read_text(encoding="utf-8"))
    sealed = checkpoints.sealed({**said, "created": "2026-01-01T00:00:00+00:00 \ufffd"})
    path.write_bytes(files.json_text(sealed).encode().replace("\ufffd".encode(), b"\xff"))
    path.parent.rename(path.parent.with_name(f"step-00000020-{sealed['digest'][:12]}"))
    found, _ = fetch.newer_checkpoint(stored, fresh(tmp_path), lambda copy: None)
    assert found is not None
    assert found.step == 10


@pytest.mark.parametrize(("name", "content"), [("manifest.json", b"[" * 100_000), ("run.yaml", b"\xff"),
                                               ("run.yaml", b"model: 1")])  # fmt: skip
def test_records_nobody_can_read_are_named(tmp_path: Path, stored: Patient, name: str, content: bytes) -> None:
    stored.write(f"tiny/{name}", content)
    run_dir = fresh(tmp_path)
    with pytest.raises(StokerError) as caught:
        fetch.require_same_run(stored, run_dir, run_dir.run())
    assert caught.value.code == "STK658"
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.json", "run.yaml", "lease.json", "artifacts/final/FILES.json"])
def test_what_is_too_large_is_not_read_into_memory(
    tmp_path: Path, stored: Patient, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(store_protocol, "LARGEST_SMALL_BYTES", 2000)
    stored.write(f"tiny/{name}", b" " * 3000)
    run_dir = fresh(tmp_path)

    def ask() -> None:
        fetch.require_same_run(stored, run_dir, run_dir.run())
        lease_of(stored).acquire()
        fetch.fetch_artifact(stored, run_dir, "final", stored.names("tiny"))

    with pytest.raises(StokerError) as caught:
        ask()
    assert caught.value.code == "STK658"
    assert name in str(caught.value)


def test_nothing_of_an_earlier_attempt_becomes_part_of_a_model(tmp_path: Path, run_dir: RunDir, store: Patient) -> None:
    commit(run_dir, 10)
    _finish(run_dir, b"final")
    assert push.push(run_dir)["copied"]
    there = fresh(tmp_path)
    aside = there.store_folder / "fetch" / "artifact-final"
    aside.mkdir(parents=True)
    (aside / "adapter_config.json").write_bytes(b"of another model")
    assert fetch.fetch_artifact(store, there, "final", store.names("tiny"))
    assert shown(there.final) == ["model.safetensors"]


def test_a_model_that_was_brought_gives_way_to_a_newer_one_and_one_made_here_does_not(
    tmp_path: Path, run_dir: RunDir, store: Patient
) -> None:
    there = fresh(tmp_path)

    def pulled() -> bytes:
        assert push.push(run_dir)["copied"]
        assert fetch.fetch_artifact(store, there, "final", store.names("tiny"))
        return (there.final / "model.safetensors").read_bytes()

    commit(run_dir, 10)
    for content in (b"first", b"second", b"second"):
        _finish(run_dir, content)
        assert pulled() == content
    _finish(there, b"made here")
    _finish(run_dir, b"third")
    assert pulled() == b"made here"


def test_room_is_asked_for_what_is_not_here_yet(
    tmp_path: Path, stored: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(files, "require_room", lambda folder, needed: asked.append(needed))
    run_dir = fresh(tmp_path)
    copy = copies.committed(stored, "tiny", stored.names("tiny"))[-1]
    aside = run_dir.store_folder / "fetch" / Path(copy.folder).name
    aside.mkdir(parents=True)
    (aside / ".model.safetensors.part").write_bytes(b"m" * 2000)
    fetch.fetch_checkpoint(stored, run_dir, copy)
    assert asked == [copy.commit.total_bytes - 2000]


def test_an_artifact_list_that_names_files_outside_is_refused(tmp_path: Path, stored: Patient) -> None:
    stored.write("tiny/artifacts/final/FILES.json", json.dumps({"../x": {"bytes": 1, "sha256": "0" * 64}}).encode())
    with pytest.raises(StokerError) as caught:
        fetch.fetch_artifact(stored, fresh(tmp_path), "final", stored.names("tiny"))
    assert caught.value.code == "STK658"


def test_verification_finds_every_kind_of_damage(tmp_path: Path, stored: Patient) -> None:
    examined = verification.examine(stored, "tiny")
    assert [one["verified"] for one in examined["checkpoints"]] == [True, True]
    (flipped,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000010-*/state.safetensors")
    flipped.write_bytes(b"x" * flipped.stat().st_size)
    (missing,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000020-*/config.json")
    missing.unlink()
    reasons = [one["reason"] for one in verification.examine(stored, "tiny")["checkpoints"]]
    assert reasons == ["state.safetensors has another digest", "config.json is missing"]
    (changed,) = (tmp_path / "store").glob("tiny/checkpoints/step-00000010-*/COMMIT.json")
    changed.write_text(changed.read_text(encoding="utf-8").replace('"world": 1', '"world": 2'), encoding="utf-8")
    reasons = [one["reason"] for one in verification.examine(stored, "tiny")["checkpoints"]]
    assert "COMMIT.json was changed" in reasons


def test_runs_of_a_store_are_found_by_their_manifest(stored: Patient) -> None:
    stored.write("..strange/manifest.json", b"{}")
    stored.write("half/run.yaml", b"")
    assert copies.run_names(stored.names("")) == ["tiny"]


def test_bandwidth_is_a_word_of_the_run_file() -> None:
    text = "model: a/b\ndata: {train: x.jsonl}\nsave: {store: /mnt/x, bandwidth: 20 MB/s}\n"
    assert load.parse(text, "run.yaml").save.bandwidth == "20 MB/s"


def test_a_second_copier_of_a_run_waits_its_turn(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(run_dir, 10)
    answers = iter([False, False, True])
    real = push.lock.held

    def held(path: Path, **options: Any) -> Any:
        if path.name == "copy.lock" and not next(answers):
            return contextlib.nullcontext(False)
        return real(path, **options)

    waits: list[float] = []
    monkeypatch.setattr(push.lock, "held", held)
    monkeypatch.setattr(push.time, "sleep", waits.append)
    assert push.push(run_dir)["copied"]
    assert len(waits) == 2


def test_finding_a_run_by_name_still_works_with_its_store_folder(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(run_dir, 10)
    push.push(run_dir)
    monkeypatch.setenv("STOKER_RUNS", str(run_dir.path.parent))
    assert [one.name for one in layout.all_runs()] == ["tiny"]
