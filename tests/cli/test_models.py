"""`stoker models` through the door people use."""

import json
from pathlib import Path

import pytest
from made_runs import CommandLine
from rich.cells import cell_len

from stoker.facts import families, machine
from stoker.facts.families import CELLS, FamilyCell, FamilyTable, KnownFamily

SHIPPED = families.table
SEEN = {"date": "2026-11-16", "transformers": "5.22.1"}
FIELDS = {"family": "granitemoehybrid", "reason": "Mamba blocks are not adapted", "able": "in_proj"}


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    works = {name: FamilyCell(outcome="works", **SEEN) for name in CELLS if name != "vllm"}
    grouped = {**works, "packing": FamilyCell(outcome="works", how="grouped", **SEEN)}
    refused = FamilyCell(outcome="refused", code="STK233", fields=FIELDS, **SEEN)
    rows = (
        KnownFamily(family="llama", model_class="LlamaForCausalLM", text="llama", cells=works),
        KnownFamily(
            family="granitemoehybrid",
            model_class="GraniteMoeHybridForCausalLM",
            text="granitemoehybrid",
            cells={**grouped, "lora": refused},
        ),
    )
    monkeypatch.setattr(families, "table", lambda: FamilyTable(about="", families=rows))
    monkeypatch.setattr(machine, "installed", lambda names: {"transformers": "5.22.3"})


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_whole_table_fits_80_columns_uncut(stoker: CommandLine, language: str) -> None:
    done = stoker("models", language=language)
    assert done.code == 0
    lines = done.out.splitlines()
    assert len(lines) == 3
    assert max(cell_len(line) for line in lines) <= 80
    assert "…" not in done.out


@pytest.mark.parametrize(("language", "again"), [("en", "as lora"), ("zh", "同“lora”")])
def test_a_reason_that_several_cells_share_is_said_once(
    stoker: CommandLine, language: str, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "table", SHIPPED)
    said = " ".join(stoker("models", "falcon_h1", language=language).out.split())
    assert said.count("Mamba-based") == 1
    assert said.count(again) == 2


def test_a_cell_is_yes_no_grouped_or_not_run(stoker: CommandLine) -> None:
    head, llama, granite = (line.split() for line in stoker("models").out.splitlines())
    assert head == ["family", *CELLS[:7], "GGUF", "vLLM"]
    assert llama == ["llama", *["yes"] * 8, "-"]
    assert granite == ["granitemoehybrid", "yes", "yes", "no", "yes", "grouped", "yes", "yes", "yes", "-"]


def test_dates_and_versions_are_said_and_another_version_here_too(
    stoker: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = stoker("models").err
    assert "2026-11-16" in told
    assert "2026-11-16 to 2026-11-16" not in told
    assert "5.22.1" in told
    assert "5.22.3" not in told
    monkeypatch.setattr(machine, "installed", lambda names: {"transformers": "6.0.0"})
    assert "transformers 6.0.0" in stoker("models").err


@pytest.mark.parametrize(("language", "reason"), [("en", "PEFT refuses an adapter"), ("zh", "PEFT 拒绝")])
def test_one_family_has_the_reason_of_what_is_refused(stoker: CommandLine, language: str, reason: str) -> None:
    done = stoker("models", "granitemoehybrid", language=language)
    assert f"STK233 {reason}" in " ".join(done.out.split())
    assert "…" not in done.out


def test_a_model_on_this_machine_is_found_by_its_configuration(stoker: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (row,) = json.loads(stoker("models", str(folder), "--json").out)
    assert row["family"] == "llama"
    assert row["cells"]["lora"] == {
        "outcome": "works",
        "code": "",
        "fields": {},
        "reason": "",
        "how": "",
        "other_version": False,
        **SEEN,
    }


def test_a_family_that_was_not_tested_is_said_so(stoker: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    done = stoker("models", str(folder))
    assert done.code == 1
    assert "STK236" in done.err
    assert "(family `unheard_of`)" in done.err


def test_a_name_of_which_no_family_is_known_is_said_without_one(stoker: CommandLine) -> None:
    done = stoker("models", "nobody-knows-this")
    assert "`nobody-knows-this` is not in the table" in done.err
