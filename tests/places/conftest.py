"""Tests on boxes of their own: skipped, with the reason, where this machine cannot have any."""

from collections.abc import Iterator
from pathlib import Path

import boxes
import launched as scenario
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents and _needs_boxes(item)]
    why_not = boxes.available() if ours else ""
    if why_not:
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=why_not))


def _needs_boxes(item: pytest.Item) -> bool:
    names = vars(item.module) if isinstance(item, pytest.Function) else {}
    return "boxes" in names or "launched" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scenario.Launch]:
    with scenario.launched(tmp_path_factory.mktemp("launched")) as seen:
        yield seen
