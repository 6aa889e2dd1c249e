"""The bars of the house, measured: sizes of files, classes and rooms, import circles, names that mean one thing each.

A failure lists the offenders. Exceptions are listed here, each with its reason.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stoker"
MODULES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())

MOST_LINES_OF_A_FILE = 500
MOST_LINES_OF_A_CLASS = 300
MOST_LINES_OF_A_ROOM = 3_500
MOST_FILES_OF_A_ROOM = 22
MOST_EXCEPTIONS = 5

DATA_FILES = {"messages/en.py", "messages/zh.py"}
"""Every sentence a person reads, one per line."""
LARGE_ROOMS = {"engine"}
"""The whole heavy world."""
SHARED_CLASS_NAMES: dict[str, str] = {}
SHARED_STEMS: dict[str, str] = {}
INNER_IMPORTS = {
    "cli/main.py": "each command imports its own body, so that `stoker --help` loads no other",
    "cli/hosts_app.py": "the same for `stoker hosts`",
    "agents/agents_app.py": "the same for `stoker guide` and `stoker mcp`",
    "engine/models.py": "experts in 4 bits need bitsandbytes, which not every system has",
    "engine/tracing/building.py": "the 4-bit layer needs bitsandbytes, which not every system has",
    "store/opening.py": "a kind of store is loaded with its packages where it is used",
    "handover/handover_app.py": "the same for the commands of a finished model",
    "terminal/parameters.py": "what `--gpus` may be, only where it is given",
}


def test_no_file_is_longer_than_500_lines() -> None:
    lines = {_name(path): _lines(path) for path in MODULES}
    long = {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FILE and name not in DATA_FILES}
    assert not long, _listed(long)


def test_no_class_is_longer_than_300_lines() -> None:
    lines = {f"{_name(path)}: {one.name}": one.end_lineno - one.lineno + 1 for path, one in _classes()}
    long = {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_CLASS}
    assert not long, _listed(long)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in LARGE_ROOMS])
def test_no_room_has_more_than_3500_lines_or_22_files(room: str) -> None:
    files = sorted((SOURCE / room).rglob("*.py"))
    lines = sum(_lines(path) for path in files if _name(path) not in DATA_FILES)
    assert lines <= MOST_LINES_OF_A_ROOM
    assert len(files) <= MOST_FILES_OF_A_ROOM


def test_modules_import_in_no_circle() -> None:
    graph = grimp.build_graph("stoker", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    imported["stoker"] = set()  # names the Python API for type checkers, and loads a name when it is used
    circles = _circles(imported)
    assert not circles, "\n".join(" <-> ".join(circle) for circle in circles)


def test_nothing_of_ours_is_imported_inside_a_function() -> None:
    """Such an import hides a circle, or what a module needs."""
    found = [
        f"{_name(path)}:{line}"
        for path in MODULES
        if _name(path) not in INNER_IMPORTS
        for line in _inner_imports(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


def test_a_class_name_means_one_class() -> None:
    _assert_unique([(one.name, path) for path, one in _classes()], SHARED_CLASS_NAMES)


def test_a_module_name_means_one_module() -> None:
    _assert_unique([(path.stem, path) for path in MODULES if path.stem != "__init__"], SHARED_STEMS)


def test_a_circle_is_found() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert _circles({"a": {"b"}, "b": set()}) == []


def test_an_inner_import_is_found() -> None:
    tree = ast.parse(
        "import stoker\ndef f():\n    from stoker.plan import make\n    import torch\n    import stoker.env\n"
    )
    assert list(_inner_imports(tree)) == [3, 5]


def _assert_unique(named: list[tuple[str, Path]], allowed: dict[str, str]) -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for name, path in dict.fromkeys(named):
        where[name].append(_name(path))
    shared = {name: paths for name, paths in where.items() if len(paths) > 1}
    unlisted = {name: paths for name, paths in shared.items() if name not in allowed}
    assert not unlisted, _listed(unlisted)
    assert not [name for name in allowed if name not in shared], "listed, but not shared"
    assert len(allowed) <= MOST_EXCEPTIONS


def _listed(found: Mapping[str, object]) -> str:
    return "\n".join(f"{name}: {what}" for name, what in sorted(found.items()))


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path, node


def _inner_imports(tree: ast.Module) -> Iterator[int]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if any(name.partition(".")[0] == "stoker" for name in names):
                    yield node.lineno


def _circles(below: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, however indirectly."""
    reached = {module: _reached(module, below) for module in below}
    circles = {tuple(sorted(other for other in reached[one] if one in reached[other])) for one in below}
    return sorted(list(circle) for circle in circles if circle)


def _reached(start: str, below: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(below[start])
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting.extend(below[module])
    return reached


OPENERS = {
    "rundir/in_place.py",
    "rundir/files.py",
    "launch/nodes.py",
    "store/directory.py",
    "store/s3.py",
    "store/ssh.py",
    "supervise/renamed_folder.py",
}
"""The opener of files written in place; new files that are renamed; stores, whose files are no run's; a folder."""


def test_files_written_in_place_have_one_opener() -> None:
    """Elsewhere nothing is touched, opened to append, or opened past Python's own `open`: it would follow a link."""
    found = {
        f"{path.relative_to(SOURCE).as_posix()}:{line}"
        for path in MODULES
        if path.relative_to(SOURCE).as_posix() not in OPENERS
        for line in _written_in_place(path.read_text(encoding="utf-8"))
    }
    known = {one for one in found if one.startswith(("rundir/events.py:", "store/fetch.py:"))}
    assert found == known, found - known
    assert len(known) == 2  # the null device; a download's own part, in a folder that was looked at


def test_a_second_opener_is_found() -> None:
    text = 'a.open("ab")\nb.touch()\nos.open(c, 1)\nd.open(mode="a")\ne.open("rb")\nf.open("x")\n'
    assert list(_written_in_place(text)) == [1, 2, 3, 4]


def _written_in_place(text: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name, owner = node.func.attr, node.func.value
        modes = [
            one.value for one in (*node.args, *(key.value for key in node.keywords)) if isinstance(one, ast.Constant)
        ]
        is_os = isinstance(owner, ast.Name) and owner.id == "os"
        is_ours = isinstance(owner, ast.Name) and owner.id in ("in_place", "tape", "self")
        appends = name == "open" and any(
            isinstance(mode, str) and mode in ("a", "ab", "at", "r+", "rb+") for mode in modes
        )
        if appends or (name == "open" and is_os) or (name == "touch" and not is_ours):
            yield node.lineno
