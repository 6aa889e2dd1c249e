"""Light stays light: on a laptop without torch the light commands work, load nothing heavy and import nothing POSIX."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.config import load

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stoker"
HEAVY = ("torch", "transformers", "numpy", "datasets", "pyarrow", "peft", "accelerate", "trl", "tokenizers")
POSIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "pty"}

PROGRAM = """
import json, sys
heavy, missing, commands = json.loads(sys.argv[1])
for name in heavy if missing else []:
    sys.modules[name] = None  # as in an environment with the core install only
from stoker.cli.main import main
codes = []
for command in commands:
    sys.argv = ["stoker", *command]
    try:
        main()
    except SystemExit as end:
        codes.append(end.code or 0)
    else:
        codes.append(0)
loaded = [name for name in heavy if sys.modules.get(name) is not None]
print(json.dumps([codes, loaded]), file=sys.stderr)
"""

COUNTING = """
import cProfile, contextlib, pstats, sys
def command():
    from stoker.cli.main import main
    with contextlib.suppress(SystemExit):
        main()
counted = cProfile.Profile()
counted.runcall(command)
print(pstats.Stats(counted).total_calls, file=sys.stderr)
"""

COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "schema": ["schema"],
    "gpus": ["gpus"],
    "plan for a card": ["plan", "lora_qwen2.5_7b_rank64", "--card", "RTX4090"],
    "plan for this machine": ["plan", "scratch_tiny", "--gpus", "0", "--set", "data.tokens=100000"],
    "plan for every card": ["plan", "lora_qwen2.5_7b_rank64", "--all"],
    "the arithmetic of a plan": ["plan", "lora_qwen2.5_7b_rank64", "--explain", "RTX4090"],
}


def run(commands: list[list[str]], folder: Path, *, missing: bool) -> tuple[list[int], list[str]]:
    """Exit codes of commands run one after the other in a fresh interpreter, and the heavy modules it then holds."""
    arguments = json.dumps([HEAVY, missing, commands])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    codes, loaded = json.loads(done.stderr.strip().splitlines()[-1])
    return codes, loaded


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_light_command_loads_nothing_heavy(command: list[str], tmp_path: Path) -> None:
    assert run([command], tmp_path, missing=False) == ([0], [])


def test_light_commands_work_where_nothing_heavy_is_installed(tmp_path: Path) -> None:
    commands = list(COMMANDS.values())
    assert run(commands, tmp_path, missing=True) == ([0] * len(commands), [])


def test_every_recipe_plans_for_an_rtx4090_where_nothing_heavy_is_installed(tmp_path: Path) -> None:
    commands = [["plan", name, "--card", "RTX4090", "--json"] for name in load.recipe_names()]
    assert len(commands) > 0
    assert run(commands, tmp_path, missing=True) == ([0] * len(commands), [])


def test_the_run_file_of_the_readme_is_planned_from_its_rows_where_nothing_heavy_is_installed(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(model:.*?)```", (SOURCE.parents[1] / "README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "my.yaml").write_text(example, encoding="utf-8")
    (tmp_path / "data").mkdir()
    said = [
        {"role": "user", "content": "What is a stoker?"},
        {"role": "assistant", "content": "Who keeps a fire going."},
    ]
    (tmp_path / "data" / "train.jsonl").write_text((json.dumps({"messages": said}) + "\n") * 500, encoding="utf-8")
    commands = [["plan", "my.yaml", "--card", "RTX4090"], ["plan", "my.yaml"]]
    assert run(commands, tmp_path, missing=True) == ([0, 0], [])


def test_help_and_a_plan_over_every_card_call_no_more_functions_than_they_need(tmp_path: Path) -> None:
    """Start-up included. Calls are the same on every machine; their seconds are judged at night (nightly/seconds).

    0.16 million and 5.4 million in November 2026: one more search or replay per card is 0.2 million or more.
    """
    assert num_calls(tmp_path, "--help") <= 250_000
    assert 1_000_000 < num_calls(tmp_path, "plan", "lora_qwen2.5_7b_rank64") <= 6_500_000


def num_calls(folder: Path, *words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, *words], cwd=folder, capture_output=True, encoding="utf-8", check=True
    )
    return int(done.stderr.strip().splitlines()[-1])


def light_files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "engine" not in path.relative_to(SOURCE).parts)


def imported_on_windows(body: list[ast.stmt]) -> set[str]:
    """Top-level names of every module these statements import; of a choice by platform, only Windows' branch counts."""
    names = set()
    for node in body:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.If) and (taken := branch_on_windows(node)) is not None:
            names |= imported_on_windows(taken)
        else:
            inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)]
            names |= imported_on_windows(inner)
    return names


def branch_on_windows(node: ast.If) -> list[ast.stmt] | None:
    """What runs of `if sys.platform == ...` on Windows; None where the choice is about something else."""
    windows = {"sys": SimpleNamespace(platform="win32"), "os": SimpleNamespace(name="nt")}
    try:
        return node.body if eval(ast.unparse(node.test), windows) else node.orelse
    except (NameError, AttributeError, TypeError):
        return None


def test_the_light_rooms_import_no_posix_only_module() -> None:
    found = {
        str(path.relative_to(SOURCE)): sorted(names)
        for path in light_files()
        if (names := imported_on_windows(ast.parse(path.read_text(encoding="utf-8")).body) & POSIX_ONLY)
    }
    assert found == {}


def test_the_search_for_posix_only_modules_finds_them() -> None:
    guarded = "import sys\nif sys.platform == 'win32':\n    import msvcrt\nelse:\n    import termios"
    assert imported_on_windows(ast.parse(guarded).body) == {"sys", "msvcrt"}
    hidden = "def f():\n    try:\n        import fcntl\n    except OSError:\n        import pwd"
    assert imported_on_windows(ast.parse(hidden).body) == {"fcntl", "pwd"}


def test_files_are_opened_with_a_named_encoding() -> None:
    """Windows would otherwise read and write Chinese text in a code page of its own."""
    found = []
    for path in light_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                keywords = {keyword.arg for keyword in node.keywords}
                text_call = node.func.attr in ("read_text", "write_text") or (
                    node.func.attr == "open" and node.args and "b" not in ast.unparse(node.args[0])
                )
                if text_call and "encoding" not in keywords and not _is_ours(node):
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert found == []


def _is_ours(node: ast.Call) -> bool:
    """`files.write_text` is our own and writes UTF-8; `os.open` and `urlopen` take no text."""
    return isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("files", "reader", "os")
