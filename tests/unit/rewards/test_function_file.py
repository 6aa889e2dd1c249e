"""Functions of rewards that are looked at without being run: what is missing is said before anything is paid for."""

from pathlib import Path

import pytest

from stoker.config.rewards import Reward
from stoker.errors import StokerError
from stoker.rewards import function_file

GOOD = "def brevity(completions, **columns):\n    return [0.0 for one in completions]\n"


def check(folder: Path, text: str | bytes | None, name: str = "brevity") -> None:
    if text is not None:
        (folder / "rewards.py").write_bytes(text.encode() if isinstance(text, str) else text)
    function_file.check([Reward(length={"target": 9}), Reward(function=f"rewards.py:{name}")], folder)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\ufeff{GOOD}",  # as Notepad saves it
        f"raise SystemExit  # it is not run\n{GOOD}",
        "from elsewhere import brevity",
        "from elsewhere import *",
        "import elsewhere as brevity",
        "brevity = len",
        "if True:\n    async def brevity(completions): ...\n",
        "def brevity(:\n",
        "x = '\0'\n",
        GOOD + "pattern = '\\d+'\n",
    ],
)
def test_a_function_that_its_file_defines_or_may_define_is_fine(tmp_path: Path, text: str) -> None:
    check(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("def brevty(completions): ...\n", "does not define `brevity`"),
        ("# brevity\nlen(brevity)\n", "does not define `brevity`"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_one_that_is_not_there_is_named(tmp_path: Path, text: str | bytes | None, said: str) -> None:
    with pytest.raises(StokerError) as caught:
        check(tmp_path, text)
    assert caught.value.code == "STK461"
    assert caught.value.where == "train.grpo.rewards[1]"
    assert said in caught.value.what


def test_the_name_that_was_meant_is_proposed(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        check(tmp_path, "def brevty(completions): ...\n")
    assert "brevty" in caught.value.hint


def test_the_functions_that_the_file_has_are_named(tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        check(tmp_path, "import json\nclass A: ...\ndef short(completions): ...\ndef polite(completions): ...\n")
    assert caught.value.what.endswith("rewards.py does not define `brevity`; it has `short`, `polite`")
