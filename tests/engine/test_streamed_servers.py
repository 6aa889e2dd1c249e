"""A streamed set on real servers, over a line that breaks: S3 and ssh, the bits of a local set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import store_servers
import streamed_case as case
import tiny_run
from network import DOWN, Cut, proxied
from store_servers import BUCKET

from stoker.store import row_ranges
from stoker.store.store_protocol import Patience

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tiny_run.RunDir:
    run_dir = case.local(tmp_path_factory.mktemp("local"), base)
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(row_ranges, "PATIENCE", Patience(stall_seconds=2))
    undo = case.hasty(said_seconds=1)
    yield
    undo()


@pytest.mark.skipif(not store_servers.has_rclone(), reason="no rclone")
@pytest.mark.usefixtures("hasty")
def test_cuts_and_a_slow_line_to_s3_change_no_bit(trained: tiny_run.RunDir, base: Path, tmp_path: Path) -> None:
    store = f"s3://{BUCKET}/set"
    with (
        store_servers.rclone(tmp_path / "served") as server,
        proxied(lambda _: server.port) as proxy,
        store_servers.reached(store_servers.s3_settings(proxy.port)),
    ):
        case.pushed(trained, store)
        run_dir = case.referring(tmp_path / "run", base, store, words=", stream: true, cache: 4 kB")
        proxy.bytes_per_second = 8000
        proxy.arm([Cut(kind, DOWN, 2500) for kind in ("reset", "stall", "flip", "half-open")])
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
        assert len(proxy.fired) == 4
    assert tiny_run.losses(run_dir) == tiny_run.losses(trained)
    assert case.sha(run_dir) == case.sha(trained)
    assert case.told(run_dir, "stalled")


@pytest.mark.skipif(not store_servers.has_sshd(), reason="no sshd")
def test_a_set_is_streamed_over_ssh(trained: tiny_run.RunDir, base: Path, tmp_path: Path) -> None:
    with store_servers.sshd(tmp_path / "sshd") as server, store_servers.reached(server.settings):
        store = f"ssh://127.0.0.1:{server.port}{tmp_path}/set"
        case.pushed(trained, store)
        run_dir = case.referring(tmp_path / "run", base, store, words=", stream: true")
        assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    assert case.sha(run_dir) == case.sha(trained)
