"""Rewards by environments of the real `verifiers`, in its own environment: the packages of `environments` beside it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import tools
from stoker.config.rewards import Reward
from stoker.errors import StokerError
from stoker.rewards import scorer
from stoker.rewards.scorer import Sample, Score

HERE = Path(__file__).parent
INSTALLED = tools.find(tools.VERIFIERS)
PAGE = (HERE.parents[2] / "docs/how-to/rewards.md").read_text(encoding="utf-8")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux'"),
    pytest.mark.skipif(INSTALLED is None, reason="verifiers is not installed (tools/setup_tools.sh verifiers)"),
]
PROMPT = "Do it"
WAIT = "60s"
"""For what must not fail by the clock on a slow machine."""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """Of a tool that has the packages of `environments` beside verifiers; not in `/tmp`: a sandbox has its own."""
    with tempfile.TemporaryDirectory(prefix="stoker-tools-", dir="/var/tmp") as parent:
        folder = Path(parent, tools.VERIFIERS.name)
        shutil.copytree(INSTALLED.parents[1], folder, symlinks=True, copy_function=link_or_copy)  # type: ignore[union-attr]
        [packages] = folder.glob("lib/python3*/site-packages")
        for file in (HERE / "environments").glob("*.py"):
            shutil.copy(file, packages)
        yield folder / "bin" / "python"


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


@pytest.fixture(autouse=True)
def own_tools(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TOOLS", str(python.parents[2]))


def reward(environment: str, args: dict[str, Any] | None = None, **words: Any) -> Reward:
    return Reward.model_validate(
        {"verifiers": {"environment": environment, "args": args or {}}, "timeout": WAIT, **words}
    )


def said(python: Path, *arguments: str, given: str = "", folder: Path = HERE) -> str:
    """What a program prints in the environment of verifiers."""
    done = subprocess.run([python, *arguments], input=given, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_by_the_page(python: Path, folder: Path, environment: str, options: str) -> list[dict[str, Any]]:
    """What the page's program writes for an environment."""
    [block] = [one for one in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S) if "verifiers" in one]
    for old, new in (('"my-env"', f'"{environment}"'), (")\nwith", f"{options})\nwith")):
        assert old in block
        block = block.replace(old, new)
    (folder / "rows.py").write_text(block, encoding="utf-8")
    said(python, "rows.py", folder=folder)
    return [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("system", ["Answer in small letters", None])
def test_scores_are_those_of_the_task_itself(python: Path, tmp_path: Path, system: str | None) -> None:
    args = {"task": {"strict": True}, "system": system}
    rows = rows_by_the_page(python, tmp_path, "letters", f", system={system!r}")
    completions = ["rekots", " drawer", "SRETTEL", ""]
    lines = "".join(json.dumps(one) + "\n" for one in completions)
    direct = json.loads(said(python, "environments/direct.py", "letters", json.dumps(args), given=lines))
    samples = [Sample(row["prompt"], text, row) for row, text in zip(rows, completions, strict=True)]
    with scorer.opened([reward("letters", args, weight=3)], HERE) as score:
        found = score(samples)
    assert [one.error for one in found] == [None] * len(found)
    assert [one.parts["verifiers"] for one in found] == direct
    assert [one.value for one in found] == [3 * one for one in direct]
    assert len(set(direct)) == len(direct), "the four differ"
    assert direct[0] == 2 * 1 + 0.25 * (1 + (system is not None) + len("rekots") / 3)


def test_rows_of_the_user_need_the_columns_of_the_task_and_no_others() -> None:
    row = {"answer": "b", "id": None, "source": {"line": 3}}
    talk = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Write b backward"}]
    samples = [Sample("Write b backward", "B ", row), Sample(talk, "c", row), Sample("Write b backward", "b", {})]
    with scorer.opened([reward("letters", fallback=-1)], HERE) as score:
        text, messages, without = score(samples)
    assert text.error is None
    assert text.value == pytest.approx(2 + 0.25 * (1 + 1 / 3))
    assert messages.error is None
    assert messages.value == pytest.approx(0.25 * (1 + 1 / 3))
    assert without.value == -1
    assert "answer: Field required" in str(without.error)


def scores(batch: list[Sample], **words: Any) -> tuple[list[Score], str]:
    with scorer.opened([reward("misbehaves", fallback=-1, **words)], HERE) as score:
        found = score(batch)
        deadline = time.monotonic() + 10
        while not score.printed and time.monotonic() < deadline:
            time.sleep(0.01)
        return found, score.printed.get("verifiers", "")


def test_a_completion_that_goes_wrong_costs_no_other(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.touch()
    wrong = {
        "fail": "LookupError: no such answer",
        "hang": "longer than 4 s",
        "wait": "longer than 4 s",
        "not_a_number": "`nan`",
        "memory": "MemoryError",
        "network": "unreachable",
    }
    right = {"say": 1.0, "files": 0.0}
    batch = [Sample(PROMPT, one, {"file": str(seen)}) for one in (*wrong, *right)]
    found, printed = scores(batch, timeout="4s")
    by_word = dict(zip((*wrong, *right), found, strict=True))
    assert {one: by_word[one].value for one in right} == right
    for one, reason in wrong.items():
        assert by_word[one].value == -1, one
        assert reason in str(by_word[one].error)
    assert set(printed.splitlines()) == {"to stdout", "to stderr"}


def test_without_a_sandbox_it_sees_files(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.touch()
    found, _ = scores([Sample(PROMPT, one, {"file": str(seen)}) for one in ("files", "say")], isolation="none")
    assert [one.value for one in found] == [1, 1]


@pytest.mark.parametrize(("word", "reason"), [("hold_on", "longer than 8 s"), ("leave", "ended with code 3")])
def test_one_that_ends_or_cannot_be_stopped_costs_its_batch_and_the_next_has_a_new_process(
    word: str, reason: str
) -> None:
    with scorer.opened([reward("misbehaves", fallback=-1, timeout="3s")], HERE) as score:
        [failed] = score([Sample(PROMPT, word, {})])
        [after] = score([Sample(PROMPT, "say", {})])
    assert failed.value == -1
    assert reason in str(failed.error)
    assert (after.value, after.error) == (1, None)


def refused(one: Reward) -> StokerError:
    with pytest.raises(StokerError) as caught, scorer.opened([reward("misbehaves"), one], HERE):
        pass
    assert caught.value.where == "train.grpo.rewards[1]"
    return caught.value


def test_a_game_of_several_turns_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    error = refused(reward("guesses"))
    assert error.code == "STK476"
    assert "it plays episodes of its own (`GuessesEnv`)" in str(error)
    assert "turn by turn (`enough`)" in str(error)


def test_an_environment_that_is_not_installed_is_refused_with_how_to(python: Path) -> None:
    error = refused(reward("nowhere"))
    assert error.code == "STK477"
    assert "taskset 'nowhere' not found" in str(error)
    assert f"pip --python {python} install" in error.hint


OPENED = """
import json, sys
sys.path.insert(0, sys.argv[1])
from verifiers_environment import Environment
for name, args in json.load(sys.stdin):
    try:
        Environment(name, args)
        print(json.dumps([name, {}]))
    except Exception as error:
        print(json.dumps([name, dict(getattr(error, "needs", [("error", str(error))]))]))
"""


def test_what_an_environment_needs_is_found(python: Path) -> None:
    judge = {"judges": [{"id": "reference"}]}
    asked = [
        ("letters", {}),
        ("letters", {"task": judge}),
        ("letters", {"task": {"strictly": True}}),
        ("guesses", {}),
        ("digs", {}),
        ("shows", {}),
        ("older", {}),
    ]
    folder = str(Path(scorer.__file__).parent)
    lines = said(python, "-I", "-c", OPENED, folder, given=json.dumps(asked)).splitlines()
    plain, judged, wrong, guesses, digs, shows, older = [needs for _, needs in map(json.loads, lines)]
    assert plain == {}
    assert judged == {"judges": ["reference"]}
    assert "task.strictly" in wrong["error"]
    assert "\n" not in wrong["error"]
    assert guesses == {"episode": ["GuessesEnv"], "turns": ["enough"]}
    assert digs == {
        "harness": [],
        "tools": ["DigsToolset"],
        "runtime": ["treasure", "setup"],
        "turns": ["no_bombs"],
    }
    assert shows == {"reward": ["ShowsTask"]}
    assert "__all__" in older["error"]


def test_another_text_of_an_environment_is_another_reward(python: Path) -> None:
    [file] = python.parents[1].glob("lib/python3*/site-packages/shows.py")
    before = {one: scorer.files_digest([reward(one)], HERE) for one in ("shows", "letters")}
    assert before["shows"] != before["letters"]
    file.write_text(file.read_text(encoding="utf-8") + "\nMORE = 1\n", encoding="utf-8")
    after = {one: scorer.files_digest([reward(one)], HERE) for one in ("Owner/shows@0.1", "letters")}
    assert after["letters"] == before["letters"]
    assert after["Owner/shows@0.1"] not in before.values()
