"""What the how-to says of rewards: its functions run, and its list of rewards is one."""

import re
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from stoker.config import reader, rewards
from stoker.config.rewards import KINDS, Reward, Rewards
from stoker.rewards import scorer
from stoker.rewards.scorer import FAILURES_IN_A_ROW, Sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux'")
PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/rewards.md").read_text(encoding="utf-8")
BATCH = [Sample("1 + 2?", "answer: 3", {"answer": "3"}), Sample("2 + 2?", "FIVE", {"answer": "4"})]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", PAGE, re.M | re.S)


def test_the_list_of_rewards_scores(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(blocks("python")[0], encoding="utf-8")
    document = reader.parse(blocks("yaml")[0], "page")
    path = ("train", "grpo", "rewards")
    given = TypeAdapter(Rewards).validate_python(document.values["train"]["grpo"]["rewards"])
    assert rewards.conflicts(given, document, path) == []
    with scorer.opened(given, tmp_path) as score:
        first, second = score(BATCH)
    assert (first.error, second.error) == (None, None)
    assert (first.parts["exact"], second.parts["exact"]) == (1, 0)
    assert (first.parts["no_shouting"], second.parts["no_shouting"]) == (0, -1)


def test_the_other_function_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(blocks("python")[0], encoding="utf-8")
    batch = [Sample("", text, {"answer": "4"}) for text in ("4", "5", "five")]
    with scorer.opened([Reward.model_validate({"function": "rewards.py:close_to"})], tmp_path) as score:
        found = score(batch)
    assert [one.value for one in found] == [1, 0.5, 0]
    assert [one.error for one in found] == [None] * 3


def test_every_kind_is_on_the_page() -> None:
    table = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert table == list(KINDS)


def test_the_figures_of_the_page_are_those_of_the_code() -> None:
    own = Reward.model_validate({"function": "a.py:b"})
    assert f"take `memory` ({own.memory})" in PAGE
    assert f"for a batch ({own.timeout_seconds:g} s;" in PAGE
    assert FAILURES_IN_A_ROW == 3
    assert "three batches in a row" in PAGE
