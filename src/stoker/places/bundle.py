"""A run as one zip and a notebook of three cells, for places that offer no ssh: Colab, Kaggle, PAI-DSW, any Jupyter.

The zip holds Stoker's wheel, the run's input files, prepared data and `bundle_main.py` as `__main__.py`, so that
`python ZIP` runs it. The cells find the zip and call it: install, train, result. It holds names of secrets, no values.
"""

import hashlib
import json
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from stoker import env, messages
from stoker.config import mixing
from stoker.config.run import Run
from stoker.hosts import wheel
from stoker.places import package as packages
from stoker.places.bundle_main import RECORD
from stoker.places.package import Package
from stoker.rundir import files

FORMAT = 1
DRIVE = "/content/drive"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Fixed times make equal content equal bytes: an equal bundle is not uploaded again."""
_SENTENCES = (
    "bundle.installing",
    "bundle.installed",
    "bundle.result",
    "bundle.unfinished",
    "bundle.no_room",
    "bundle.no_install",
    "bundle.bad_name",
    "bundle.bad_file",
)
"""Messages of `bundle_main.py`."""
_STORE_SECRETS = {"s3": (env.AWS_ACCESS_KEY_ID, env.AWS_SECRET_ACCESS_KEY), "hf": (env.HF_TOKEN,)}

FINDER = """\
import hashlib, json, os, subprocess, sys, zipfile
from pathlib import Path

NAME, DIGEST = {name!r}, {digest!r}
PLACES = {places!r}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def is_it(path):
    try:
        read = (lambda name: (path / name).read_bytes()) if path.is_dir() else zipfile.ZipFile(path).read
        record = read("{record}")
        return digest(record) == DIGEST and digest(read("__main__.py")) == json.loads(record)["program"]
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def find():
    for place in map(Path, PLACES):
        for depth in range(5 if str(place) == "/kaggle/input" else 2):
            below = "*/" * depth
            unpacked = [record.parent for record in place.glob(below + "{record}")]
            for path in [*place.glob(below + NAME), *unpacked]:
                if is_it(path):
                    return path
"""
"""Python that finds the bundle with this digest, its program included: the zip, or the folder it was unpacked into."""

_CALL = """

def bundle(*words):
    command = [sys.executable, "-u", str(BUNDLE), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        for line in child.stdout:
            print(line.decode("utf-8", "replace"), end="")
    return child.returncode


"""
_MOUNT = """\
if Path("/content").is_dir() and not Path("{drive}/MyDrive").is_dir():
    from google.colab import drive

    drive.mount("{drive}")
"""
_UPLOAD = """\
if BUNDLE is None and Path("/content").is_dir():
    from google.colab import files

    files.upload()
    BUNDLE = find()
assert BUNDLE, {missing!r}
assert bundle("install") == 0
"""
_SECRETS = """\
for name in {names!r}:
    try:
        from google.colab import userdata
        os.environ.setdefault(name, userdata.get(name))
    except Exception:
        pass
    try:
        from kaggle_secrets import UserSecretsClient
        os.environ.setdefault(name, UserSecretsClient().get_secret(name))
    except Exception:
        pass
"""
_RESULT = """\
if bundle("result") == 0 and Path("/content").is_dir():
    from google.colab import drive, files

"""


@dataclass(frozen=True)
class Bundle:
    """A bundle's zip on this machine."""

    path: Path
    digest: str
    """SHA-256 of its record, which has the digest of every file."""
    record: dict[str, Any]


def make(package: Package, run: Run, target: Path) -> Bundle:
    """Write the zip of a run."""
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        made = wheel.build(Path(folder))
        sources = {**package.files, f"wheels/{made.name}": made}
        program = resources.files("stoker.places").joinpath("bundle_main.py").read_text(encoding="utf-8").encode()
        record = _record(package, run, f"wheels/{made.name}", sources)
        record["program"] = hashlib.sha256(program).hexdigest()
        text = files.json_text(record)
        part = target.with_name(f".{target.name}.part")
        with zipfile.ZipFile(part, "w") as archive:
            _add(archive, RECORD, text.encode())
            _add(archive, "__main__.py", program)
            for name in sorted(sources):
                _add_file(archive, name, sources[name])
        part.replace(target)
    return Bundle(target, hashlib.sha256(text.encode()).hexdigest(), record)


def _record(package: Package, run: Run, wheel_name: str, sources: dict[str, Path]) -> dict[str, Any]:
    known = {name: package.digest(name) for name in package.files}
    return {
        "format": FORMAT,
        "name": package.name,
        "folder": package.folder,
        "words": [word for word in package.words if word != "--detach"],
        "wheel": wheel_name,
        "extras": ",".join(_extras(package, run)),
        "files": {
            name: {"bytes": path.stat().st_size, "sha256": known.get(name) or files.sha256(path)}
            for name, path in sorted(sources.items())
        },
        "sentences": {key.partition(".")[2]: messages.CATALOGUES[messages.language()][key] for key in _SENTENCES},
    }


def _extras(package: Package, run: Run) -> list[str]:
    """Extras of Stoker that this run needs."""
    kinds = _store_kinds(run)
    return ["train", *([] if package.prepared else ["data"]), *(["store"] if kinds & _STORE_SECRETS.keys() else [])]


def secret_names(run: Run) -> list[str]:
    """Names of variables the run may need there: those of its store, and those that are set here."""
    needed = [variable.name for kind in _store_kinds(run) for variable in _STORE_SECRETS.get(kind, ())]
    return sorted({*needed, *packages.secrets(run)})


def _store_kinds(run: Run) -> set[str]:
    """Schemes of the stores that hold a run's copies and its data."""
    return {str(where or "").partition("://")[0] for where in (run.save.store, *mixing.set_paths(run.data))}


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)


def _add_file(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.file_size = path.stat().st_size
    with path.open("rb") as source, archive.open(name=info, mode="w") as target:
        while chunk := source.read(1 << 20):
            target.write(chunk)


# ---- the notebook


def cells(bundle: Bundle, run: Run) -> list[str]:
    """The source of the three cells."""
    on_drive = str(run.save.store or "").startswith(DRIVE)
    places = [".", "/content", "/mnt/workspace", "/kaggle/input", f"{DRIVE}/MyDrive"]
    missing = messages.text("bundle.missing", name=bundle.path.name)
    words = ", ".join(json.dumps(word, ensure_ascii=False) for word in ["stoker", *bundle.record["words"]])
    names = secret_names(run)
    take = "    drive.flush_and_unmount()\n" if on_drive else f"    files.download({_result_path(bundle)!r})\n"
    install = [
        finder(bundle, places),
        _CALL,
        _MOUNT.format(drive=DRIVE) if on_drive else "",
        "BUNDLE = find()\n",
        _UPLOAD.format(missing=missing),
    ]
    train = [_SECRETS.format(names=names) if names else "", f"code = bundle({words})\n"]
    return [
        "".join([f"# {title}\n", *parts])
        for title, parts in (
            (messages.text("bundle.cell_install"), install),
            (messages.text("bundle.cell_train"), train),
            (messages.text("bundle.cell_result"), [_RESULT, take]),
        )
    ]


def finder(bundle: Bundle, places: list[str]) -> str:
    """Python that defines `find()`, for this bundle."""
    return FINDER.format(name=bundle.path.name, digest=bundle.digest, places=places, record=RECORD)


def _result_path(bundle: Bundle) -> str:
    return f"/content/stoker/{bundle.record['name']}-result.zip"


def write(bundle: Bundle, run: Run, target: Path) -> None:
    """Write the notebook of a bundle (nbformat 4.5)."""
    page = {
        "cells": [
            {
                "cell_type": "code",
                "id": name,
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": source.rstrip("\n").splitlines(keepends=True),
            }
            for name, source in zip(("install", "train", "result"), cells(bundle, run), strict=True)
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            **({} if run.where.gpus == 0 else {"accelerator": "GPU"}),
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    files.write_json(target, page)
