"""What CONTRIBUTING says about adding: each addition is made in a copy of the source and works after so many files.

Files that `just generate` writes (reference pages, frozen surface) are not counted: nobody edits them.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests/architecture", "tests/unit", "tests/plugin", "tests/installed_package.py", "tools", "docs")
CHECKS = (
    "tests/architecture/test_catalogue.py",
    "tests/architecture/test_docs.py::test_reference_pages_are_what_the_code_says",
    "tests/architecture/test_docs.py::test_every_reference_sentence_has_a_translation_and_no_translation_is_stale",
    "tests/architecture/test_surface.py",
    "tests/unit/config/test_layouts.py",
    "tests/unit/config/test_recipes.py",
    "tests/unit/facts/test_cards.py",
    "tests/unit/facts/test_prices.py",
    "tests/unit/test_messages.py",
)
BEFORE, AFTER, END = "before", "after", "end"


@dataclass(frozen=True)
class Edit:
    """Lines put into a file: before or after a line, at its end, or as a new file."""

    path: str
    lines: str
    where: str = END
    anchor: str = ""

    def apply(self, root: Path) -> None:
        file = root / self.path
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if self.where == END:
            file.write_text(text + self.lines, encoding="utf-8", newline="\n")
            return
        assert text.count(self.anchor) == 1, (self.path, self.anchor)
        put = self.lines + self.anchor if self.where == BEFORE else self.anchor + self.lines
        file.write_text(text.replace(self.anchor, put), encoding="utf-8", newline="\n")


CARDS, PRICES = "src/stoker/facts/data/cards.csv", "src/stoker/facts/data/prices.csv"
EN, ZH = "src/stoker/messages/en.py", "src/stoker/messages/zh.py"
LAYOUTS, FORMATS = "src/stoker/config/layouts.py", "src/stoker/rows/formats.py"
VALUES = "src/stoker/config/values.py"
PLACE_NAMES, REGISTRY = "src/stoker/config/place_names.py", "src/stoker/places/registry.py"
RECIPE = """# Ten rows, for a trial.
# zh: 试用的十行数据。
model: {shape: llama, layers: 1, width: 64, heads: 1}
tokenizer: {train: bpe, vocab: 300}
data: {train: rows.jsonl, length: 64, rows: 10, tokens: 500}
train: {objective: pretrain, batch: 2}
"""
RAISE = """

def trial() -> None:
    \"\"\"A trial.\"\"\"
    from stoker import messages
    from stoker.errors import StokerError

    raise StokerError("STK599", said=messages.text("detect.trial"))
"""
READER = """def _trial(row: Row) -> Pair:
    return Pair(row_values.text(row, "trial_question"), row_values.text(row, "trial_answer"))


"""
DESK = ROOT / "tests/plugin/stoker-example-plugin/src/stoker_example_plugin/place.py"
"""The example's place, which becomes a built-in one."""
ROW = '**`trial`**:\n\n```json\n{"trial_question": "2 + 2", "trial_answer": "4"}\n```\n\n'


def similar(path: str, name: str, new: str) -> str:
    """A row of a table under another name."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    row = next(line for line in lines if line.startswith(f"{name},"))
    fields = row.split(",")
    fields[0] = new
    if path == CARDS:
        header = next(line for line in lines if line.startswith("name,")).split(",")
        fields[header.index("aliases")] = fields[header.index("device_names")] = ""
    return ",".join(fields) + "\n"


TRIALS = {
    "card": (Edit(CARDS, similar(CARDS, "RTX4090", "Trial9000")),),
    "price": (Edit(PRICES, similar(PRICES, "RTX4090", "RTX4090").replace("RTX4090,", "RTX4090,trial-", 1)),),
    "recipe": (Edit("src/stoker/config/recipes/trial.yaml", RECIPE),),
    "message": (
        Edit(EN, '    "detect.trial": "a trial",\n', BEFORE, '    "detect.none": '),
        Edit(ZH, '    "detect.trial": "一次试验",\n', BEFORE, '    "detect.none": '),
    ),
    "error code": (
        Edit(EN, '    "STK599": "{said}",\n    "STK599.hint": "try again",\n', BEFORE, '    "STK601": '),
        Edit(ZH, '    "STK599": "{said}",\n    "STK599.hint": "请重试",\n', BEFORE, '    "STK601": '),
        Edit(VALUES, RAISE),
    ),
    "row format": (
        Edit(
            LAYOUTS,
            '    RowFormat("trial", (("trial_question", "trial_answer"),)),\n',
            BEFORE,
            '    RowFormat("text", (("text",),)),\n',
        ),
        Edit(FORMATS, READER, BEFORE, "_READERS: dict["),
        Edit(
            FORMATS,
            '    "trial": lambda row, _: _trial(row),\n',
            AFTER,
            '    "text": lambda row, _: _plain_text(row),\n',
        ),
        Edit("docs/how-to/data-formats.md", ROW, BEFORE, "## What is trained\n"),
        Edit("docs/how-to/data-formats.zh.md", ROW, BEFORE, "## 训练哪些词元\n"),
    ),
    "place": (
        Edit(
            "src/stoker/places/trial.py",
            DESK.read_text(encoding="utf-8")
            .replace("    started_by_user", '    name = "trial"\n    started_by_user')
            .replace("terminal.data(f", 'terminal.talk("detect.desk")\n        terminal.data(f'),
        ),
        Edit(PLACE_NAMES, '"trial", ', BEFORE, '"local", "ssh", "slurm"'),
        Edit(PLACE_NAMES, '"trial", ', AFTER, "NAMED_BY_ON = ("),
        Edit(REGISTRY, "from stoker.places.trial import Desk\n", BEFORE, "from stoker.plugins import Plugin\n"),
        Edit(REGISTRY, "Desk.name: Desk, ", BEFORE, "Task.name: Task}"),
        Edit(EN, '    "detect.desk": "start it at the desk",\n', BEFORE, '    "detect.none": '),
        Edit(ZH, '    "detect.desk": "请在桌前启动",\n', BEFORE, '    "detect.none": '),
    ),
}
"""Every kind of addition, as a contributor makes it. The message is said by the code of the error."""
MOST = {"card": 1, "price": 1, "recipe": 1, "message": 2, "error code": 3, "row format": 4, "place": 6}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with every addition made and what is generated written again."""
    root = tmp_path_factory.mktemp("additions")
    for name in (*COPIED, "pyproject.toml", "CONTRIBUTING.md"):
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        ignored = shutil.ignore_patterns("__pycache__", "evidence")
        shutil.copytree(source, target, ignore=ignored) if source.is_dir() else shutil.copy(source, target)
    for edits in TRIALS.values():
        for edit in edits:
            edit.apply(root)
    for program in ("tools/reference.py", "tests/architecture/test_surface.py --write"):
        subprocess.run([sys.executable, *program.split()], cwd=root, env=environment(root), check=True)
    return root


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src"), "STOKER_LANG": "en"}


@pytest.mark.parametrize("kind", TRIALS)
def test_an_addition_touches_the_files_that_contributing_names(kind: str) -> None:
    touched = {edit.path for edit in TRIALS[kind]}
    assert len(touched) <= MOST[kind]
    said = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {kind} \| (\d) \| (.*) \|$", said, re.MULTILINE)
    named = re.findall(r"`([^`]+)`", row[1])
    assert int(row[0]) == len(named) == len(touched)
    assert all(any(fnmatch.fnmatch(path, pattern) for pattern in named) for path in touched)


def test_the_additions_are_used(copy: Path) -> None:
    program = """
import json, sys
from stoker import messages
from stoker.config import load, values
from stoker.rows import formats
from stoker.errors import StokerError
from stoker.facts import cards, prices
from stoker.places import registry
row = {"trial_question": "2 + 2", "trial_answer": "4"}
try:
    values.trial()
except StokerError as error:
    said = error.what
print(json.dumps({
    "card": cards.find("Trial9000").name,
    "price": any(offer.cloud.startswith("trial-") for offer in prices.all_offers()),
    "recipe": load.load("trial").run.train.batch,
    "message": messages.text("detect.trial"),
    "error": said,
    "format": formats.detect([row]).format,
    "place": registry.find(load.load("trial", ["where.place=trial"]).run).name,
    "on": type(registry.by_name("trial")).__name__,
    "completion": formats.parse(row, "trial", has_template=False).completion,
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(copy), cwd=copy, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "card": "Trial9000",
        "price": True,
        "recipe": 2,
        "message": "a trial",
        "error": "a trial",
        "format": "trial",
        "place": "trial",
        "on": "Desk",
        "completion": "4",
    }


def test_every_check_passes_with_the_additions(copy: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS]
    done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
