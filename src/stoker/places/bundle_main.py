"""The program in a bundle: `python BUNDLE VERB`, where BUNDLE is the zip or the folder it was unpacked into.

    install             unpack and verify the files of the record, and install around the image's own torch
    stoker WORDS...     install if needed, then `stoker WORDS`
    result              verify the results and write them to one zip
    segment JSON        install if needed, then run one segment of a chain (`stoker.places.segment`)
Standard library only, one file: Stoker is not installed yet. Its messages are in the bundle's record.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import IO, Any

RECORD = "bundle.json"
_BASES = ("/kaggle/working", "/content", "/mnt/workspace")
"""Work folders of Kaggle, Colab and PAI-DSW. Elsewhere the current folder is used."""
_KEPT = ("torch", "torchvision", "torchaudio", "triton")
"""Packages of the image that are not replaced."""
_RESULT = ("run.yaml", "manifest.json", "plan.json", "events.jsonl", "events", "artifacts/final")
_CHUNK_BYTES = 1 << 20


class BundleFiles:
    """The zip, or the folder it was unpacked into: Kaggle unpacks every zip of a dataset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._archive = None if path.is_dir() else zipfile.ZipFile(path)
        with self.stream(RECORD) as file:
            self.record: dict[str, Any] = json.loads(file.read().decode("utf-8"))

    def stream(self, name: str) -> IO[bytes]:
        """Open a file of it."""
        return (self.path / name).open("rb") if self._archive is None else self._archive.open(name=name)

    def say(self, key: str, **fields: Any) -> None:
        """Print one of its messages."""
        print(self.record["sentences"][key].format(**fields), flush=True)  # noqa: T201  # there is no console here


class Installation:
    """The folder a bundle is unpacked and installed in."""

    def __init__(self, bundle: BundleFiles, base: Path, runs: Path | None = None) -> None:
        """Choose the folders.

        Args:
            bundle: What is unpacked.
            base: Stoker's folder.
            runs: The folder of runs, if not in it.
        """
        self.bundle = bundle
        self.base = base
        self.runs = runs or base / "runs"

    # ---- unpack

    def unpack(self) -> None:
        """Write every file the record lists, and nothing else; equal files are kept."""
        wanted = self.bundle.record["files"]
        missing = {name: entry for name, entry in wanted.items() if not self._has(name, entry)}
        needed = sum(entry["bytes"] for entry in missing.values())
        self.base.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(self.base).free) < needed:
            self._end("no_room", needed=f"{needed / 1e9:.1f}", free=f"{free / 1e9:.1f}", folder=self.base)
        for name, entry in missing.items():
            self._write(name, entry)

    def place(self, name: str) -> Path:
        """Path of a file of the bundle; a name that leads out of the folder is refused."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
            self._end("bad_name", name=name)
        top, inner = (self.runs, parts[1:]) if parts[0] == "runs" else (self.base, parts)
        target = top.joinpath(*inner)
        if not target.resolve().is_relative_to(top.resolve()):
            self._end("bad_name", name=name)
        return target

    def _has(self, name: str, entry: dict[str, Any]) -> bool:
        path = self.place(name)
        return path.is_file() and path.stat().st_size == entry["bytes"] and _digest(path) == entry["sha256"]

    def _write(self, name: str, entry: dict[str, Any]) -> None:
        target = self.place(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        digest, left = hashlib.sha256(), entry["bytes"]
        with self.bundle.stream(name) as source, part.open("wb") as file:
            while left >= 0 and (chunk := source.read(_CHUNK_BYTES)):
                digest.update(chunk)
                left -= len(chunk)
                file.write(chunk)
        if left or digest.hexdigest() != entry["sha256"]:
            part.unlink()
            self._end("bad_file", name=name)
        part.replace(target)

    # ---- install

    def install(self) -> None:
        """Install Stoker and its dependencies into the Python of the notebook; the image's torch is kept."""
        self.unpack()
        name = self.bundle.record["wheel"]
        wheel, mark = self.place(name), self.base / "installed.json"
        done = {"wheel": self.bundle.record["files"][name]["sha256"], "python": sys.executable}
        if mark.is_file() and mark.read_text(encoding="utf-8") == json.dumps(done) and _installed("stoker"):
            return
        kept = {name: version for name in _KEPT if (version := _installed(name))}
        constraints = self.base / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in kept.items()), encoding="utf-8")
        self.bundle.say("installing", torch=kept.get("torch", "-"))
        if _installed("stoker"):  # pip would skip another wheel of the same version
            self._pip("--no-deps", "--force-reinstall", str(wheel))
        self._pip("--constraint", str(constraints), f"{wheel}[{self.bundle.record['extras']}]")
        mark.write_text(json.dumps(done), encoding="utf-8")

    def _pip(self, *words: str) -> None:
        quiet = ("-q", "--disable-pip-version-check", "--root-user-action=ignore")
        if subprocess.call([sys.executable, "-m", "pip", "install", *quiet, *words]):  # noqa: S603  # no shell
            self._end("no_install", torch=_installed("torch") or "-")

    # ---- run

    def call(self, *words: str) -> int:
        """Run a module of Stoker in the run file's folder."""
        folder = self.base / self.bundle.record["folder"]
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "STOKER_RUNS": str(self.runs)}
        return subprocess.call([sys.executable, "-X", "utf8", "-m", *words], cwd=folder, env=environment)  # noqa: S603

    def result(self) -> int:
        """Verify every checkpoint, and write the results to one zip, which is verified too."""
        name = self.bundle.record["name"]
        if code := self.call("stoker", "verify", name):
            return code
        run = self.runs / name
        if not (run / "artifacts" / "final").is_dir():
            self._end("unfinished", name=name)
        inner = [path for one in _RESULT for path in _below(run / one)]
        inner += _below(max((run / "checkpoints").glob("step-*"), default=run / "none"))
        target = self.base / f"{name}-result.zip"
        digests = _pack(target, {f"{name}/{path.relative_to(run).as_posix()}": path for path in inner})
        if _packed(target) != digests:
            self._end("bad_file", name=target.name)
        self.bundle.say("result", path=target, size=f"{target.stat().st_size / 1e6:.0f}")
        return 0

    def _end(self, key: str, **fields: Any) -> None:
        self.bundle.say(key, **fields)
        sys.exit(1)


def base() -> Path:
    """Stoker's folder on this machine."""
    work = next((Path(one) for one in _BASES if os.access(one, os.W_OK)), Path.cwd())
    return work / "stoker"


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _below(path: Path) -> list[Path]:
    """Every file; what the disk cannot list is an error: from Python 3.12 on pathlib's own search passes over it."""
    inner = sorted(path.iterdir()) if path.is_dir() else []
    return [path] if path.is_file() else [file for one in inner for file in _below(one)]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return _digest_of(file)


def _digest_of(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _pack(target: Path, names: dict[str, Path]) -> dict[str, str]:
    part = target.with_name(f".{target.name}.part")
    with zipfile.ZipFile(part, "w") as archive:
        for name, path in names.items():
            archive.write(path, name)
    part.replace(target)
    return {name: _digest(path) for name, path in names.items()}


def _packed(target: Path) -> dict[str, str]:
    with zipfile.ZipFile(target) as archive:
        found = {}
        for name in archive.namelist():
            with archive.open(name=name) as file:
                found[name] = _digest_of(file)
        return found


def main(words: list[str]) -> int:
    """Run one verb."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    bundle = BundleFiles(Path(__file__).resolve().parent)
    verb, rest = words[0], words[1:]
    if verb == "segment":
        request = json.loads(rest[0])
        there = Installation(bundle, Path(request["base"]), Path(request["runs"]))
        there.install()
        return there.call("stoker.places.segment", json.dumps({**request, "words": bundle.record["words"]}))
    here = Installation(bundle, base())
    here.install()
    if verb == "install":
        bundle.say("installed", folder=here.base)
        return 0
    return here.result() if verb == "result" else here.call("stoker", *rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
