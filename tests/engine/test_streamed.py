"""A prepared set in a directory store: pushed once, fetched or streamed; the bits of a local set, whatever happens."""

import shutil
from pathlib import Path

import pytest
import streamed_case as case
import tiny_run

from stoker.rundir import files, set_list

pytestmark = pytest.mark.filterwarnings("default")
STREAM = ", stream: true"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tiny_run.RunDir, str]:
    """A run with a set of its own, trained, and the store that it was pushed to."""
    folder = tmp_path_factory.mktemp("local")
    run_dir = case.local(folder, base)
    store = str(folder / "store")
    assert case.pushed(run_dir, store) > 0
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir, store


def test_a_set_is_sent_once(trained: tuple[tiny_run.RunDir, str]) -> None:
    run_dir, store = trained
    assert case.pushed(run_dir, store) == 0


def test_a_streamed_run_has_the_bits_of_a_local_one(
    trained: tuple[tiny_run.RunDir, str], base: Path, tmp_path: Path
) -> None:
    local, store = trained
    run_dir = case.referring(tmp_path, base, store, words=STREAM)
    assert not list(run_dir.data.glob("train/*/tokens.bin"))
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.losses(run_dir) == tiny_run.losses(local)
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(local)
    assert case.sha(run_dir) == case.sha(local)
    assert not case.told(run_dir, "damaged")


def test_a_fetched_set_is_the_local_one(trained: tuple[tiny_run.RunDir, str], base: Path, tmp_path: Path) -> None:
    local, store = trained
    run_dir = case.referring(tmp_path, base, store)
    for path in local.data.rglob("*.bin"):
        assert files.sha256(path) == files.sha256(run_dir.data / path.relative_to(local.data))
    assert set_list.read(run_dir.data) is not None
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert case.sha(run_dir) == case.sha(local)


def test_a_kill_and_loader_processes_change_nothing_and_the_cache_stays_within_its_bound(
    trained: tuple[tiny_run.RunDir, str], base: Path, tmp_path: Path
) -> None:
    local, store = trained
    words = f"{STREAM}, cache: 6 kB"
    run_dir = case.referring(tmp_path, base, store, words=words, where="micro: 4, workers: 2")
    assert tiny_run.train(run_dir, kill_after=6) == -9
    cached = [path for path in (run_dir.store_folder / "stream").rglob("*") if path.is_file()]
    assert cached
    assert sum(path.stat().st_size for path in cached) <= 6000 + 2 * 8 * 64 * 4  # one step of each always has room
    cached[0].write_bytes(bytes(cached[0].stat().st_size))  # as a power cut leaves it
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.losses(run_dir) == tiny_run.losses(local)
    assert case.sha(run_dir) == case.sha(local)


def test_two_ranks_read_their_own_rows_only(trained: tuple[tiny_run.RunDir, str], base: Path, tmp_path: Path) -> None:
    local, store = trained
    where = "micro: 2, processes: 2, strategy: ddp, arrange: rows"
    run_dir = case.referring(tmp_path / "two", base, store, words=STREAM, where=where)
    own = case.local(tmp_path / "own", base, where=where)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.train(own) == 0, tiny_run.said(own)
    assert tiny_run.losses(run_dir) == tiny_run.losses(own)
    assert case.sha(run_dir) == case.sha(own)
    assert tiny_run.sequences(run_dir) == tiny_run.sequences(local)


def test_a_wrong_byte_in_the_store_is_refused_and_said(base: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    own = case.local(tmp_path / "own", base)
    case.pushed(own, str(store))
    run_dir = case.referring(tmp_path / "planted", base, str(store), words=STREAM)
    listed = set_list.read(run_dir.data)
    assert listed is not None
    stored = store / set_list.object_name(listed.files["train/shard-00000/tokens.bin"])
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    assert tiny_run.train(run_dir) != 0
    assert "STK345" in tiny_run.said(run_dir)
    assert len(case.told(run_dir, "damaged")) == 3
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert tiny_run.train(own) == 0
    assert case.sha(run_dir) == case.sha(own)


def test_a_store_that_is_away_is_waited_for_said_and_given_up_at_last(
    trained: tuple[tiny_run.RunDir, str], base: Path, tmp_path: Path
) -> None:
    local, store = trained
    there, away = tmp_path / "there", tmp_path / "away"
    shutil.copytree(store, there)
    run_dir = case.referring(tmp_path / "run", base, str(there), words=STREAM)
    there.rename(away)
    undo = case.hasty(give_up_seconds=4, said_seconds=1)
    try:
        assert tiny_run.train(run_dir) != 0
    finally:
        undo()
    assert "STK341" in tiny_run.said(run_dir)
    assert case.told(run_dir, "stalled")[0]["step"] == 1
    away.rename(there)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert case.sha(run_dir) == case.sha(local)
