"""What is sent to a box again: by the digest of the prepared set, its report last."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.config import load
from stoker.hosts.known import Host
from stoker.hosts.shell import LocalShell
from stoker.places import box
from stoker.places.box import Box
from stoker.places.package import Package
from stoker.rundir import files

SET, OTHER = "a" * 64, "b" * 64


class Cut(LocalShell):
    """A line that breaks before the second time it sends."""

    sent = 0

    def send(self, files: Mapping[str, Path], target: str) -> None:
        self.sent += 1
        if self.sent > 1:
            raise ConnectionError
        super().send(files, target)


@pytest.fixture
def place(tmp_path: Path) -> Box:
    host = Host(name="box", host="box", base=str(tmp_path / "there"))
    return Box(LocalShell(), host, load.load("scratch_tiny").run)


def package(folder: Path, **report: str) -> Package:
    """A run with a prepared set, in `folder`."""
    data = folder / "data"
    (data / "train").mkdir(parents=True)
    (data / "tokenizer").mkdir()
    for name in ("train/shard-0", "tokenizer/tokenizer_config.json"):
        (data / name).write_text(name)
    files.write_json(data / "report.json", {"format": 1, **report})
    names = {f"runs/r/data/{path.relative_to(data)}": path for path in data.rglob("*") if path.is_file()}
    return Package("r", names, "inputs/r", ("train",), {}, prepared=True)


def names(sent: Mapping[str, Path]) -> set[str]:
    return {name.removeprefix("runs/r/data/") for name in sent}


def test_a_set_with_another_report_is_not_sent_again_but_its_report_is(place: Box, tmp_path: Path) -> None:
    first = package(tmp_path / "first", digest=SET, key="1")
    box._send(place.shell, place.base, place._missing(first))
    assert place._missing(first) == {}
    renamed = package(tmp_path / "renamed", digest=SET, key="2")
    (Path(place.base) / "runs/r/checkpoints/step-00000001").mkdir(parents=True)
    (Path(place.base) / "runs/r/checkpoints/step-00000001/COMMIT.json").write_text("{}")
    assert names(place._missing(renamed)) == {"report.json", "tokenizer/tokenizer_config.json"}
    assert not place.kept_data


def test_another_set_is_sent_whole_or_kept_where_checkpoints_belong_to_it(place: Box, tmp_path: Path) -> None:
    box._send(place.shell, place.base, place._missing(package(tmp_path / "first", digest=SET)))
    other = package(tmp_path / "other", digest=OTHER)
    assert names(place._missing(other)) == {"report.json", "train/shard-0", "tokenizer/tokenizer_config.json"}
    (Path(place.base) / "runs/r/checkpoints/step-00000001").mkdir(parents=True)
    (Path(place.base) / "runs/r/checkpoints/step-00000001/COMMIT.json").write_text("{}")
    assert place._missing(other) == {}
    assert place.kept_data


def test_a_broken_line_leaves_no_report_of_half_a_set(place: Box, tmp_path: Path) -> None:
    first = package(tmp_path / "first", digest=SET)
    box._send(place.shell, place.base, place._missing(first))
    other = package(tmp_path / "other", digest=OTHER)
    with pytest.raises(ConnectionError):
        box._send(Cut(), place.base, place._missing(other))
    assert not (Path(place.base) / "runs/r/data/report.json").exists()
    assert "train/shard-0" in names(place._missing(first))


def test_a_launch_that_does_not_hold_its_lock_yet_is_asked_to_stop_too(
    place: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(box, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(place, "_forward", lambda *words: said.append(words) or 0)
    looks = iter([True, True, False])
    monkeypatch.setattr(place, "is_launched", lambda _: next(looks))
    folder = Path(place.run_folder("r"))
    folder.mkdir(parents=True)
    assert place.stop("r") == 0
    assert (folder / "stop").exists()
    assert said == [("stop", "r")]
