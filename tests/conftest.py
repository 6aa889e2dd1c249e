"""What all tests share: nobody asks the cloud a test may run in, and no file's settings reach the next."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import shared
import tour

pytest_plugins = ["tiers"]

os.environ.setdefault("STOKER_METADATA", "off")  # tests about spot notices name a simulation


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
