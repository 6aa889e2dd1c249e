"""What several workers need is made once, and anew after a failure."""

from collections.abc import Callable
from pathlib import Path

import pytest
import shared


@pytest.fixture
def once(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    monkeypatch.setenv("STOKER_TEST_SHARED", str(tmp_path / "kept"))
    return lambda make: shared.once(tmp_path_factory, "gw0", "made", make)


def test_it_is_made_once(once: Callable[..., Path]) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "a").write_text("whole")

    assert [(once(make) / "a").read_text() for _ in range(3)] == ["whole"] * 3
    assert len(made) == 1


def test_what_failed_half_way_is_made_anew(once: Callable[..., Path]) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        once(fails)
    assert list(once(lambda folder: (folder / "whole").touch()).iterdir()) == [once(fails) / "whole"]
