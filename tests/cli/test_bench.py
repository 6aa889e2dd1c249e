"""`stoker bench`: the table fits 80 columns in both languages, the figures are written down, JSON is JSON."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from made_runs import LANGUAGES, CommandLine, make_run

from stoker.artifacts import benchmark
from stoker.handover import serve_commands


def level(way: str, clients: int) -> dict[str, Any]:
    times = {"p50": 12345.6, "p90": 23456.7, "p99": 34567.8}
    figures = {"requests": 16, "tokens": 1024, "seconds": 1.0, "tokens_per_second": 12345.6}
    return {"way": way, "clients": clients, **figures, "first_token_ms": times, "latency_ms": times}


REPORT = {
    "machine": {"name": "a CPU", "kind": "cpu", "devices": 0, "cpus": 2},
    "left_out": ["transformers"],
    "levels": [level(way, clients) for way in ("transformers", "vllm", "vllm_batched") for clients in (1, 128)],
}


@pytest.fixture
def measured(runs: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    make_run(runs, "night")
    asked: list[Any] = []

    def measure(run_dir: Any, overrides: list[str], load: benchmark.BenchLoad, on_level: Any) -> dict[str, Any]:
        asked.append((run_dir.name, overrides, load))
        for one in REPORT["levels"]:
            on_level(one)
        return REPORT

    monkeypatch.setattr(benchmark, "bench", measure)
    monkeypatch.setattr(serve_commands, "_draw", lambda _: False)
    return asked


def width(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in line)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_fits_80_columns(stoker: CommandLine, measured: list[Any], language: str) -> None:
    done = stoker("bench", "night", language=language)
    assert done.code == 0
    assert max(map(width, done.out.splitlines())) <= 80
    assert done.out.count("12,346") == 3 * 6
    assert "…" not in done.out
    assert "P90" in done.out


def test_the_figures_are_written_beside_the_artifacts(stoker: CommandLine, measured: list[Any], runs: Path) -> None:
    done = stoker("bench", "night", "--json")
    written = json.loads((runs / "night" / "artifacts" / "bench.json").read_text())
    assert json.loads(done.out) == written
    assert written["levels"] == REPORT["levels"]
    assert (written["name"], len(written["date"])) == ("night", 10)


def test_what_was_not_measured_and_not_drawn_is_said(stoker: CommandLine, measured: list[Any]) -> None:
    done = stoker("bench", "night")
    assert "Not measured: transformers" in done.err
    assert "pip install matplotlib" in done.err


def test_the_load_is_as_asked(stoker: CommandLine, measured: list[Any]) -> None:
    words = ("--clients", "1, 3", "--requests", "5", "--max-tokens", "7", "--gpus", "0,1")
    assert stoker("bench", "night", *words).code == 0
    assert measured == [("night", ["where.gpus=0,1"], benchmark.BenchLoad((1, 3), 5, 7))]


@pytest.mark.parametrize("clients", ["", "0", "1,,2", "many", "-1"])
def test_a_number_of_clients_that_is_none_is_refused(stoker: CommandLine, measured: list[Any], clients: str) -> None:
    done = stoker("bench", "night", "--clients", clients)
    assert done.code == 1
    assert "STK506" in done.err
    assert measured == []
