"""Builds the calculator: the planner as a page that needs no server (docs/adr/0035-calculator.md).

`tools/calculator.py [FOLDER]` writes site/calculator: Stoker and its dependencies as compiled Python in one zip,
Pyodide from npm, pydantic-core's own wheel for it from PyPI, and the page. Needs npm, node, pip and the network, or
what an earlier build left in build/calculator.
"""

import argparse
import gzip
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path(__file__).with_suffix("")
KEPT = ROOT / "build" / "calculator"
PYODIDE = "314.0.7"
PLATFORM = ("pyemscripten_2026_0_wasm32", "314", "cp314")
"""What that version of Pyodide loads: platform, Python, ABI."""
ENTRY = "stoker.api.calculator"
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs")
WASM = "pyodide.asm.wasm"
APART = ("pydantic", "pydantic_core", "_distutils_hack")
"""Of what is loaded here, what is not copied module by module."""
HEAVY = ("text",)
"""Data that no plan reads: texts of recipes that are trained in tests."""
ANSWERING = f"""
import json, sys
import {ENTRY} as calculator
for recipe in ("qlora_qwen2.5_7b", "scratch_tiny"):
    for card in ("RTX4090", None):
        assert "json" in calculator.answer({{"recipe": recipe, "keys": {{}}, "card": card}})
assert "errors" in calculator.answer({{"model": "no/such", "config": "{{}}", "keys": {{"data.lenght": 1}}}})
print(json.dumps({{name: vars(module).get("__file__") for name, module in sys.modules.items()}}))
"""
LARGEST_BYTES = 15_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site" / "calculator")
    folder = parser.parse_args().folder.resolve()
    pyodide, core = fetched_pyodide(), fetched_core()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PAGE, folder, ignore=shutil.ignore_patterns("compile.mjs"))
    for name in RUNTIME:
        shutil.copy(pyodide / name, folder / name)
    # Not `.gz`: some servers then tell browsers to unpack it themselves, some do not.
    (folder / f"{WASM}.packed").write_bytes(gzip.compress((pyodide / WASM).read_bytes(), 9, mtime=0))
    lock = json.loads((pyodide / "pyodide-lock.json").read_text(encoding="utf-8"))
    (folder / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {}}), encoding="utf-8")
    tree = KEPT / "tree"
    collect(tree, core)
    subprocess.run(["node", PAGE / "compile.mjs", pyodide, tree, folder], check=True)
    write_choices(folder / "choices.json")
    report(folder)


def fetched_pyodide() -> Path:
    """The npm package, unpacked."""
    folder = KEPT / f"pyodide-{PYODIDE}"
    if not folder.is_dir():
        KEPT.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--silent", f"pyodide@{PYODIDE}"], cwd=KEPT, check=True, capture_output=True, text=True
        )
        with tarfile.open(KEPT / packed.stdout.split()[-1]) as archive:
            archive.extractall(KEPT / "unpacked", filter="data")
        (KEPT / "unpacked" / "package").rename(folder)
    return folder


def fetched_core() -> Path:
    """The wheel of pydantic-core for Pyodide, of the version that the installed pydantic asks for."""
    version, (platform, python, abi) = metadata.version("pydantic-core"), PLATFORM
    folder = KEPT / f"pydantic-core-{version}"
    if not list(folder.glob("*.whl")):
        target = ["--platform", platform, "--python-version", python, "--implementation", "cp", "--abi", abi]
        wheel = ["--only-binary=:all:", "--no-deps", *target, "-d", folder, f"pydantic-core=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", *wheel], check=True)
    return next(folder.glob("*.whl"))


def collect(tree: Path, core: Path) -> None:
    """Every module that answering imports, as source; the data of Stoker's rooms; the compiled core."""
    shutil.rmtree(tree, ignore_errors=True)
    run = subprocess.run([sys.executable, "-c", ANSWERING], check=True, capture_output=True, text=True)
    for name, origin in json.loads(run.stdout).items():
        package, file = name.partition(".")[0], Path(origin or "")
        if file.suffix == ".py" and (package == "stoker" or ("site-packages" in file.parts and package not in APART)):
            target = tree.joinpath(*name.split(".")[:-1])
            target = target / name.split(".")[-1] if file.name == "__init__.py" else target
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    for room in (tree / "stoker").iterdir():
        if room.is_dir():
            shutil.copytree(ROOT / "src" / "stoker" / room.name, room, ignore=_code, dirs_exist_ok=True)
    # Which parts of pydantic a model needs depends on its fields.
    pydantic = Path(importlib.util.find_spec("pydantic").origin).parent
    shutil.copytree(
        pydantic, tree / "pydantic", ignore=shutil.ignore_patterns("__pycache__", "v1", "mypy.py", "*.typed")
    )
    with zipfile.ZipFile(core) as wheel:
        wheel.extractall(tree, [name for name in wheel.namelist() if name.endswith((".py", ".so"))])


def _code(_folder: str, names: list[str]) -> list[str]:
    """What is no data."""
    return [name for name in names if name.endswith((".py", ".sh")) or name == "__pycache__" or name in HEAVY]


def write_choices(file: Path) -> None:
    """What the page offers, so that it is there before Python is."""
    said = f"import json, {ENTRY} as one; print(json.dumps(one.choices()))"
    found = subprocess.run([sys.executable, "-c", said], check=True, capture_output=True, text=True).stdout
    file.write_text(found, encoding="utf-8")


def report(folder: Path) -> None:
    """The bytes of every file, as stored and as most servers send them."""
    files = sorted((file for file in folder.rglob("*") if file.is_file()), key=lambda file: -file.stat().st_size)
    total = sum(file.stat().st_size for file in files)
    sent = sum(len(gzip.compress(file.read_bytes(), 6)) for file in files)
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file.relative_to(folder)}")
    print(f"{total:>12,}  bytes in {len(files)} files; {sent:,} where the server compresses")
    if total > LARGEST_BYTES:
        sys.exit(f"more than {LARGEST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
