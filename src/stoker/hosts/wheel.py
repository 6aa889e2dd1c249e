"""Builds a wheel of the running Stoker, so that a box gets the same code, however it was installed here."""

import base64
import hashlib
import zipfile
from importlib import metadata
from pathlib import Path

import stoker

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Fixed times make equal content equal bytes: a box that has this wheel is not sent another."""
_WHEEL = "Wheel-Version: 1.0\nGenerator: stoker\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build(folder: Path) -> Path:
    """Write the wheel into a folder."""
    own = metadata.distribution("stoker")
    version = stoker.__version__
    info = f"stoker-{version}.dist-info"
    package = Path(stoker.__file__).parent
    content = {f"stoker/{path.relative_to(package).as_posix()}": path.read_bytes() for path in _sources(package)}
    recorded = own.read_text
    content[f"{info}/METADATA"] = (recorded("METADATA") or "").encode()
    content[f"{info}/WHEEL"] = _WHEEL.encode()
    content[f"{info}/entry_points.txt"] = (recorded("entry_points.txt") or "").encode()
    content[f"{info}/RECORD"] = _record(content, f"{info}/RECORD").encode()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"stoker-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content[name], zipfile.ZIP_DEFLATED)
    return target


def _sources(package: Path) -> list[Path]:
    inner = (path for path in package.rglob("*") if path.is_file())
    return sorted(path for path in inner if "__pycache__" not in path.parts and path.suffix != ".pyc")


def _record(content: dict[str, bytes], own_name: str) -> str:
    """RECORD of PEP 376: name, digest and size of every file, without the last two for itself."""
    lines = []
    for name in sorted(content):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content[name]).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content[name])}")
    return "\n".join([*lines, f"{own_name},,"]) + "\n"
