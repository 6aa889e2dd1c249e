"""`stoker gpus` through the door people use."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from rich.cells import cell_len

from stoker.facts import cards


def _stoker(*arguments: str, language: str = "en", columns: str = "80") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STOKER_LANG": language, "COLUMNS": columns, "PYTHONUTF8": "1"}
    program = "from stoker.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "gpus", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def _names(*arguments: str) -> list[str]:
    listed: list[dict[str, Any]] = json.loads(_stoker(*arguments, "--json").stdout)
    return [card["name"] for card in listed]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_whole_table_fits_80_columns_uncut(language: str) -> None:
    done = _stoker(language=language)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 1 + len(cards.cards())
    assert max(cell_len(line) for line in lines) <= 80
    assert "…" not in done.stdout


def test_a_row_shows_memory_speed_capability_price_and_its_age() -> None:
    row = next(line for line in _stoker("RTX4090").stdout.splitlines() if line.startswith("RTX4090 "))
    words = row.split()
    assert words[:6] == ["RTX4090", "24", "1008", "165", "bf16", "8.9"]
    assert words[6:9] == ["1.98", "CNY", "autodl"]
    assert words[9].startswith("(")
    assert words[10] == "d)"


def test_speed_without_bf16_is_marked() -> None:
    assert "65 fp16" in _stoker("T4").stdout


def test_headings_speak_chinese() -> None:
    heading = _stoker("T4", language="zh").stdout.splitlines()[0]
    assert "显卡" in heading
    assert "每小时最低价" in heading


def test_json_has_every_fact_and_every_offer() -> None:
    (card,) = json.loads(_stoker("A800", "--json").stdout)
    assert card["memory_gb"] == 80
    assert card["unverified"] == ["sm_count", "interconnect", "compute_capability", "memory_mib"]
    assert card["source"]
    (offer,) = card["offers"]
    assert offer["price_per_hour"] == 4.98
    assert offer["currency"] == "CNY"
    assert offer["date"] == "2026-03-28"
    assert offer["age_days"] > 0


@pytest.mark.parametrize("pattern", ["rtx 4090", "RTX4090", "rtx-4090"])
def test_a_pattern_matches_however_it_is_spelt(pattern: str) -> None:
    assert set(_names(pattern)) == {"RTX4090", "RTX4090D", "RTX4090-48G"}


def test_least_memory_counts_the_largest_size_sold() -> None:
    found = _names("apple", "--min-memory", "100")
    assert "Apple M3 Max" in found
    assert "Apple M1 Max" not in found


def test_cards_can_be_put_in_order() -> None:
    assert _names("--sort", "memory")[0] == "B200"
    assert _names("--sort", "speed")[0] == "B200"
    assert _names("--sort", "name") == sorted(_names("--sort", "name"), key=str.lower)
    assert _names("--sort", "price")[0] == "RTX3090"


def test_an_order_that_does_not_exist_is_refused() -> None:
    done = _stoker("--sort", "colour")
    assert done.returncode == 1
    assert "STK108" in done.stderr
    assert "name, memory, speed, price" in done.stderr


def test_a_card_that_does_not_exist_is_refused_with_the_nearest() -> None:
    done = _stoker("RTX4091")
    assert done.returncode == 1
    assert "STK203" in done.stderr
    assert "RTX4090" in done.stderr


def test_a_filter_that_leaves_nothing_is_an_empty_list_not_an_error() -> None:
    assert _names("T4", "--min-memory", "1000") == []
