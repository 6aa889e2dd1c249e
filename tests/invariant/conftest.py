from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tiny_run

    return tiny_run.make_base_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
