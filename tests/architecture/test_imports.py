"""What tests, benchmarks and tools import of ours is there: type checks look at `src` only, and nights are long.

Also inside programs that stand in strings, which run on other machines or in processes of their own.
"""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
MADE = {"stoker.places.trial"}
"""By test_additions.py, in its copy of the source."""


def files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "tests/*.py", "benchmarks/*.py", "tools/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split() if not __file__.endswith(name)]


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name, of code and of code in strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "from stoker" in node.value:
            try:
                inner = ast.parse(node.value)
            except SyntaxError:  # a sentence, or a part of a program
                lines = [line.strip() for line in node.value.splitlines() if line.strip().startswith("from stoker")]
                try:
                    inner = ast.parse("\n".join(lines))
                except SyntaxError:
                    continue
            yield from imports(inner)


@functools.cache
def names(module: str) -> set[str] | None:
    """What a module of ours defines; None where there is none. A package's modules count."""
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return None
    found = {one.stem for one in path.iterdir()} if path.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((one.asname or one.name).partition(".")[0] for one in node.names)
    return found


def missing(tree: ast.AST) -> list[str]:
    return [
        f"{module}.{name}"
        for module, name in imports(tree)
        if module.partition(".")[0] == "stoker"
        and module not in MADE
        and (names(module) is None or name not in (names(module) or ()))
    ]


@pytest.mark.parametrize("folder", ["tests", "benchmarks", "tools"])
def test_what_is_imported_of_ours_is_there(folder: str) -> None:
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in files() if path.is_relative_to(ROOT / folder)
    }
    found = {path.relative_to(ROOT).as_posix(): missing(tree) for path, tree in trees.items()}
    assert not {path: names for path, names in found.items() if names}


def test_an_import_that_is_gone_is_found() -> None:
    program = """
from stoker.launch import muster
CODE = "from stoker.nowhere import a\\nprint(a)"
from stoker.rows.order import Order
"""
    assert missing(ast.parse(program)) == ["stoker.launch.muster", "stoker.nowhere.a"]


def test_no_file_of_a_test_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [name for name in listed.splitlines() if "pytest-of-" in name or "(" in name]
