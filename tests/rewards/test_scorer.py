"""Rewards computed by real processes: what is right, what goes wrong, and that a training survives it."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.config.rewards import Reward
from stoker.errors import StokerError
from stoker.rewards import scorer
from stoker.rewards.scorer import FAILURES_IN_A_ROW, Sample, Score

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux'")
HERE = Path(__file__).parent
BATCH = [Sample("2 x 21?", "it is 42", {"answer": "42"}), Sample("3 + 4?", "eight", {"answer": "7"})]


def own(function: str, **words: Any) -> Reward:
    return Reward.model_validate({"function": f"reward_functions.py:{function}", **words})


def built_in(kind: str, options: Any, **words: Any) -> Reward:
    return Reward.model_validate({kind: options, **words})


def scored(rewards: list[Reward], batch: list[Sample], step: int = 0) -> list[Score]:
    with scorer.opened(rewards, HERE) as score:
        return score(batch, step)


def values(reward: Reward, batch: list[Sample] = BATCH) -> list[float]:
    found = scored([reward], batch)
    assert [one.error for one in found] == [None] * len(batch)
    return [one.value for one in found]


# ---- what is right


def test_a_function_is_called_with_lists_by_keyword() -> None:
    assert values(own("contains")) == [1, 0]


def test_a_coroutine_is_awaited() -> None:
    assert values(own("slowly")) == [0.5, 0.5]


def test_conversations_are_given_as_messages() -> None:
    batch = [Sample([{"role": "user", "content": "hello"}], "four", {})]
    assert values(own("as_messages"), batch) == [4]


def test_what_trl_gives_besides_is_there() -> None:
    batch = [Sample("a", "b", {"answer": "c"}, [1, 2]), Sample("a", "b", {"answer": "c"}, [3])]
    found = scored([own("what_trl_gives")], batch, step=10)
    assert [one.value for one in found] == [13, 13], found[0].error


def test_a_reward_function_of_trl_works_unchanged(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("from trl.rewards import think_format_reward\n", encoding="utf-8")
    said = [[{"role": "user", "content": "?"}]] * 2
    batch = [Sample(said[0], "<think>hm</think>yes", {}), Sample(said[1], "yes", {})]
    reward = Reward.model_validate({"function": "rewards.py:think_format_reward", "timeout": "2m", "memory": "16 GB"})
    with scorer.opened([reward], tmp_path) as score:
        assert [one.value for one in score(batch)] == [1, 0]


def test_none_leaves_a_row_out_of_a_reward() -> None:
    found = scored([own("only_some", weight=3), built_in("regex", {"pattern": "."}, weight=0.5)], BATCH)
    assert [one.parts for one in found] == [{"only_some": 1, "regex": 1}, {"regex": 1}]
    assert [one.value for one in found] == [3.5, 0.5]


def test_weights_are_applied_and_names_are_told_apart() -> None:
    rewards = [built_in("regex", {"pattern": one}, weight=weight) for one, weight in (("42", 2), ("eight", -1))]
    found = scored(rewards, BATCH)
    assert [one.parts for one in found] == [{"regex": 1, "regex_2": 0}, {"regex": 0, "regex_2": 1}]
    assert [one.value for one in found] == [2, -1]


def test_what_a_function_prints_is_kept_and_disturbs_nothing() -> None:
    with scorer.opened([own("talkative")], HERE) as score:
        assert [one.value for one in score(BATCH)] == [1, 1]
        deadline = time.monotonic() + 10
        while len(score.printed.get("talkative", "").splitlines()) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        said = score.printed["talkative"]
    assert {"to stdout", "to stderr", "past Python", "from a child"} == set(said.splitlines())


def test_what_a_function_printed_before_it_failed_can_be_read() -> None:
    with scorer.opened([own("says_and_fails")], HERE) as score:
        assert score(BATCH)[0].error
        assert score.printed == {"says_and_fails": "last words"}


def test_an_empty_batch_has_no_scores() -> None:
    assert scored([own("contains")], []) == []


def test_it_is_recorded_what_runs_without_a_sandbox() -> None:
    with scorer.opened([own("contains", isolation="none"), built_in("length", {"target": 5})], HERE) as score:
        assert [(one["name"], one["isolation"]) for one in score.to_json()] == [("contains", "none"), ("length", None)]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (built_in("exact", {"column": "answer", "pattern": r"(\d+)"}), [1, 0]),
        (built_in("regex", {"pattern": "^eight$"}), [0, 1]),
        (built_in("length", {"target": 8}), [1, 0.625]),
        (built_in("valid_json", {}), [0, 0]),
    ],
    ids=["exact", "regex", "length", "valid_json"],
)
def test_built_in_rewards_are_computed(reward: Reward, expected: list[float]) -> None:
    assert values(reward) == expected


def test_a_pattern_that_takes_for_ever_costs_its_completion_only() -> None:
    reward = built_in("regex", {"pattern": r"(a+)+$"}, timeout="0.5s", fallback=-1)
    found = scored([reward], [Sample("", "a" * 40 + "b", {}), Sample("", "aaa", {})])
    assert [one.value for one in found] == [-1, 1]
    assert "longer than 0.5 s" in str(found[0].error)
    assert found[1].error is None


# ---- code


def code(completion: str, tests: Any = "assert add(1, 2) == 3", **words: Any) -> Score:
    reward = built_in("code", {"tests": "tests"}, **words)
    [found] = scored([reward], [Sample("write add", completion, {"tests": tests})])
    return found


RIGHT = "def add(a, b):\n    return a + b\n"


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        (RIGHT, 1),
        (f"Here it is:\n```python\n{RIGHT}```\nDone.", 1),
        (f"print('x' * 1000)\n{RIGHT}", 1),
        (RIGHT.replace("+", "-"), 0),
        ("def add(a, b", 0),
        ("", 0),
        ("import sys; sys.exit(0)", 0),
        ("import os; os._exit(0)", 0),
        (f"import ctypes; ctypes.string_at(0)\n{RIGHT}", 0),
        (f"while True: print('x' * 10_000)\n{RIGHT}", 0),
        (f"x = bytearray(10**10)\n{RIGHT}", 0),
        (f"import os, signal\ntry: os.kill(os.getppid(), signal.SIGKILL)\nexcept OSError: pass\n{RIGHT}", 1),
        ("lone surrogate: \ud800", 0),
    ],
)
def test_code_is_worth_one_where_it_passes_the_tests(completion: str, value: float) -> None:
    found = code(completion)
    assert (found.value, found.error) == (value, None)


def test_tests_may_be_a_list() -> None:
    assert code(RIGHT, ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]).value == 1
    assert code(RIGHT, ["assert add(1, 2) == 3", "assert add(0, 0) == 1"]).value == 0


@pytest.mark.parametrize("program", ["while True: pass", "import os\nwhile True: os.fork()"])
def test_code_that_does_not_end_is_ended(program: str) -> None:
    started = time.monotonic()
    assert code(f"{program}\n{RIGHT}", timeout="2s").value == 0
    assert time.monotonic() - started < 60


def test_code_without_tests_is_an_error_not_a_wrong_answer() -> None:
    found = code(RIGHT, None, fallback=0.25)
    assert found.value == 0.25
    assert "no `tests`" in str(found.error)


CLAIMS = "import os\nos.write(2, b'bwrap: no permissions')\nos.ftruncate(1, 0)\nos._exit(1)"
READS = "import os\nos.write(1, os.read(0, 10000))\nos._exit(0)"


@pytest.mark.parametrize("completion", [CLAIMS, READS])
def test_code_cannot_claim_that_the_sandbox_failed_nor_read_the_word_from_its_input(completion: str) -> None:
    found = code(completion, fallback=0.5)
    assert (found.value, found.error) == (0, None)


def test_code_is_ended_before_the_training_where_memory_ends() -> None:
    reads = "first = open('/proc/self/oom_score_adj').read().strip()"
    assert code(reads, "assert first == '1000'").value == 1
    assert code(reads, "assert first == '0'").value == 0


def test_code_cannot_read_what_a_program_of_ours_can(tmp_path: Path) -> None:
    path = Path(__file__)
    steal = f"from pathlib import Path\nPath({str(path)!r}).read_text()\n{RIGHT}"
    assert code(steal).value == 0
    assert code(steal, isolation="none").value == 1, "the control"


# ---- what goes wrong


def misbehaving(*asked: str) -> list[Sample]:
    return [Sample(f"question {number}", "answer", {"asked": one}) for number, one in enumerate(asked)]


WELL = misbehaving("well", "well")
FUNCTIONS = (HERE / "reward_functions.py").read_text(encoding="utf-8").splitlines()
LINE = 1 + next(number for number, line in enumerate(FUNCTIONS) if "1 / 0" in line)
REASONS = {
    "raises": f"reward_functions.py:{LINE}: ZeroDivisionError",
    "leaves": "SystemExit: 3",
    "exits": "ended with code 0",
    "crashes": "ended with code 139",
    "closes": "ended with code",
    "floods": "more than anybody reads",
    "floods_the_channel": "more than anybody reads",
    "takes_memory": "MemoryError",
    "forks": "",
    "answers_twice": "",
    "one_value": "1 value for 2 completions",
    "one_number": "`float`, not a list",
    "not_numbers": "`'good'`, not a number",
    "not_finite": "`nan`, not a number",
    "no_dict": "`dict`, not a list",
}


@pytest.fixture(scope="module")
def score() -> Iterator[scorer.Scorer]:
    with scorer.opened([own("misbehaves", memory="1 GB", fallback=-2)], HERE) as opened:
        yield opened


@pytest.mark.parametrize("how", [name for name in REASONS if name != "answers_twice"])
def test_a_misbehaving_function_costs_its_batch_only(score: scorer.Scorer, how: str) -> None:
    """Its samples get the fallback and the reason; the batch after it is scored."""
    found = score(misbehaving("well", how))
    assert [one.value for one in found] == [-2, -2]
    assert [one.parts for one in found] == [{"misbehaves": -2}] * 2
    assert all(REASONS[how] in str(one.error) for one in found[:1]), found[0].error
    assert [(one.value, one.error) for one in score(WELL)] == [(1, None)] * 2


def test_a_function_that_hangs_is_ended_and_started_anew() -> None:
    with scorer.opened([own("misbehaves", timeout="5s", fallback=-2)], HERE) as score:
        found = score(misbehaving("well", "hangs"))
        assert [one.value for one in found] == [-2, -2]
        assert "longer than 5 s" in str(found[0].error)
        assert [(one.value, one.error) for one in score(WELL)] == [(1, None)] * 2


def test_a_child_that_answers_too_is_not_mistaken_for_the_function(score: scorer.Scorer) -> None:
    """Whichever answer is first is the function's; what the other says does not become the next batch's."""
    score(misbehaving("answers_twice"))
    time.sleep(1)
    after = [score(WELL) for _ in range(2)]
    assert all(one.value in (1, -2) for found in after for one in found)
    assert [(one.value, one.error) for one in after[-1]] == [(1, None)] * 2


def test_a_reward_that_always_fails_stops_the_training_and_names_the_row() -> None:
    batch = misbehaving("well", "raises")
    with scorer.opened([own("misbehaves")], HERE) as score:
        for _ in range(FAILURES_IN_A_ROW - 1):
            assert score(batch)[0].error
        with pytest.raises(StokerError) as error:
            score(batch)
    assert error.value.code == "STK462"
    assert error.value.fields["reward"] == "misbehaves"
    assert error.value.fields["row"] == "question 1"
    assert "ZeroDivisionError" in error.value.what


def test_failures_that_are_not_in_a_row_do_not_stop_it() -> None:
    with scorer.opened([own("misbehaves")], HERE) as score:
        for _ in range(FAILURES_IN_A_ROW + 1):
            assert score(misbehaving("raises"))[0].error
            assert score(WELL)[0].error is None


def test_a_row_without_the_column_is_an_error_of_that_row() -> None:
    batch = [*BATCH, Sample("no answer here", "42", {})]
    found = scored([built_in("exact", {"column": "answer"})], batch)
    assert [bool(one.error) for one in found] == [False, False, True]
    assert "no `answer`" in str(found[2].error)


# ---- what is found before the first batch


def refused(reward: Reward, folder: Path) -> StokerError:
    with pytest.raises(StokerError) as error, scorer.opened([reward], folder):
        pass
    return error.value


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (None, "No such file"),
        ("def reward(:\n", "rewards.py:1: SyntaxError"),
        ("x = 1\nimport not_there\n", "rewards.py:2: ModuleNotFoundError"),
        ("import sys\nsys.exit()\n", "SystemExit"),
        ("import os\nos._exit(4)\n", "ended with code 4"),
        ("def rewards(**_): return []\n", "has no attribute 'reward'"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused_at_once(tmp_path: Path, source: str | None, reason: str) -> None:
    if source is not None:
        (tmp_path / "rewards.py").write_text(source, encoding="utf-8")
    error = refused(Reward.model_validate({"function": "rewards.py:reward"}), tmp_path)
    assert error.code == "STK461"
    assert reason in error.what
    assert ("`rewards`" in error.hint) == ("no attribute" in reason)


def test_a_file_that_only_its_owner_may_read_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("def reward(completions, **_): return [1] * len(completions)\n", encoding="utf-8")
    file.chmod(0o600)
    with scorer.opened([Reward.model_validate({"function": "rewards.py:reward"})], tmp_path) as score:
        assert score(BATCH)[0].value == 1


def test_a_schema_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    error = refused(built_in("valid_json", {"fits": {"type": "no such type"}}), tmp_path)
    assert error.code == "STK464"
    assert "no such type" in error.what
