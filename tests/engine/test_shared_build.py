"""A model that one rank of a machine builds and the others map is the model each would have built, to the byte."""

import errno
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
from built_by_ranks import by_ranks, held, loaded, model_files

from stoker.engine import shared_build
from stoker.engine.parallel import Ranks
from stoker.errors import StokerError

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every rank builds its own"),
]
TIED, DENSE, EXPERTS, HYBRID, TOWER = "gemma2", "llama", "mixtral", "qwen3_next", "gemma3"


@pytest.fixture(autouse=True)
def _few_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models have small tensors; most of them are to be mapped."""
    monkeypatch.setattr(shared_build, "_SMALL_BYTES", 512)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (TIED, {}),
        (DENSE, {"dtype": torch.bfloat16}),  # not the type of its files
        (EXPERTS, {}),
        (HYBRID, {}),
        (TOWER, {}),
        (DENSE, {"packed": True, "dtype": torch.bfloat16}),
    ],
)
def test_every_rank_has_what_one_would_have_built(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    base = tiny_families.save(tmp_path / "base", family)
    expected = json.loads(json.dumps(held(loaded(base, **options))))
    assert by_ranks(2, lambda: loaded(base, **options), held) == [expected] * 2
    assert bool(expected["ties"]) == (family in (TIED, TOWER))


def test_only_the_first_rank_builds(tmp_path: Path) -> None:
    def make() -> Any:
        (tmp_path / "built").open("a").write("once\n")
        return torch.nn.Linear(64, 64)

    by_ranks(3, make, lambda *_: None)
    assert (tmp_path / "built").read_text() == "once\n"


def test_what_one_rank_writes_the_others_do_not_read() -> None:
    """And nothing is left open: the memory ends with the model."""

    def look(model: Any, ranks: Ranks) -> list[Any]:
        model.weight.data.fill_(ranks.rank)
        ranks.meet()
        return [float(model.weight.min()), float(model.weight.max()), model_files()]

    found = by_ranks(3, lambda: torch.nn.Linear(64, 64), look)
    assert found == [[rank, rank, []] for rank in range(3)]


def test_weights_that_are_mapped_from_files_stay_there(tmp_path: Path) -> None:
    """Those whose type stays; what was written to since is copied."""
    base = tiny_families.save(tmp_path / "base", DENSE)
    weights = str((base / "model.safetensors").resolve())  # by its path: a forked rank has its parent's mappings too

    def look(model: Any, _ranks: Ranks) -> list[bool]:
        files = Path("/proc/self/maps").read_text()
        return [weights in files, "memfd:stoker-model" in files, bool((model.lm_head.weight == 7).all())]

    def changed() -> Any:
        model = loaded(base)
        model.lm_head.weight.data.fill_(7)
        return model

    assert by_ranks(2, lambda: loaded(base), look) == [[True, False, False]] * 2
    assert by_ranks(2, changed, look) == [[False, True, True]] * 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (StokerError("STK413", model="a/b", reason="gone"), "STK413"),
        (MemoryError("17 GiB"), "MemoryError: 17 GiB"),
        (type("Odd", (Exception,), {})("of a class that nobody can import"), "of a class that nobody can import"),
    ],
)
def test_the_builders_error_is_what_every_rank_says(error: Exception, said: str) -> None:
    def make() -> Any:
        raise error

    found = by_ranks(2, make, lambda *_: "built")
    assert all(said in one for one in found), found


@pytest.fixture(params=["memfd_create", "/proc/PID/fd"])
def forbidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a hardened container refuses; of the second, the kernel itself refuses it to another user."""
    real = shared_build._reads_of_builder

    def refused(_name: str) -> int:
        raise PermissionError(errno.EPERM, "by a filter of system calls")

    def as_another_user(ranks: Ranks) -> bool:
        os.seteuid(65534 if ranks.rank_here else 0)
        try:
            return real(ranks)
        finally:
            os.seteuid(0)

    if request.param == "memfd_create":
        monkeypatch.setattr(os, "memfd_create", refused)
    elif os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    else:
        monkeypatch.setattr(shared_build, "_reads_of_builder", as_another_user)
    return str(request.param)


def test_where_sharing_is_forbidden_each_rank_builds_its_own(tmp_path: Path, forbidden: str) -> None:
    """To the same bytes, and the log says so, once per machine."""
    base, log = tiny_families.save(tmp_path / "base", DENSE), tmp_path / "log"
    expected = json.loads(json.dumps(held(loaded(base))))

    def make() -> Any:
        (tmp_path / "built").open("a").write("own\n")
        return loaded(base)

    with log.open("w", buffering=1) as file, redirect_stderr(file):
        assert by_ranks(2, make, held) == [expected] * 2, forbidden
    assert (tmp_path / "built").read_text() == "own\n" * 2
    assert log.read_text().count("each builds its own model") == 1


def test_a_file_of_somebody_else_is_not_taken_for_the_builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in namespaces of their own: the number of the builder's process is another's there."""
    other = tmp_path / "other"
    other.write_bytes(b"another")
    monkeypatch.setattr(shared_build, "_of_builder", lambda *_: other)
    with (tmp_path / "log").open("w") as file, redirect_stderr(file):
        found = by_ranks(2, lambda: torch.nn.Linear(2, 2), lambda *_: "built")
    assert found == ["built"] * 2


_FREEING = """
import torch
from contextlib import nullcontext
from memory_watch import anonymous_bytes
from stoker.engine import shared_build

torch.ones(7 << 20)
before = anonymous_bytes()
with {inside}():
    pairs = [(torch.ones(2 << 20), torch.ones(1 << 18)) for _ in range(16)]
    parts = [part for _, part in pairs]
    del pairs
print(anonymous_bytes() - before)
"""


@pytest.mark.parametrize(("inside", "returned"), [("shared_build._returned_at_once", True), ("nullcontext", False)])
def test_what_a_build_frees_is_not_kept(inside: str, *, returned: bool) -> None:
    """Sources of 8 MiB between what is made of them, 1 MiB each. The control: once glibc has seen larger ones freed.

    In a new process: what this one's heap holds, free or not, is other tests' work.
    """
    found = subprocess.run(
        [sys.executable, "-c", _FREEING.format(inside=inside)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (int(found.stdout) < 32 << 20) == returned


def test_alone_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(shared_build, "_Writer")
    model = torch.nn.Linear(2, 2)
    assert shared_build.build_once(lambda: model, Ranks()) is model
