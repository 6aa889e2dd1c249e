"""Boxes whose image is too old, or has no Python, no pip, no line or no room: refused in words before anything is sent.

Older Pythons and torches are stand-ins: a script that answers the probe as such a Python does, and a package that holds
nothing but the version of such a torch.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import boxes
import pytest
from laptop import Laptop, laptop
from old_images import hidden, stand_in_torch
from rich.cells import cell_len

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(bool(boxes.available()), reason=boxes.available() or "-"),
]

PYTHON = "/usr/local/bin/python3"
STAND_IN = """#!/bin/sh
# A stand-in for Python {version}: answers the probe, and runs nothing.
case "$*" in
  *sys.version_info*) exit 0 ;;
  *importlib*) echo '{answer}' ;;
  *) echo "a stand-in for Python {version} was asked to run: $*" >&2; exit 1 ;;
esac
"""


def stand_in_python(version: str, torch: str) -> str:
    """A program that says it is such a Python, with such a torch and without pip."""
    answer = {
        "prefix": "/usr/local",
        "executable": PYTHON,
        "version": version,
        "packages": {"torch": torch} if torch else {},
        "has_pip": False,
        "cuda": "",
        "usable": None,
        "cards": [],
    }
    return STAND_IN.format(version=version, answer=json.dumps(answer))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Laptop]:
    with laptop(tmp_path) as one:
        yield one


def _adds(own: Laptop, box: boxes.Box, language: str) -> str:
    """`stoker hosts add` of a box that is refused: what it says."""
    words = ("hosts", "add", "old", f"ssh://root@{box.address}:{box.port}", "--yes")
    said = own.stoker(*words, env={"STOKER_LANG": language, "COLUMNS": "80"}, check=False)
    assert said.returncode == 1, said.stderr
    assert "Traceback" not in said.stderr
    assert "STK712" in said.stderr
    assert max(cell_len(line) for line in said.stdout.splitlines()) <= 80, said.stdout
    return said.stderr


def _login(own: Laptop, box: boxes.Box) -> None:
    config = own.home / "ssh_config"
    config.write_text(f"Host {box.address}\n  IdentityFile {box.key}\n  IdentitiesOnly yes\n", encoding="utf-8")
    own.env["STOKER_SSH_CONFIG"] = str(config)


@pytest.mark.parametrize("version", ["2.1.0+cu118", "2.5.1+cu124", "2.8.0+cu128"])
def test_an_older_torch_without_a_line_is_refused_when_the_box_is_added_and_when_a_run_is_sent(
    tmp_path: Path, own: Laptop, version: str
) -> None:
    files = {**boxes.PLAIN.files, **stand_in_torch(version)}
    with boxes.plain(tmp_path, without=hidden("torch"), files=files) as box:
        _login(own, box)
        english, chinese = (_adds(own, box, language) for language in ("en", "zh"))
        for said in (english, chinese):
            assert f"torch {version}" in said
            assert "2.10" in said
        own.writes("tiny")
        sent = own.stoker("train", "tiny.yaml", "--on", "old", "--yes", check=False)
        assert sent.returncode == 1
        assert "STK712" in sent.stderr
        assert not (box.root / "root/stoker").exists(), "nothing was sent"
        assert not (own.runs / "tiny").exists(), "nothing was prepared"


@pytest.mark.parametrize(
    ("version", "torch"), [("3.8.10", "2.1.0+cu118"), ("3.8.10", ""), ("3.10.8", "2.5.1+cu124"), ("", "")]
)
def test_an_old_python_or_none_is_refused_in_words(tmp_path: Path, own: Laptop, version: str, torch: str) -> None:
    files = {**boxes.PLAIN.files, **({PYTHON: stand_in_python(version, torch)} if version else {})}
    with boxes.plain(tmp_path, python="", files=files) as box:
        if version:
            (box.root / PYTHON.lstrip("/")).chmod(0o755)
        _login(own, box)
        for language in ("en", "zh"):
            assert f"Python {version or '-'}, torch {torch or '-'}" in _adds(own, box, language)
        assert json.loads(own.stoker("hosts", "list", "--json").stdout)[0]["name"] == "old", "it can still be used"


def test_without_rsync_and_a_line_an_image_that_has_all_packages_trains(tmp_path: Path, own: Laptop) -> None:
    with boxes.plain(tmp_path, hidden=(*boxes.PLAIN.hidden, "rsync")) as box:
        own.knows(box)
        own.writes("tiny", steps=4)
        own.stoker("prepare", "tiny.yaml")
        said = own.stoker("train", "tiny.yaml", "--on", "box", "--yes")
        assert "keeps the image's torch" in (said.stdout + said.stderr).replace("\n", " ").replace("  ", " ")
        assert (box.root / "root/stoker/runs/tiny/manifest.json").exists()


def test_a_disk_without_room_for_environment_and_checkpoint_is_refused_with_figures(
    tmp_path: Path, own: Laptop
) -> None:
    with boxes.autodl(tmp_path) as box:
        own.knows(box)
        own.writes("tiny")
        own.stoker("prepare", "tiny.yaml")
        box.fill("/root/autodl-tmp", leave_bytes=3 << 20)
        said = own.stoker("train", "tiny.yaml", "--on", "box", "--yes", check=False)
        assert said.returncode == 1
        assert "STK709" in said.stderr
        assert "3 MB free" in said.stderr.replace("\n", " ").replace("  ", " ")
        assert list((box.root / "root/autodl-tmp/stoker").iterdir()) == [], "nothing was sent"
        assert shutil.disk_usage(box.root / "root/autodl-tmp").free > 2 << 20
