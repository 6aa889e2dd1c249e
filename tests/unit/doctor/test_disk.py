import os
from pathlib import Path

import pytest

from stoker.doctor import disk
from stoker.facts.platforms import Platform, platforms


def platform(name: str) -> Platform:
    return next(one for one in platforms() if one.name == name)


VOLUME = platform("runpod").storage[1].path
"""Where RunPod mounts its volume: it survives a stop, and only a release ends billing."""


@pytest.mark.parametrize(
    ("name", "folder", "key", "status"),
    [
        ("autodl", "/root/autodl-fs/runs", "doctor.keep.always", "ok"),
        ("autodl", "/root/autodl-tmp/runs", "doctor.keep.stop", "ok"),
        ("runpod", f"{VOLUME}/runs", "doctor.keep.release", "warn"),
        ("runpod", "/srv/runs", "doctor.keep.lost", "warn"),
        ("colab", "/content/runs", "doctor.keep.lost", "warn"),
        ("colab", "/content/drive/MyDrive/runs", "doctor.keep.always", "ok"),
        ("kaggle", "/kaggle/working/runs", "doctor.keep.always", "ok"),
        ("featurize", "/opt/runs", "doctor.keep.unknown", "warn"),
    ],
)
def test_what_survives_is_told_by_platform_and_folder(name: str, folder: str, key: str, status: str) -> None:
    found = disk.persistence(Path(folder), platform(name))
    assert (found.key, found.status) == (key, status)
    assert folder in found.what
    assert bool(found.hint) == (status == "warn")


def test_hint_names_a_folder_that_stays() -> None:
    assert "/content/drive" in disk.persistence(Path("/content/runs"), platform("colab")).hint
    assert VOLUME in disk.persistence(Path("/srv/runs"), platform("runpod")).hint


def test_own_machine_is_recognised_by_the_absence_of_signs() -> None:
    assert disk.persistence(Path("/srv/runs"), None).status == "ok"


@pytest.mark.parametrize(("free", "status"), [(500e6, "fail"), (9e9, "warn"), (80e9, "ok")])
def test_space_is_judged_by_what_models_take(tmp_path: Path, free: float, status: str) -> None:
    assert disk.space(tmp_path, int(free)).status == status


def test_folder_that_cannot_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert disk.space(tmp_path, 10**12).key == "doctor.disk.read_only"


def test_runs_folder_need_not_exist_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab")
    space, persistence = disk.findings(tmp_path / "not" / "there")
    assert str(tmp_path) in space.what
    assert "Colab" in persistence.what
    assert not (tmp_path / "not").exists()
