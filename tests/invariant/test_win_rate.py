"""`stoker eval --judge`: a reward model and a model at an endpoint prefer what they should, whatever the order."""

import io
import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import asked_run
import forked_programs
import http_page
import numpy as np
import paired_run
import pytest
import tiny_run
import torch
from typer.testing import CliRunner

from stoker.cli.main import app
from stoker.engine import answer_pairs, generate, reward_scores, samples, streaming, tokenizer
from stoker.engine.dataset import token_ids
from stoker.errors import StokerError
from stoker.handover import judges, win_rate
from stoker.launch import programs
from stoker.rundir import events, files, prepared
from stoker.rundir.layout import RunDir

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LANG", "en")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def trained(folder: Path, base: Path, objective: str, *, reverse: bool = False) -> RunDir:
    text = paired_run.text(base, steps=40, objective=objective, more=", eval_every: 40 steps")
    rows = [pair[::-1] if reverse else pair for pair in paired_run.pairs(240, seed=2)]
    run_dir = tiny_run.make_run(folder, text, rows, paired_run.pairs(24, seed=3))
    assert tiny_run.train(run_dir) == 0, tiny_run.said(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, base_model: Path) -> dict[str, RunDir]:
    """A model that was taught to answer in even words, a judge that was, and one that was taught the reverse."""
    folder = tmp_path_factory.mktemp("judged")
    return {
        "taught": trained(folder / "taught", base_model, "dpo"),
        "judge": trained(folder / "judge", base_model, "reward"),
        "reverse": trained(folder / "reverse", base_model, "reward", reverse=True),
    }


@pytest.fixture
def _without_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's programs, without a start of Python and torch each; the how-to page runs them as users do."""

    def ask_engine(program: str, run_dir: RunDir, *arguments: str) -> str:
        assert program == "reward_scores"
        monkeypatch.setattr("sys.argv", [program, str(run_dir.path), *arguments])
        with redirect_stdout(io.StringIO()) as said:
            assert reward_scores.main(run_dir.path) == 0
        return said.getvalue()

    forked_programs.use(monkeypatch)
    monkeypatch.setattr(programs, "ask_engine", ask_engine)
    monkeypatch.setattr(answer_pairs, "MOST_TOKENS", 16)  # such models never end


@pytest.mark.usefixtures("_without_imports")
def test_a_reward_model_prefers_what_it_was_taught(runs: dict[str, RunDir]) -> None:
    """The control: one that was taught the reverse."""
    asked = ["eval", str(runs["taught"].path), "--judge", str(runs["judge"].path), "--samples", "24", "--json"]
    ended = CliRunner().invoke(app, asked)
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)["win_rate"]
    assert found["wins"] + found["ties"] + found["losses"] == 24
    assert found["rate"] > 0.8
    assert found["low"] > 0.5
    kept = [json.loads(line) for line in Path(found["answers"]).read_text().splitlines()]
    assert [row["verdict"] for row in kept].count(1.0) == found["wins"]
    assert all(row["before_cut"] is False or row["before"] for row in kept)
    (said,) = (one for one in events.read(runs["taught"].events_file) if one["event"] == "judged")
    assert said["rate"] == found["rate"]
    again = CliRunner().invoke(app, [*asked[:3], str(runs["reverse"].path), *asked[4:]])
    assert json.loads(again.stdout)["win_rate"]["rate"] < 0.5  # not what the other said, whose name is the same
    model, words = generate.load(runs["reverse"])
    scores = list(reward_scores.scores(model, tokenizer.described("it", words), 64, kept))
    assert np.mean([after > before for before, after in scores]) < 0.5


def test_a_row_is_scored_as_it_was_trained_on(runs: dict[str, RunDir]) -> None:
    model, words = generate.load(runs["judge"])
    split = streaming.open_split(runs["judge"], "eval", prepared.read_report(runs["judge"].data).eval)
    rows, expected = [], []
    for number in range(8):
        chosen, rejected = split.row(number)
        start = int(np.argmax(chosen >= 0))
        texts = [words.decode(token_ids(one)) for one in (chosen[:start], rejected[start:], chosen[start:])]
        texts = [texts[0], *(f" {text}" for text in texts[1:])]
        rows.append(dict(zip(("prompt", "before", "after"), texts, strict=True)))
        ended = [np.append(token_ids(one), words.eos_token_id) for one in (rejected, chosen)]
        ids = [torch.from_numpy(one.astype(np.int64))[None] for one in ended]
        expected.append([model(input_ids=one).logits[0, 0].item() for one in ids])
    found = list(reward_scores.scores(model, tokenizer.described("it", words), 64, rows))
    assert np.allclose(found, expected, atol=1e-6)


def test_a_score_that_is_missing_is_the_worse_one_and_two_are_no_verdict() -> None:
    given = {(None, 1.0): 1.0, (1.0, None): 0.0, (None, None): None, (1.0, 1.0): 0.5, (2.0, 1.0): 0.0}
    assert {pair: judges.higher(*pair) for pair in given} == given
    assert judges.higher(float("nan"), 1.0) is None


def test_answers_that_cannot_be_scored_have_no_score(runs: dict[str, RunDir]) -> None:
    """An empty one, and one behind the length that training would have cut at."""
    model, words = generate.load(runs["judge"])
    row = {"prompt": "w4 w5 w6 w7", "before": "", "after": " w7"}
    found = [list(reward_scores.scores(model, tokenizer.described("it", words), length, [row])) for length in (64, 3)]
    assert found[0][0][0] is None
    assert found[0][0][1] is not None
    assert found[1] == [[None, None]]


# ---- an endpoint, simulated


class Simulated:
    """An OpenAI endpoint: what it says follows from the question alone."""

    def __init__(self, reply: Callable[[str], str], refuses: Callable[[dict[str, Any]], int] = lambda _: 0) -> None:
        self.reply, self.refuses = reply, refuses
        self.seen: list[dict[str, Any]] = []
        self.tokens: set[str | None] = set()
        self.finish = "stop"
        self.spoiled: list[bytes] = []
        """What it sends instead of its next replies."""
        self.wait = ""

    def answer(self, body: dict[str, Any], token: str | None) -> tuple[int, dict[str, Any]]:
        self.seen.append(body)
        self.tokens.add(token)
        if status := self.refuses(body):
            return status, {"error": f"refused, {token}"}
        message = {"content": self.reply(body["messages"][0]["content"])}
        return 200, {"choices": [{"message": message, "finish_reason": self.finish}]}


@contextmanager
def serving(simulated: Simulated) -> Iterator[str]:
    class Chat(http_page.Quiet):
        def do_POST(self) -> None:  # noqa: N802  # http.server's name
            assert self.path == "/v1/chat/completions"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = simulated.answer(body, self.headers["Authorization"])
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", simulated.wait)
            self.end_headers()
            self.wfile.write(simulated.spoiled.pop() if simulated.spoiled else json.dumps(said).encode())

    with http_page.serving(Chat) as address:
        yield f"{address}/v1"


def likes(*words: str) -> Callable[[str], str]:
    def reply(question: str) -> str:
        first = question.split("[Answer A]\n")[1].split("\n\n[Answer B]")[0]
        better = "A" if any(word in first for word in words) else "B"
        return f"<think>A or B? B has more.</think>\nAnswer A is shorter than Answer B.\n**{better}**"

    return reply


GOOD = likes("good", "Paris")
ROWS = (("bad", "a good one"), ("worse", "good"), ("good", "bad"), ("same", "same"))


def write_pairs(folder: Path, *rows: tuple[str, str]) -> Path:
    path = folder / "pairs.json"
    given = [
        {"prompt": f"question {number}", "before": a, "after": b, "before_cut": False, "after_cut": number == 0}
        for number, (a, b) in enumerate(rows)
    ]
    files.write_json(path, {"about": {}, "pairs": given})
    return path


def measured(folder: Path, url: str, rows: tuple[tuple[str, str], ...] = ROWS) -> win_rate.WinRate:
    judge = judges.EndpointJudge(url, "m", pause_seconds=0.01)
    (folder / "evals").mkdir(exist_ok=True)
    kept = folder / "evals" / "kept.jsonl"
    return win_rate.measure("m", judge, write_pairs(folder, *rows), kept, lambda *_: None)


def test_a_model_at_an_endpoint_is_asked_in_both_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-word")
    simulated = Simulated(GOOD)
    with serving(simulated) as url:
        found = measured(tmp_path, url)
    assert (found.wins, found.ties, found.losses, found.same, found.unjudged) == (2, 1, 1, 1, 0)
    assert found.cut == (0, 1)
    assert len(simulated.seen) == 6  # not about answers that are the same
    assert simulated.tokens == {"Bearer a-secret-word"}
    assert {one["model"] for one in simulated.seen} == {"m"}


def test_one_that_prefers_a_place_has_no_preference_and_is_refused_at_the_start(tmp_path: Path) -> None:
    with serving(Simulated(lambda _: "A")) as url:
        found = measured(tmp_path, url)
        assert (found.wins, found.ties, found.losses, found.contradicted) == (0, 4, 0, 3)
        with pytest.raises(StokerError) as caught:
            judges.EndpointJudge(url, "m").check()
    assert caught.value.code == "STK528"


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("B", "B"),
        ("Answer A is better than Answer B.", None),
        ("**Final: B**\nA note: close call.", None),
        ("I think so.\n\n**Answer: b**\n", "B"),
        ("理由如上。\n答案：A", "A"),
        ("<think>A is better\nA", None),
        ("<think>A</think>\n[[B]]", "B"),
        ("The better answer is B", "B"),
        ("Final answer: **A**.", "A"),
        ("\\boxed{B}", "B"),
        ("Between A and B the better one is B", None),
        ("The worse answer is A", None),
        ("Not better: A", None),
        ("更差的回答是 A", None),
        ("更好的回答是 B。", "B"),
        ("what the user wanted is a", None),
        (":" * 4000, None),
        ("Both are fine.", None),
        ("", None),
    ],
)
def test_a_reply_counts_by_its_last_line_and_none_that_was_cut(
    tmp_path: Path, reply: str, said: str | None, finish: str
) -> None:
    assert judges.letter(reply) == said
    simulated = Simulated(lambda _: reply)
    simulated.finish = finish
    with serving(simulated) as url:
        if said is None or finish == "length":
            with pytest.raises(StokerError) as caught:
                measured(tmp_path, url)
            assert caught.value.code == "STK529"
        else:
            assert measured(tmp_path, url).ties == 4


@pytest.mark.parametrize(
    "refuses",
    [
        lambda body: 400 if "max_tokens" in body or "temperature" in body else 0,  # as newer models of OpenAI
        lambda body: 400 if max(body.get("max_tokens", 0), body.get("max_completion_tokens", 0)) > 2000 else 0,
        lambda _: 0,
    ],
)
def test_what_an_endpoint_refuses_is_said_otherwise(tmp_path: Path, refuses: Callable[[Any], int]) -> None:
    with serving(Simulated(GOOD, refuses)) as url:
        judge = judges.EndpointJudge(url, "m", pause_seconds=0.01)
        judge.check()
        (tmp_path / "evals").mkdir()
        path = write_pairs(tmp_path, *ROWS)
        found = win_rate.measure("m", judge, path, tmp_path / "evals" / "kept.jsonl", lambda *_: None)
    assert found.wins == 2


def test_too_many_questions_are_asked_again_and_verdicts_are_kept(tmp_path: Path) -> None:
    count = itertools.count()
    busy = Simulated(GOOD, lambda _: 429 if next(count) % 3 == 0 else 0)
    with serving(busy) as url:
        assert measured(tmp_path, url).wins == 2
    broken = Simulated(GOOD, lambda _: 401)
    with serving(broken) as url:
        with pytest.raises(StokerError) as caught:
            measured(tmp_path, url)
        assert caught.value.code == "STK523"  # another address: nothing is known of it
        kept = tmp_path / "evals" / "kept.jsonl"
        address = judges.EndpointJudge(url, "m").address
        kept.write_text(re.sub(r'"judge": "[^"]*"', f'"judge": "{address}"', kept.read_text()) + '{"half a li')
        broken.seen.clear()
        assert measured(tmp_path, url).wins == 2
    assert broken.seen == []


def test_a_question_that_is_refused_has_no_verdict_and_the_others_have(tmp_path: Path) -> None:
    """A filter, or a context that is too short; with too many of them it is said that the judge cannot judge."""
    many = (*ROWS, ("bad", "good"), ("a word that a filter stops", "good"))
    with serving(Simulated(GOOD, lambda body: 400 if "stops" in body["messages"][0]["content"] else 0)) as url:
        found = measured(tmp_path, url, many)
        assert (found.wins, found.ties, found.losses, found.unjudged) == (3, 1, 1, 1)
        with pytest.raises(StokerError) as caught:
            measured(tmp_path, url, many[-2:])
    assert caught.value.code == "STK529"


@pytest.mark.parametrize("bad", [b'{"choices": [{"mess', b'{"error": "overloaded"}', b"<html>", b"[" * 100_000])
def test_what_is_no_reply_is_asked_for_again_and_quoted_in_the_end(tmp_path: Path, bad: bytes) -> None:
    simulated = Simulated(GOOD)
    with serving(simulated) as url:
        simulated.spoiled = [bad] * 3
        assert measured(tmp_path, url).wins == 2
        simulated.spoiled = [bad] * 100
        with pytest.raises(StokerError) as caught:
            judges.EndpointJudge(url, "other", pause_seconds=0.01).check()
    assert caught.value.code == "STK523"
    assert bad[:20].decode() in str(caught.value)


def test_a_pair_that_takes_too_long_has_no_verdict_and_some_of_them_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "_ANSWER_SECONDS", 0.5)

    def slow(question: str) -> str:
        time.sleep(1.5 if "slow" in question else 0)
        return GOOD(question)

    with serving(Simulated(slow)) as url:
        found = measured(tmp_path, url, (*ROWS, ("bad", "good"), ("slow", "good")))
        assert (found.wins, found.unjudged) == (3, 1)
        with pytest.raises(StokerError) as caught:
            measured(tmp_path, url, tuple((f"slow {number}", "good") for number in range(6)))
    assert caught.value.code == "STK523"


def test_verdicts_that_were_under_way_are_kept_when_one_fails(tmp_path: Path) -> None:
    def refuses(body: dict[str, Any]) -> int:
        return 401 if "question 0" in body["messages"][0]["content"] else 0

    failing = Simulated(GOOD, refuses)
    with serving(failing) as url:
        with pytest.raises(StokerError):
            measured(tmp_path, url)
        asked = Counter(re.search(r"question \d", one["messages"][0]["content"])[0] for one in failing.seen)
        answered = sum(times == 2 for name, times in asked.items() if name != "question 0")
        kept = (tmp_path / "evals" / "kept.jsonl").read_text().splitlines()
        assert len([line for line in kept if '"same"' not in line]) == answered


def test_verdicts_are_those_of_one_judge_and_of_any_text(tmp_path: Path) -> None:
    """Ends of lines that only Unicode knows, half a character from a server, a line that a full disk cut."""
    simulated = Simulated(lambda question: GOOD(question).replace("B has more", "B \ud83d has"))
    rows = (("bad\u2028", "a good one\x85"), ("worse", "好 good"))
    with serving(simulated) as url:
        assert measured(tmp_path, url, rows).wins == 2
        kept = tmp_path / "evals" / "kept.jsonl"
        kept.write_bytes(kept.read_bytes() + '{"prompt": "好'.encode()[:-1])
        simulated.seen.clear()
        assert measured(tmp_path, url, (*rows, ("bad", "good"))).wins == 3
        assert len(simulated.seen) == 2
        assert measured(tmp_path, url, (*rows, ("bad", "good"))).wins == 3
        assert len(simulated.seen) == 2
        other = judges.EndpointJudge(url, "another")
        found = win_rate.measure("another", other, write_pairs(tmp_path, *rows), kept, lambda *_: None)
    assert found.wins == 2
    assert len(simulated.seen) == 6


def test_a_server_says_how_long_to_wait(tmp_path: Path) -> None:
    busy = Simulated(GOOD, lambda _: 429 if len(busy.seen) == 1 else 0)
    busy.wait = "1"
    with serving(busy) as url:
        began = time.monotonic()
        judges.EndpointJudge(url, "m", pause_seconds=0.01).check()
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize(
    "address", ["", "ftp://host/v1", "http://", "http://[::1/v1", "https://somebody:hunter2@host/v1"]
)
def test_an_address_that_is_none_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(StokerError) as caught:
        judges.EndpointJudge(address, "m").check()
    assert caught.value.code == "STK521"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["abcdef\r\n0123456789", '"abcdef0123456789"', "abcdef 密钥"])
def test_a_key_that_no_header_takes_is_refused_without_being_said(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(StokerError) as caught:
        judges.EndpointJudge("http://127.0.0.1:9/v1", "m").check()
    assert caught.value.code == "STK523"
    assert "abcdef" not in str(caught.value)


def test_the_end_of_a_line_is_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "abcdef0123456789\r\n")
    simulated = Simulated(GOOD)
    with serving(simulated) as url:
        judges.EndpointJudge(url, "m").check()
    assert simulated.tokens == {"Bearer abcdef0123456789"}


def test_an_endpoint_that_refuses_is_quoted_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-word")
    with serving(Simulated(GOOD, lambda _: 401)) as url, pytest.raises(StokerError) as caught:
        measured(tmp_path, url)
    assert caught.value.code == "STK523"
    assert "401" in str(caught.value)
    assert "a-secret-word" not in str(caught.value)


def test_where_nobody_listens_it_is_said_at_once() -> None:
    with serving(Simulated(GOOD)) as url:
        pass
    began = time.monotonic()
    with pytest.raises(StokerError) as caught:
        judges.EndpointJudge(url, "m", pause_seconds=1e9).check()
    assert time.monotonic() - began < 30
    assert caught.value.code == "STK523"
    assert "refused" in str(caught.value)


def test_this_machine_is_asked_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(Simulated(GOOD)) as url:
        assert measured(tmp_path, url).wins == 2


def test_a_judge_is_looked_for_before_anything_is_generated(
    runs: dict[str, RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.launch.programs.run_engine", None)
    taught = str(runs["taught"].path)
    expected = {
        ("nobody",): "STK501",
        ("openai:m",): "STK521",
        (taught,): "STK522",
        (str(runs["judge"].path), "--artifact", "merged"): "STK506",
    }
    (runs["taught"].artifacts / "merged").mkdir(exist_ok=True)
    for words, code in expected.items():
        found = CliRunner().invoke(app, ["eval", taught, "--judge", *words])
        assert isinstance(found.exception, StokerError)
        assert found.exception.code == code


def won(*counts: int) -> win_rate.WinRate:
    return win_rate.WinRate(*counts, 0, 0, 0, (1, 1), (0, 0))


@pytest.mark.parametrize(
    ("counts", "low", "high"), [((50, 0, 50), 0.404, 0.596), ((10, 0, 0), 0.722, 1.0), ((0, 0, 10), 0.0, 0.278)]
)
def test_without_ties_the_interval_is_wilsons(counts: tuple[int, int, int], low: float, high: float) -> None:
    """Against published tables."""
    assert won(*counts).interval == pytest.approx((low, high), abs=1e-3)


@pytest.mark.parametrize(
    "shares", [(0.5, 0.5, 0), (0.1, 0.9, 0), (0.45, 0.5, 0.05), (0.3, 0.65, 0.05), (0.6, 0.3, 0.1), (0.3, 0.4, 0.3)]
)
def test_the_interval_holds_the_rate_in_nineteen_of_twenty_cases(shares: tuple[float, float, float]) -> None:
    """Every count that 60 pairs can give, with its probability; the control: half as wide."""
    count, rate = 60, shares[0] + shares[1] / 2
    held, half = 0.0, 0.0
    for wins, ties in itertools.product(range(count + 1), repeat=2):
        losses = count - wins - ties
        if losses < 0 or (losses and not shares[2]):
            continue
        ways = math.comb(count, wins) * math.comb(count - wins, ties)
        chance = ways * shares[0] ** wins * shares[1] ** ties * shares[2] ** losses
        found = won(wins, ties, losses)
        held += chance * (not found.rejects(rate))
        half += chance * (not found.rejects(found.rate + 2 * (rate - found.rate)))
    assert 0.92 <= held <= 0.985
    assert half < 0.85


def test_one_win_more_never_lowers_the_interval() -> None:
    for ties in (0, 50, 99):
        edges = [won(wins, ties, 100 - ties - wins).interval for wins in range(101 - ties)]
        assert edges == sorted(edges)
        assert [high for _, high in edges] == sorted(high for _, high in edges)
    low, high = won(0, 100, 0).interval
    assert low < 0.49 < 0.51 < high
    assert all(
        low <= won(*counts).rate <= high
        for counts in [(1, 99, 0), (50, 50, 0)]
        for low, high in [won(*counts).interval]
    )


def test_of_fewer_prompts_than_asked_for_all_are_taken_and_each_once(runs: dict[str, RunDir]) -> None:
    report = prepared.read_report(runs["taught"].data)
    prompts = [answer_pairs._prompts(runs["taught"], report, count) for count in (7, 24, 100)]
    assert [len(found) for found in prompts] == [7, 24, 24]
    assert all(len(set(map(tuple, found))) == len(found) for found in prompts)


def test_thoughts_are_no_part_of_an_answer() -> None:
    given = {"<think>\nA?\n</think>\n\nB": "\n\nB", "A?\n</think>B": "B", "<think>\nA?": "", "B": "B"}
    assert {text: answer_pairs.without_thoughts(text, inside=False) for text in given} == given
    begun = given | {"B": ""}  # the prompt ended in a thought, which has no end here
    assert {text: answer_pairs.without_thoughts(text, inside=True) for text in begun} == begun


# ---- prompts


def test_the_sample_of_a_run_over_prompts_asks_the_whole_prompt(tmp_path: Path, base_model: Path) -> None:
    text = asked_run.text(base_model, steps=2, more=", eval_every: 2 steps")
    held = asked_run.prompts(3, 3)
    run_dir = asked_run.trained(tmp_path, text, asked_run.prompts(8, 2), held)
    model, words = generate.load(run_dir)
    made = samples.make(run_dir, prepared.read_report(run_dir.data), model, words, 3)
    assert [one["prompt"] for one in made] == [words.decode(token_ids(row[0])) for row in held]
    assert all("wanted" not in one and one["before"] for one in made)
    assert all(len(one["after"].split()) <= asked_run.LONGEST for one in made)
