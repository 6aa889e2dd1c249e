"""`stoker gpus` through the door people use."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import CommandLine
from rich.cells import cell_len

from stoker.facts import cards


def _names(stoker: CommandLine, *words: str) -> list[str]:
    listed: list[dict[str, Any]] = json.loads(stoker("gpus", *words, "--json").out)
    return [card["name"] for card in listed]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_whole_table_fits_80_columns_uncut(stoker: CommandLine, language: str) -> None:
    done = stoker("gpus", language=language)
    assert done.code == 0
    lines = done.out.splitlines()
    assert len(lines) == 1 + len(cards.cards())
    assert max(cell_len(line) for line in lines) <= 80
    assert "…" not in done.out


def test_a_row_shows_memory_speed_capability_price_and_its_age(stoker: CommandLine) -> None:
    row = next(line for line in stoker("gpus", "RTX4090").out.splitlines() if line.startswith("RTX4090 "))
    words = row.split()
    assert words[:6] == ["RTX4090", "24", "1008", "165", "bf16", "8.9"]
    assert words[6:9] == ["1.98", "CNY", "autodl"]
    assert words[9].startswith("(")
    assert words[10] == "d)"


def test_speed_without_bf16_is_marked(stoker: CommandLine) -> None:
    assert "65 fp16" in stoker("gpus", "T4").out


def test_headings_speak_chinese(stoker: CommandLine) -> None:
    heading = stoker("gpus", "T4", language="zh").out.splitlines()[0]
    assert "显卡" in heading
    assert "每小时最低价" in heading


def test_json_has_every_fact_and_every_offer(stoker: CommandLine) -> None:
    (card,) = json.loads(stoker("gpus", "A800", "--json").out)
    assert card["memory_gb"] == 80
    assert card["unverified"] == ["sm_count", "interconnect", "compute_capability", "memory_mib"]
    assert card["source"]
    (offer,) = card["offers"]
    assert offer["price_per_hour"] == 4.98
    assert offer["currency"] == "CNY"
    assert offer["date"] == "2026-03-28"
    assert offer["age_days"] > 0


@pytest.mark.parametrize("pattern", ["rtx 4090", "RTX4090", "rtx-4090"])
def test_a_pattern_matches_however_it_is_spelt(stoker: CommandLine, pattern: str) -> None:
    assert set(_names(stoker, pattern)) == {"RTX4090", "RTX4090D", "RTX4090-48G"}


def test_least_memory_counts_the_largest_size_sold(stoker: CommandLine) -> None:
    found = _names(stoker, "apple", "--min-memory", "100")
    assert "Apple M3 Max" in found
    assert "Apple M1 Max" not in found


def test_cards_can_be_put_in_order(stoker: CommandLine) -> None:
    assert _names(stoker, "--sort", "memory")[0] == "B200"
    assert _names(stoker, "--sort", "speed")[0] == "B200"
    assert _names(stoker, "--sort", "name") == sorted(_names(stoker, "--sort", "name"), key=str.lower)
    assert _names(stoker, "--sort", "price")[0] == "RTX3090"


def test_an_order_that_does_not_exist_is_refused(stoker: CommandLine) -> None:
    done = stoker("gpus", "--sort", "colour")
    assert done.code == 1
    assert "STK108" in done.err
    assert "name, memory, speed, price" in done.err


def test_a_card_that_does_not_exist_is_refused_with_the_nearest(stoker: CommandLine) -> None:
    done = stoker("gpus", "RTX4091")
    assert done.code == 1
    assert "STK203" in done.err
    assert "RTX4090" in done.err


def test_a_filter_that_leaves_nothing_is_an_empty_list_not_an_error(stoker: CommandLine) -> None:
    assert _names(stoker, "T4", "--min-memory", "1000") == []


def test_a_price_of_one_s_own_wins_and_is_marked(
    stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    done = stoker("gpus", "--set", "autodl rtx4090 1.50CNY/h")
    assert done.code == 0, done.err
    (card,) = [one for one in json.loads(stoker("gpus", "RTX4090", "--json").out) if one["name"] == "RTX4090"]
    (offer,) = [one for one in card["offers"] if one["cloud"] == "autodl"]
    assert (offer["price_per_hour"], offer["currency"], offer["source"]) == (1.5, "CNY", "own")
    assert "1.50 CNY autodl (your price)" in stoker("gpus", "RTX4090").out
    said = stoker("plan", "lora_medical_20k", "--provider", "autodl").out
    assert "autodl (your price)" in said


def test_a_platform_is_known_by_its_chinese_name_and_the_page_pays_and_warns_of_the_one_it_bills(
    stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    stoker("gpus", "--set", "矩池云 RTX4090 0.10CNY/h")
    stoker("gpus", "--set", "autodl RTX4090 0.0999CNY/h")  # which is billed is up to setup and units, too
    found = json.loads(stoker("plan", "qlora_qwen2.5_7b", "--card", "RTX4090", "--json", language="zh").out)
    (stay,) = [one["fields"] for one in found["reasons"] if one["key"] == "why.stay"]
    assert stay["provider"] in ("matpool", "autodl")
    assert found["cost"]["source"].startswith(f"{stay['provider']} ")
    warned = {one["fields"]["platform"] for one in found["reasons"] if one["about"] == "platform"}
    assert warned <= {"AutoDL" if stay["provider"] == "autodl" else ""}
    rows = json.loads(stoker("plan", "qlora_qwen2.5_7b", "--provider", "矩池云", "--json", language="zh").out)["rows"]
    assert {row["card"] for row in rows if row["cost"]} == {"RTX4090"}


def test_a_price_is_repeated_as_it_is_kept_and_an_unknown_provider_is_said(
    stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    said = stoker("gpus", "--set", "autodl rtx4090 1.50CNY/h").err
    assert "autodl RTX4090: 1.5 CNY/h" in said
    assert "new provider" not in said
    assert "a new provider" in stoker("gpus", "--set", "nosuch RTX4090 1USD/h").err


def test_a_price_that_cannot_be_read_is_refused(stoker: CommandLine) -> None:
    done = stoker("gpus", "--set", "autodl RTX4090")
    assert done.code == 1
    assert "STK109" in done.err


def test_sky_s_catalogue_is_taken_where_it_is_there(
    stoker: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "STK796" in stoker("gpus", "--import").err
    file = tmp_path / ".sky" / "catalogs" / "v8" / "lambda" / "vms.csv"
    file.parent.mkdir(parents=True)
    file.write_text(
        "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice,Region\n"
        "gpu_8x_a100,124,1800,A100-80GB,8,x,8.0,,us\n"
        "gpu_8x_a100,124,1800,A100-80GB,8,x,9.6,4.0,eu\n"
        "cpu,8,16,,,,0.1,,us\n"
    )
    assert stoker("gpus", "--import").code == 0
    (card,) = json.loads(stoker("gpus", "A100-80-SXM4", "--json").out)
    (offer,) = [one for one in card["offers"] if one["cloud"] == "lambda"]
    assert (offer["price_per_hour"], offer["gpu_count"]) == (1.0, 8)
