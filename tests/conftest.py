"""What all tests share: nobody asks the cloud a test may run in, and no file's settings reach the next."""

import os
from collections.abc import Iterator

import pytest

pytest_plugins = ["tiers"]

os.environ.setdefault("STOKER_METADATA", "off")  # tests about spot notices name a simulation


@pytest.fixture(autouse=True, scope="module")
def _settings_of_this_file_only() -> Iterator[None]:
    """Runs made in a test's own process set the folder of runs; the next file's commands must not find it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
