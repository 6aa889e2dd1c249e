"""Supervisors of stand-in trainers."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import supervised_case

from stoker.supervise.supervisor import Supervisor


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., Supervisor]:
    return functools.partial(supervised_case.make, tmp_path)
