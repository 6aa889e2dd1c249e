"""The planner's proof reads any table with these columns: each row is compared or says why not, and none crashes it."""

import csv
import itertools
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stoker.facts import intervals, rates

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import fit_speed  # noqa: E402  # benchmarks/ is no package
import measurements  # noqa: E402
import planner  # noqa: E402
import planner_intervals  # noqa: E402
import planner_report  # noqa: E402
import product_rows  # noqa: E402
import stated  # noqa: E402

PLAIN = {
    "id": "odd", "source_repo": "someone/else", "source_commit_or_date": "abc (2026-01-05)",
    "model": "meta-llama/Llama-3.1-8B", "shape_key": "meta-llama/Meta-Llama-3.1-8B", "method": "lora", "lora_r": "16",
    "lora_targets": "all-linear", "seq_len": "2048", "packed": "y", "micro_batch": "2", "grad_accum": "1",
    "grad_checkpointing": "y", "attention": "flash", "optimizer": "AdamW", "compute_dtype": "bf16",
    "weights_dtype": "bf16", "parallelism": "none", "gpu": "A100-80GB", "n_gpus": "1", "peak_mem_gb_per_gpu": "20",
    "mem_kind": "reserved", "tokens_per_s_total": "3000", "grade_mem": "A", "grade_tput": "A",
}  # fmt: skip


def row(**changed: str) -> measurements.Measured:
    return measurements.measured({**dict.fromkeys(measurements.COLUMNS, ""), **PLAIN, **changed})


def step(**changed: str) -> Any:
    found = row(**changed)
    assert found.step is not None, found.memory_reason
    return found.step


@pytest.fixture(scope="module")
def table() -> list[measurements.Measured]:
    return measurements.read()


def test_every_row_of_the_shipped_table_is_compared_or_says_why_not(table: list[measurements.Measured]) -> None:
    assert len(table) == 2003
    for one in table:
        assert one.step or (one.memory_reason and one.speed_reason and one.fit_reason), one.id
        assert one.memory_reason or (one.memory and one.step), one.id
        assert one.speed_reason or (one.speed and one.card), one.id
        assert one.fit_reason or (one.outcome and one.capacity), one.id


def test_most_graded_rows_are_compared(table: list[measurements.Measured]) -> None:
    full_or_lora = [one for one in table if one.grade_memory in ("A", "B") and one.method]
    assert sum(not one.memory_reason for one in full_or_lora) >= 0.9 * len(full_or_lora)
    assert sum(not one.speed_reason for one in table) > 650


def test_rows_that_state_everything_are_those_counted_before_intervals_were_made(
    table: list[measurements.Measured],
) -> None:
    assert sum(map(stated.considered, table)) == 219
    chosen = [one for one in table if stated.states_everything(one)]
    assert Counter(one.source for one in chosen) == {"QwenLM/Qwen": 66, "pytorch/torchtune": 8}
    assert sum(map(stated.names_its_meter, chosen)) == 5


@pytest.mark.parametrize(
    ("column", "word"),
    [("attention", "eager/sdpa"), ("packed", "n"), ("optimizer", "?"), ("lora_targets", ""), ("gpu", "A10 or 3090")],
)
def test_a_row_that_leaves_a_column_open_does_not_state_everything(column: str, word: str) -> None:
    assert stated.states_everything(row(gpu="A100-80GB"))
    assert stated.open_columns(row(**{column: word})) == [column]


def test_the_figure_is_what_the_column_says() -> None:
    kinds = {
        "max_memory_allocated": "allocated",
        "peak active": "allocated",
        "max reserved": "reserved",
        "nvml": "device",
        "?": "device",
        "": "device",
    }
    assert {kind: row(mem_kind=kind).figure for kind in kinds} == kinds


def test_quantised_weights_by_their_words() -> None:
    words = {
        "nf4-bnb": "nf4",
        "nf4-bnb double-quant": "nf4_double",
        "int4-gptq": "int4",
        "int8-bnb": "int8",
        "bnb-4bit": "nf4",
        "4-bit prequantized": "nf4_double",
    }
    assert {word: step(method="qlora", weights_dtype=word).weights for word in words} == words
    assert row(method="qlora", weights_dtype="aqlm-2bit").memory_reason == "weights not described: aqlm-2bit"


def test_the_trainer_casts_what_is_not_quantised_and_a_loop_of_its_own_does_not() -> None:
    assert step(method="qlora", weights_dtype="nf4-bnb", optimizer="adamw_torch").outer == "fp32"
    assert step(method="qlora", weights_dtype="int4-gptq", optimizer="adamw_torch").outer == "bf16"
    assert step(method="qlora", weights_dtype="nf4-bnb", compute_dtype="bf16-true").outer == "bf16"


def test_parallel_words() -> None:
    def layout(text: str, cards: str = "8") -> tuple[Any, ...]:
        found = step(parallelism=text, n_gpus=cards)
        other = found.foreign
        return found.strategy, found.shard_devices, other.tensor_parallel, other.pipeline_parallel, found.offload

    assert layout("fsdp full (FSDP2)") == ("fsdp2", 8, 1, 1, "none")
    assert layout("fsdp/hsdp", "32") == ("fsdp2", 8, 1, 1, "none")
    assert layout("fsdp 8, tp 8", "64") == ("fsdp2", 8, 8, 1, "none")
    assert layout("zero3 + cpu optimizer offload") == ("zero3", 8, 1, 1, "optimizer")
    assert layout("ZeRO-2") == ("zero2", 8, 1, 1, "none")
    assert layout("megatron-deepspeed dp8 tp8 pp6", "384") == ("ddp", 8, 8, 6, "none")
    assert layout("fsdp full + cpu offload") == ("fsdp2", 8, 1, 1, "all")
    assert layout("hsdp", "32") == ("fsdp2", 8, 1, 1, "none")
    assert row(parallelism="", n_gpus="8").memory_reason == "parallelism not stated"
    assert row(parallelism="device_map", n_gpus="2").memory_reason.startswith("layers on several cards")


@pytest.mark.parametrize("column", ["attention", "optimizer", "parallelism"])
def test_a_word_that_is_not_known_is_a_reason_and_no_guess(column: str) -> None:
    assert row(**{column: "quux"}).memory_reason == f"{column} not described: quux"


def test_torch_runs_its_flash_kernel_from_ampere_on_without_a_mask() -> None:
    assert step(attention="sdpa").attention == "flash_2"
    assert step(attention="sdpa", gpu="Tesla T4").attention == "efficient"
    assert step(attention="sdpa", packed="n").attention == "efficient"
    assert step(attention="flash (TE/cuDNN)").attention == "flash"


def test_what_is_judged_is_what_plans(table: list[measurements.Measured]) -> None:
    told = product_rows.account(table)
    assert told["different"] == []
    assert told["equal"] == told["expressible"] >= 8


def test_a_card_by_whatever_it_is_called() -> None:
    names = {
        "A100-80GB-SXM4": "A100-80-SXM4",
        "H100-SXM5-80GB": "H100-SXM",
        "4xA10G": "A10G",
        "Tesla T4": "T4",
        "RTX 2080 Ti 11GB": "RTX2080Ti",
        "Blackwell GPU (B200-SXM-180GB)": "B200",
        "NVIDIA A100-PCIE-40GB": "A100-40-PCIe",
    }
    assert {name: getattr(row(gpu=name).card, "name", None) for name in names} == names
    assert row(gpu="V100/A10/3090").card is None
    assert row(gpu="MI300X").speed_reason


def test_a_date_decides_what_old_libraries_did() -> None:
    quantised = {"optimizer": "adamw_torch", "weights_dtype": "nf4-bnb", "method": "qlora"}
    old = {**quantised, "source_commit_or_date": "x (2023-11-02)"}
    new = {**quantised, "source_commit_or_date": "x (2026-02-01)"}
    assert (step(**old).foreign.shifted_logits, step(**old).foreign.frozen_inputs) == (True, True)
    assert (step(**new).foreign.shifted_logits, step(**new).foreign.frozen_inputs) == (False, False)
    assert step(**{**new, "notes": "torch 2.0 cu11.8"}).foreign.shifted_logits


def test_padded_rows_are_as_long_as_their_data() -> None:
    notes = "dataset=x; dataset token stats (qwen tokenizer): 169.3±58.7, min=35, max=563"
    assert step(packed="n", notes=notes).length == 563
    assert step(packed="n", notes=notes.replace("dataset=x", "dataset=x#100")).length < 563
    assert step(packed="n (padded to max)", notes=notes).length == 2048


def test_an_out_of_memory_row_must_not_fit() -> None:
    assert row(grade_mem="F", flag_mem="OOM point").outcome == "oom"
    assert row(grade_mem="F", notes="4bit + GC; result OOM").outcome == "oom"
    assert row(grade_mem="F", flag_mem="fit-only (ran without OOM at this microbatch)").outcome == "fits"


ODD = ("", "?", "??? (see doc)", "n/a", "-1", "1e3", "8k", "None", "½", "（全部）", "nan", "inf", "0", "tp0", "9x9")
COLUMNS = [name for name in measurements.COLUMNS if name not in ("id", "grade_mem", "grade_tput")]


@pytest.mark.parametrize("column", COLUMNS)
def test_odd_words_in_any_column_never_crash(column: str) -> None:
    for odd in ODD:
        found = row(**{column: odd})
        assert found.step or found.memory_reason


def test_the_script_runs_on_a_table_with_odd_values(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*PLAIN, "unknown_column"])
        writer.writeheader()
        for number, odd in enumerate(ODD):
            writer.writerow({**PLAIN, "id": f"odd-{number}", "seq_len": odd, "unknown_column": odd})
        writer.writerow({"id": "bare"})
    told = run(str(path))
    assert told["rows"] == len(ODD) + 1
    listed = {one for reasons in told["unmapped"].values() for ids in reasons.values() for one in ids}
    assert len(listed) + told["compared"]["memory A"] >= len(ODD)


def test_the_script_runs_on_a_sample() -> None:
    told = run("--sample", "120", "--seed", "7")
    assert told["rows"] == 120
    assert {bar["what"] for bar in told["bars"]} >= {"speed, grade A", "memory, one GPU, grade A/B"}
    assert told["coverage"]["speed"]["n"] > 10
    assert run("--sample", "120", "--seed", "7")["bars"] == told["bars"]


def run(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "planner.py"), *words, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


class Pair:
    """A compared row, as far as intervals look at it."""

    def __init__(self, ratio: float, source: str, group: tuple[str, str, str]) -> None:
        self.figure, self.ratio, self.group = "speed", ratio, group
        self.of = type("Of", (), {"source": source})


COMMON, RARE = ("lora", "single", "datacenter"), ("lora", "single", "consumer")


def spread(sources: int, group: tuple[str, str, str], rows: int = 20, width: float = 0.2) -> list[Pair]:
    """So many sources whose rows lie evenly within the width around one."""
    ends = [1 - width + 2 * width * place / (rows - 1) for place in range(rows)]
    return [Pair(ratio, f"source {source}", group) for source in range(sources) for ratio in ends]


def test_a_class_of_nine_sources_holds_nine_of_ten_of_their_weight_and_borrows_nothing() -> None:
    rows = spread(9, COMMON)
    own = planner_intervals.find(planner_intervals.make(rows), "speed", *COMMON)
    assert (own.sources, own.borrowed, own.group) == (9, 0.0, "lora single datacenter")
    assert sum(own.low <= pair.ratio <= own.high for pair in rows) / len(rows) == pytest.approx(0.9, abs=0.01)


def test_a_big_source_does_not_rule() -> None:
    small = spread(9, COMMON)
    big = [Pair(1.0, "big", COMMON)] * 2000
    alone, beside = (planner_intervals.find(planner_intervals.make(p), "speed", *COMMON) for p in (small, small + big))
    assert beside.high == pytest.approx(alone.high, abs=0.03)
    assert beside.high > 1.15, "by rows 2,000 of 2,180 are at 1.0"


def test_a_class_of_few_sources_borrows_the_rest_from_its_parent_and_says_so() -> None:
    rows = [*spread(9, COMMON), *[Pair(1.0, "only", RARE)] * 50]
    made = planner_intervals.make(rows)
    few, wide = (planner_intervals.find(made, "speed", *group) for group in (RARE, COMMON))
    assert (few.sources, few.n, few.borrowed) == (1, 50, pytest.approx(8 / 9, abs=1e-3))
    assert few.low == pytest.approx(wide.low, abs=0.03), "fifty rows of one source are one source"


def test_a_lent_source_counts_once_by_its_rows_in_the_narrowest_class() -> None:
    rows = [*spread(9, COMMON, width=0.05), *[Pair(2.0, f"source {source}", RARE) for source in range(9)]]
    assert planner_intervals.find(planner_intervals.make(rows), "speed", *RARE).low == pytest.approx(2.0, abs=1e-3)


def test_bounds_without_a_source_never_saw_it() -> None:
    odd = [Pair(3.0, "odd", COMMON)] * 5
    without = planner_intervals.without_each([*spread(9, COMMON), *odd])
    assert planner_intervals.find(without["odd"], "speed", *COMMON).high < 1.3
    assert planner_intervals.find(without["source 1"], "speed", *COMMON).high == pytest.approx(3.0, abs=1e-3)


def test_a_rank_that_is_left_open_is_taken_large_before_a_fit_is_sure() -> None:
    _, stated_ratio, stated_least = planner.fit_of(row(lora_r="64"))
    _, ratio, least = planner.fit_of(row(lora_r=""))
    assert least == stated_least == stated_ratio < ratio


def test_cards_that_nobody_measured_have_the_assumed_interval() -> None:
    bounds = planner_intervals.make(spread(9, COMMON))
    assert planner.shown(bounds, "speed", ("lora", "single", "older")) == intervals.assumed("speed")
    assert planner.shown(bounds, "speed", COMMON).n > 0


@pytest.mark.parametrize("figure", ["memory", "speed"])
def test_the_proof_looks_intervals_up_as_a_plan_does(figure: intervals.Figure) -> None:
    bounds = json.loads(planner.INTERVALS.read_text(encoding="utf-8"))["intervals"]
    for group in itertools.product(
        ("full", "lora", "qlora"), ("single", "replicated", "sharded"), ("datacenter", "older")
    ):
        assert planner.shown(bounds, figure, group) == intervals.interval(figure, *group)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_opens_with_the_evidence_and_says_what_holds_where_every_source_is_alike(language: str) -> None:
    told = json.loads(planner.EVIDENCE.read_text(encoding="utf-8"))
    bounds = json.loads(planner.INTERVALS.read_text(encoding="utf-8"))["intervals"]
    opening = planner_report.blocks(told, bounds, language)["relied"]
    page = planner.ROOT / "docs" / "concepts" / planner_report.PAGES[language]
    assert opening in page.read_text(encoding="utf-8")
    for figure, by_source in told["left_out"]["by_source"].items():
        mean = statistics.fmean(own["covered"] for own in by_source.values())
        said = f"{figure}, every source alike"
        said = planner_report.WORDS[said] if language == "zh" else said
        (line,) = [line for line in opening.splitlines() if line.startswith(f"| {said} |")]
        assert f"{mean:.1%}".replace("%", " %") in line


def test_a_fit_without_a_source_starts_where_no_fit_ended() -> None:
    start, shipped = fit_speed.neutral(), rates.rates()
    assert len(set(start.peak.values())) == 1
    assert start.peak.keys() == shipped.peak.keys()
    assert not [name for name in fit_speed.NEUTRAL if getattr(start, name) == getattr(shipped, name)]


def test_the_loss_leaves_out_no_constant_that_a_row_depends_on(table: list[measurements.Measured]) -> None:
    """Rows are asked again only where a constant of theirs moved: the sum is as if all were."""
    own = planner.comparable(table, "speed")[::7]
    rows = [planner.fitted(fit_speed.Row, one) for one in own]
    loss, drawn = fit_speed._loss(rows), random.Random(0)
    ranges = {**fit_speed.RANGES, **{f"peak {name}": fit_speed.TABLE_RANGES["peak"] for name in rates.rates().peak}}
    for _ in range(5):
        constants = {name: drawn.uniform(*ends) for name, ends in ranges.items()}
        made = fit_speed._rates(constants)
        errors = [fit_speed._huber(one.error(made)) for one in rows]
        weights = fit_speed._weights(rows)
        whole = sum(weight * error for weight, error in zip(weights, errors, strict=True))
        assert loss(constants) == pytest.approx(whole, rel=1e-9)
    assert len({one.touched for one in rows}) > 5


def test_runs_that_stoker_does_not_make_are_classes_that_no_plan_looks_up() -> None:
    rows = {
        "sharded": row(method="full", parallelism="zero3", n_gpus="4"),
        "sharded-offload": row(method="full", parallelism="zero3 + cpu optimizer offload", n_gpus="4"),
        "sharded-context": row(method="full", parallelism="zero3 sp4 + cpu optimizer offload", n_gpus="4"),
    }
    assert {planner.Compared("speed", one, 1.0, 1.0).group[1]: one for one in rows.values()} == rows


def test_every_kind_of_run_has_a_colour_and_a_place_in_the_plot() -> None:
    single = [row(), row(method="qlora", weights_dtype="int8-bnb"), row(method="full")]
    several = [row(parallelism=how, n_gpus="8") for how in ("ddp", "zero3", "megatron tp2 pp2")]
    pairs = [type("Pair", (), {"of": one, "measured": 10e9, "predicted": 11e9}) for one in [*single, *several]]
    drawn = planner_report.scatter(pairs, 1e9, "GB")
    assert drawn.count("<circle") == 2 * len(pairs), "a point and an entry of the legend each"
    assert "predicted (GB)" in drawn
