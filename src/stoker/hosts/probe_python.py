# ruff: noqa: UP006, UP035
"""Runs in a Python of the other machine, 3.6 or newer, with its standard library only; prints one line of JSON.

Reports its version, its packages, the CUDA version of its torch, and the cards that the GPU driver lists. With `try` as
its argument it also lets torch compute on one of them.
"""

import ctypes
import importlib
import json
import platform
import re
import sys
from typing import Any, Dict, List

_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76


def main(packages: List[str], tried: bool) -> Dict[str, Any]:  # noqa: FBT001
    """The report."""
    found = {name: version for name, version in ((name, _version(name)) for name in packages) if version}
    cuda = _cuda() if "torch" in found else ""
    return {
        "prefix": sys.prefix,
        "executable": sys.executable,
        "version": platform.python_version(),
        "packages": found,
        "has_pip": _has("pip") or _has("ensurepip"),
        "cuda": cuda,
        "usable": _computes() if cuda and tried else None,
        "cards": _cards(),
    }


def _version(name: str) -> str:
    try:
        from importlib import metadata

        return metadata.version(name)
    except ImportError:  # Python 3.7 and older, or no such package
        return _old_version(name)


def _has(module: str) -> bool:
    from importlib import util

    return util.find_spec(module) is not None


def _old_version(name: str) -> str:
    try:
        import pkg_resources  # type: ignore[import-not-found, unused-ignore]

        return str(pkg_resources.get_distribution(name).version)
    except Exception:  # noqa: BLE001  # whatever an old image raises, the package is not there
        return ""


def _cuda() -> str:
    """Read as text: to import torch takes seconds."""
    from importlib import util

    try:
        spec = util.find_spec("torch")
        with open(str(spec.origin).replace("__init__.py", "version.py"), encoding="utf-8") as file:  # type: ignore[union-attr]  # noqa: PTH123
            line = re.search(r"^cuda(?::[^=]*)? = ['\"]([\d.]+)['\"]", file.read(), re.M)
    except (AttributeError, ImportError, OSError, ValueError):
        return ""
    return line.group(1) if line else ""


def _computes() -> bool:
    try:
        torch = importlib.import_module("torch")  # that machine's own; Stoker is not installed there yet
        return bool(torch.cuda.is_available() and float(torch.ones(2, device="cuda").sum()) == 2.0)
    except Exception:  # noqa: BLE001  # a build without code for the card, a driver too old: it does not compute
        return False


def _cards() -> List[Dict[str, Any]]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_card(driver, index) for index in range(count.value)]


def _card(driver: Any, index: int) -> Dict[str, Any]:
    device, number = ctypes.c_int(), ctypes.c_int()
    name, uuid, memory = ctypes.create_string_buffer(128), ctypes.create_string_buffer(16), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, 128, device)
    driver.cuDeviceGetUuid(uuid, device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    figures = []
    for attribute in (_SM_COUNT, _MAJOR, _MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        figures.append(number.value)
    letters = uuid.raw.hex()
    parts = (letters[:8], letters[8:12], letters[12:16], letters[16:20], letters[20:])
    return {
        "index": index,
        "name": name.value.decode("utf-8", "replace"),
        "uuid": "GPU-" + "-".join(parts),
        "memory_bytes": memory.value,
        "sm_count": figures[0],
        "compute_capability": float("%d.%d" % (figures[1], figures[2])),  # noqa: UP031
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[2:], sys.argv[1] == "try")))  # noqa: T201  # read by probe.sh
