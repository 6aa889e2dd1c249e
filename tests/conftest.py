"""What all tests share: nobody asks the cloud a test may run in, and no file's settings reach the next."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import boxes
import launched as scenario
import pytest
import shared
import tour

pytest_plugins = ["tiers"]

os.environ.setdefault("STOKER_METADATA", "off")  # tests about spot notices name a simulation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on boxes of their own are skipped, with the reason, where this machine cannot have any."""
    ours = [item for item in items if _needs_boxes(item)]
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


@pytest.fixture(autouse=True, scope="module")
def _settings_of_this_file_only() -> Iterator[None]:
    """Runs made in a test's own process set the folder of runs; the next file's commands must not find it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README's tour leaves: `scratch_tiny` and its adapter `sft_tiny`, merged and exported."""
    made = shared.once(tmp_path_factory, "tour", tour.walk)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("toured") / "here"))
