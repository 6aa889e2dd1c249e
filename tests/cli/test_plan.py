"""`stoker plan` through the door people use: the table of all cards, one page, the arithmetic, and wrong flags."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_runs import LANGUAGES, CommandLine
from rich.cells import cell_len
from rich.console import Console

from stoker.facts import cards, machine
from stoker.launch import drawing, programs
from stoker.terminal import console

RUN = "qlora_qwen2.5_7b"


def rows(stoker: CommandLine, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stoker("plan", RUN, "--json", *words).out)
    return found


def lines_of(text: str, section: str) -> str:
    """A section of the explanation as one line per figure."""
    start = text.index(f"\n{section} ")
    rest = text[start + 1 :]
    after = re.search(r"\n[a-z]", rest)
    return rest[: after.start() if after else None]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("goal", ["money", "speed"])
def test_the_table_fits_80_columns_uncut(stoker: CommandLine, language: str, goal: str) -> None:
    done = stoker("plan", RUN, "--for", goal, language=language)
    assert done.code == 0, done.err
    table = done.out.split("\n\n")[1].splitlines()
    assert max(cell_len(line) for line in table) <= 80
    assert "…" not in done.out


def test_the_table_is_short_and_says_how_to_see_the_rest(stoker: CommandLine) -> None:
    short = stoker("plan", RUN)
    names = {card.name for card in cards.cards()}
    listed = [line for line in short.out.splitlines() if line[2:].split(" ")[0] in names]
    assert len(listed) == 12
    assert "`--all`" in short.err
    assert "this machine" not in short.out  # months on a processor: nobody takes that
    everything = stoker("plan", RUN, "--all")
    assert all(re.search(rf"^. {re.escape(name)} ", everything.out, re.M) for name in names)
    assert "`--all`" not in everything.err


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_answer_is_one_sentence_and_stands_first(stoker: CommandLine, language: str) -> None:
    best = rows(stoker, "--region", "global")["recommended"]
    sentence = stoker("plan", RUN, "--region", "global", language=language).out.splitlines()[0]
    assert sentence.startswith({"en": "Use ", "zh": "建议租用 "}[language])
    assert f"{best['devices']} {'x' if language == 'en' else '张'} {best['card']}" in sentence
    assert f"{best['cost']['amount']:,.2f} {best['cost']['currency']}" in sentence


def test_json_has_every_row_with_its_intervals_and_its_reason(stoker: CommandLine) -> None:
    found = rows(stoker)
    assert found["for"] == "money"
    assert len(found["rows"]) == sum(4 if card.kind == "cuda" else 1 for card in cards.cards())
    for row in found["rows"]:
        assert row["why"]
        low, high = row["memory_bytes_range"]
        assert low <= row["memory_bytes"] <= high
        slowest, fastest = row["tokens_per_second_range"]
        assert slowest <= row["tokens_per_second"] <= fastest
        if row["cost"]:
            least, most = row["cost"]["amount_range"]
            assert least <= row["cost"]["amount"] <= most
    assert [row["card"] for row in found["rows"] if row["frontier"]]
    assert found["here"]["devices"] == 1


def test_speed_comes_first_where_it_is_asked_for(stoker: CommandLine) -> None:
    sure = [row for row in rows(stoker, "--for", "speed")["rows"] if row["fits"] == "yes"]
    fastest = min(row["stay_seconds"] for row in sure)
    assert sure[0]["stay_seconds"] <= 1.1 * fastest
    assert (sure[0]["card"], sure[0]["devices"]) != ("B200", 8)  # as fast over the whole stay is less of it


def test_a_free_platform_is_counted_in_sessions(stoker: CommandLine) -> None:
    said = stoker("plan", RUN).out
    assert re.search(
        r"^Free of charge[^:]*: 2 x T4, [^.]* in all; (\d(-\d)? Kaggle sessions|one Kaggle session) of 8\.5 h",
        said,
        re.M,
    )


def test_old_cards_say_why(stoker: CommandLine) -> None:
    row = next(row for row in rows(stoker)["rows"] if row["card"] == "P100-16")
    assert row["fits"] == "no"
    assert row["why"].startswith("cannot run (")
    assert "6.0" in row["why"]


def test_the_page_of_an_old_card_says_why_at_once_and_nothing_that_was_chosen(stoker: CommandLine) -> None:
    page = stoker("plan", RUN, "--card", "P100").out
    fits = page.splitlines()[1]
    assert fits.startswith("fits")
    assert "compute capability 6.0" in fits
    assert "session" not in page
    assert "stoker prove" not in page


def test_an_old_price_is_shown_with_its_age_and_your_own_without(stoker: CommandLine) -> None:
    page = stoker("plan", RUN, "--card", "RTX4090", "--set", "budget.money=50CNY").out
    assert re.search(
        r"^cost +[\d.]+ CNY \([\d.]+ to [\d.]+\) for training alone; price: autodl 2026-03-28,\s+\d+ days old",
        page,
        re.M,
    )
    own = stoker("plan", RUN, "--card", "RTX4090", "--price", "3EUR/h").out
    assert re.search(r"^cost +[\d.]+ EUR .*; price: your price", own, re.M)
    by_word = stoker("plan", RUN, "--card", "RTX4090", "--set", "where.price=3 EUR/h").out
    assert by_word == own
    table = stoker("plan", RUN, "--price", "3USD/h").out
    assert "Your price of 3USD/h is counted for this machine only" in table
    assert "CNY" not in table


@pytest.mark.parametrize(
    ("words", "currency", "provider"),
    [
        (("--budget", "30USD", "--by", "6h"), "USD", None),
        (("--budget", "0.5USD"), "USD", None),
        (("--provider", "autodl"), "CNY", "autodl"),
        (("--currency", "CNY"), "CNY", "autodl"),
        (("--region", "cn"), "CNY", "autodl"),
    ],
)
def test_the_answer_keeps_to_what_is_asked(
    stoker: CommandLine, words: tuple[str, ...], currency: str, provider: str | None
) -> None:
    found = rows(stoker, *words)
    answer = found["answer"]
    assert {row["cost"]["currency"] for row in found["rows"] if row.get("cost")} == {currency}
    assert answer["bill"] is not None
    assert provider in (None, answer["bill"]["provider"])
    if answer["kept"] and found["terms"]["budget"]:
        assert answer["bill"]["cost"]["amount"] <= found["terms"]["budget"]["amount"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_of_a_card_has_the_bill_of_the_table(stoker: CommandLine, language: str) -> None:
    table = json.loads(stoker("plan", RUN, "--json", language=language).out)
    cost = next(row["cost"] for row in table["rows"] if (row["card"], row["devices"]) == ("RTX4090", 2))
    page = stoker("plan", RUN, "--card", "RTX4090", "--gpus", "2", language=language).out
    (line,) = [line for line in page.splitlines() if line.startswith("  cost")]
    assert f"{cost['amount']:,.2f} {cost['currency']}" in line
    alone = json.loads(stoker("plan", RUN, "--card", "RTX4090", "--json", language=language).out)["cost"]
    assert alone["currency"] == cost["currency"] == {"en": "USD", "zh": "CNY"}[language]
    own = stoker("plan", RUN, "--card", "RTX4090", "--price", "3EUR/h", language=language).out
    assert "  cost" not in own


@pytest.mark.parametrize("page", [(), ("--card", "RTX4090")])
def test_a_broken_row_is_said_on_every_page(stoker: CommandLine, tmp_path: Path, page: tuple[str, ...]) -> None:
    row = json.dumps({"instruction": "Name a river.", "output": "The Elbe."})
    (tmp_path / "rows.jsonl").write_text(f"{row}\n{row[:20]}\n{row}\n", encoding="utf-8")
    path = tmp_path / "run.yaml"
    path.write_text("model: Qwen/Qwen2.5-0.5B\ndata: {train: rows.jsonl, pack: false}\n", encoding="utf-8")
    said = stoker("plan", str(path), *page).out
    assert "rows.jsonl:2" in said
    assert "`stoker prepare` will stop there" in said
    skipped = stoker("plan", str(path), *page, "--set", "data.on_bad_row=skip").out
    assert "rows.jsonl:2" in skipped
    assert "will stop there" not in skipped


def test_no_card_and_gpus_is_the_page_of_this_machine(stoker: CommandLine) -> None:
    page = stoker("plan", "scratch_tiny", "--gpus", "0", "--set", "data.tokens=100000").out
    assert re.search(r"^fits +yes", page, re.M)


def test_a_machine_that_cannot_do_what_is_asked_says_so_in_its_line(stoker: CommandLine) -> None:
    found = rows(stoker, "--set", "where.gpus=97")
    assert found["here"]["refused"]["code"] == "STK208"
    assert found["here"]["fits"] == "no"
    assert found["recommended"]


def test_the_arithmetic_of_the_explanation_holds(stoker: CommandLine) -> None:
    said = stoker("plan", RUN, "--explain", "rtx 4090").out
    assert max(cell_len(line) for line in said.splitlines()) <= 80
    memory = lines_of(said, "memory")
    parts = [float(value) for value in re.findall(r"^ +([\d.]+)  [a-z]", memory, re.M)]
    allocated, device = (float(value) for value in re.findall(r"= +([\d.]+)  GiB", memory))
    more = [float(value) for value in re.findall(r"^ +\+ +([\d.]+)  ", memory, re.M)]
    assert sum(parts) == pytest.approx(allocated, abs=0.01 * len(parts))
    assert allocated + sum(more) == pytest.approx(device, abs=0.02)
    speed = lines_of(said, "speed")
    seconds = [float(value) for value in re.findall(r"^ +([\d.]+) s +\d+%", speed, re.M)]
    (step,) = re.findall(r"= +([\d.]+) s  ", speed)
    assert sum(seconds) == pytest.approx(float(step), rel=0.01)
    batch, mean, per, pace = re.search(
        r"(\d+) sequences x ([\d,]+) tokens / ([\d.]+) s = ([\d,]+) tokens/s", speed
    ).groups()  # type: ignore[union-attr]
    assert int(batch) * int(mean) / float(per) == pytest.approx(int(pace.replace(",", "")), rel=0.01)
    hours, count, price, amount = re.search(r"([\d.]+) h x (\d+) x ([\d.]+) USD = ([\d.]+) USD", said).groups()  # type: ignore[union-attr]
    assert float(hours) * int(count) * float(price) == pytest.approx(float(amount), abs=0.01)
    sizes = re.search(r"disk +(.*?) = ([\d.]+) GB", said, re.S)
    assert sizes
    assert sum(map(float, re.findall(r"\d+\.\d+", sizes[1]))) == pytest.approx(float(sizes[2]), abs=0.03)
    assert "batch 16 = " in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_explanation_names_the_moment_and_the_measurements_behind_it(stoker: CommandLine, language: str) -> None:
    said = stoker("plan", RUN, "--explain", "A100-80-SXM4", "--gpus", "4", language=language).out
    assert ("peak in " if language == "en" else "峰值出现在") in said
    assert len(re.findall("group: " if language == "en" else "组：", said.replace("\n", ""))) == 2
    assert "_backward" not in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_and_the_explanation_say_the_verdict_of_the_table_and_whose_price_it_is(
    stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    likely = {"en": "likely:", "zh": "多半"}[language]
    found = next(row for row in rows(stoker)["rows"] if row["fits"] == "tight" and row["safe"])
    stoker("gpus", "--set", f"runpod {found['card']} 0.01USD/h")
    asked = ("--card", "--explain")
    for said in (
        stoker("plan", RUN, flag, found["card"], "--gpus", str(found["devices"]), language=language).out
        for flag in asked
    ):
        assert likely in said
        assert {"en": "(your price)", "zh": "（你的价格）"}[language] in said.replace("\n", "")
        assert {"en": "0 days", "zh": "0 天"}[language] not in said


def test_chinese_pages_have_chinese_words(stoker: CommandLine) -> None:
    page = stoker("plan", RUN, "--card", "RTX4090", language="zh").out.replace("\n", "")
    assert re.search(r"稳妥 +\d+x\d+x1 重算", page)
    said = stoker("plan", RUN, "--explain", "RTX4090", language="zh").out
    said = re.sub(r"\s+", "", said)
    assert "组：QLoRA单卡消费级显卡" in said
    assert "102%" not in said or "实际频率高于标称频率" in said
    asked = ("--provider", "autodl", "--budget", "0.1CNY", "--by", "1h")
    nearest = " ".join(stoker("plan", RUN, *asked, language="zh").out.split())
    assert "没有方案能同时满足 0.1 CNY 和 1 小时；" in nearest


def test_the_explanation_as_json_is_the_plan_and_the_lines(stoker: CommandLine) -> None:
    found = json.loads(stoker("plan", RUN, "--explain", "T4", "--json").out)
    assert found["card"] == "T4"
    assert set(found["explanation"]) >= {"batch", "memory", "speed", "time", "money", "disk", "platforms"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_page_that_does_not_fit_says_what_would(stoker: CommandLine, tmp_path: Path, language: str) -> None:
    path = tmp_path / "full.yaml"
    path.write_text("model: Qwen/Qwen2.5-7B\ndata: {train: a, tokens: 1000000}\n", encoding="utf-8")
    page = stoker("plan", str(path), "--card", "RTX4090", language=language).out
    heading = {"en": "What would fit:", "zh": "以下方案放得下："}[language]
    changes = page[page.index(heading) :].splitlines()[1:]
    assert any("`tune.method: lora`" in line and "1 x RTX4090" in line for line in changes)
    assert any("tune.method" not in line for line in changes)
    assert all(re.search(r"\d GiB", line) for line in changes)
    paid = {found for line in changes for found in re.findall(r"\.\d+ ([A-Z]{3})\b", line)}
    assert paid == {{"en": "USD", "zh": "CNY"}[language]}


def test_where_no_card_carries_it_the_table_says_what_would(stoker: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    text = "model: meta-llama/Llama-3.1-405B\ndata: {train: a, tokens: 1000000, length: 4096}\ntrain: {batch: 8}\n"
    path.write_text(text, encoding="utf-8")
    done = stoker("plan", str(path))
    assert done.code == 0, done.err
    assert "It fits on no card in the catalogue" in done.out
    assert re.search(r"`tune.method: lora` on \d x ", done.out)
    assert len(re.findall(r" GiB short *$", done.out, re.M)) == 5


@pytest.mark.parametrize(
    ("words", "code", "place"),
    [
        (("--for", "fame"), "STK108", "--for"),
        (("--price", "2.5"), "STK109", "--price"),
        (("--budget", "30"), "STK109", "--budget"),
        (("--budget", "¥30", "--currency", "USD"), "STK109", "--budget"),
        (("--budget", "$30", "--provider", "autodl"), "STK226", "`--budget 50CNY`"),
        (("--by", "soon"), "STK109", "--by"),
        (("--budget", "５０CNY"), "STK155", "`50CNY`"),
        (("--by", "６h"), "STK155", "`6h`"),
        (("--price", "２CNY/h"), "STK155", "`2CNY/h`"),
        (("--provider", "autodel"), "STK108", "--provider"),
        (("--currency", "USD", "--provider", "autodl"), "STK108", "--currency"),
        (("--budget", "30USD", "--provider", "autodl"), "STK226", "`--budget 50CNY`"),
        (("--budget", "30EUR"), "STK226", "`--budget 50USD`"),
        (("--region", "mars"), "STK108", "--region"),
        (("--card", "T4", "--budget", "30USD"), "STK224", ""),
        (("--price", "cheap"), "STK109", "--price"),
        (("--plot", "picture.txt"), "STK109", "--plot"),
        (("--card", "RTX9999"), "STK203", "--card"),
        (("--explain", "RTX9999"), "STK203", "--explain"),
        (("--card", "T4", "--all"), "STK224", ""),
        (("--card", "T4", "--explain", "T4"), "STK224", ""),
        (("--card", "T4", "--calibrate"), "STK224", ""),
        (("--gpus", "1", "--plot", "a.png"), "STK224", ""),
        (("--trace", "--gpus", "0"), "STK223", ""),
    ],
)
@pytest.mark.parametrize("language", LANGUAGES)
def test_wrong_flags_are_explained(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str, place: str, language: str
) -> None:
    monkeypatch.setattr(programs, "check_engine", lambda: None)
    done = stoker("plan", RUN, *words, language=language)
    assert done.code == 1
    assert f"[{code}]" in done.err
    assert "Traceback" not in done.err
    assert place in done.err
    assert {"en": "hint: ", "zh": "提示："}[language] in done.err


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("zh", ("--budget", "200块")),
        ("zh", ("--budget", "¥200")),
        ("zh", ("--budget", "200元", "--by", "6小时")),
        ("en", ("--budget", "￥200")),
        ("en", ("--budget", "¥200", "--region", "cn")),
        ("en", ("--budget", "¥200", "--currency", "CNY")),
        ("en", ("--budget", "200", "--currency", "CNY")),
        ("zh", ("--budget", "200", "--currency", "人民币")),
    ],
)
def test_money_and_time_are_read_as_they_are_typed_in_chinese(
    stoker: CommandLine, language: str, words: tuple[str, ...]
) -> None:
    said = json.loads(stoker("plan", RUN, "--by", "6h", *words, "--json", language=language).out)
    usual = json.loads(stoker("plan", RUN, "--by", "6h", "--budget", "200CNY", "--json", language=language).out)
    assert said["terms"]["budget"] == usual["terms"]["budget"] == {"amount": 200, "currency": "CNY"}
    assert said["terms"]["by_seconds"] == usual["terms"]["by_seconds"] == 21_600


@pytest.mark.parametrize("words", [("--budget", "¥200"), ("--budget", "¥200", "--currency", "USD")])
def test_the_sign_of_yuan_and_yen_is_refused_where_neither_is_asked_for(
    stoker: CommandLine, words: tuple[str, ...]
) -> None:
    assert "STK109" in stoker("plan", RUN, *words, language="en").err


@pytest.mark.parametrize(("language", "example"), [("en", "`30USD`"), ("zh", "`200元`")])
def test_a_budget_that_cannot_be_read_has_an_example_in_the_reader_s_money(
    stoker: CommandLine, language: str, example: str
) -> None:
    assert example in stoker("plan", RUN, "--budget", "30块大洋", language=language).err


def test_a_price_in_the_run_file_that_cannot_be_read_names_its_line(stoker: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: m\ndata: {train: a, tokens: 1000}\nwhere: {price: 3}\n", encoding="utf-8")
    done = stoker("plan", str(path))
    assert "run.yaml:3: where.price" in done.err
    assert "`2.5 CNY/h`" in done.err


@pytest.mark.parametrize("language", LANGUAGES)
def test_without_matplotlib_there_is_no_picture_but_a_hint(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr(drawing.importlib.util, "find_spec", lambda _: None)
    done = stoker("plan", RUN, "--plot", "a.png", language=language)
    assert (done.code, done.out) == (1, "")
    assert "[STK221]" in done.err
    assert "stoker[plot]" in done.err


@pytest.mark.parametrize("words", [("--trace", "--card", "T4"), ("--calibrate",)])
def test_without_torch_nothing_is_traced_or_measured(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], runs: Path
) -> None:
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda _: None)
    done = stoker("plan", RUN, *words)
    assert done.code == 1
    assert "[STK406]" in done.err
    assert not runs.exists()


def test_sentences_end_between_words_on_a_terminal_and_are_one_line_elsewhere() -> None:
    said = "batch.micro: 4: the fastest that is expected to fit and divides the batch exactly, of all that were tried"
    lines = {}
    for terminal in (True, False):
        screen = Console(file=io.StringIO(), force_terminal=terminal, width=40, soft_wrap=True, highlight=False)
        console.sentence(said, indent="  ", screen=screen)
        lines[terminal] = screen.file.getvalue().splitlines()
    assert lines[False] == [f"  {said}"]
    assert max(map(len, lines[True])) <= 40
    assert " ".join(line.strip() for line in lines[True]) == said
    assert [line[:4].isspace() for line in lines[True]] == [False] + [True] * (len(lines[True]) - 1)


@pytest.mark.parametrize(("language", "here", "counted"), [("en", "this machine", "1 x "), ("zh", "本机", "1 张")])
def test_a_processor_is_not_counted_like_cards(stoker: CommandLine, language: str, here: str, counted: str) -> None:
    first = stoker("plan", "scratch_tiny", language=language).out.partition("\n\n")[0]
    assert here in first
    assert (counted in first) == (machine.examine().kind == "cuda")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_says_that_an_adapter_cannot_be_merged(stoker: CommandLine, language: str) -> None:
    told = stoker("plan", RUN, "--set", "native.lora.layer_replication=[[0, 4]]", language=language).out
    assert "`native.lora.layer_replication`" in told
    assert "`stoker chat`" in told
    assert "`stoker chat`" not in stoker("plan", RUN, language=language).out
