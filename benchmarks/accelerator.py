"""The accelerator matrix: the settings of every shipped recipe on seven pretended devices, and planted faults.

Writes docs/evidence/accelerator.json, cell by cell: what is known with these versions is skipped, unless `--again`.
No GPU takes part: tests/README.md says what a pretended card can show.
Usage: python benchmarks/accelerator.py [--devices T4,M4] [--settings sft_tiny] [--again]
"""

import argparse
import datetime
import json
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs/evidence/accelerator.json"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes")

sys.path[:0] = [str(ROOT / "tests" / name) for name in ("accelerator", "campaigns", "")]

import campaign  # noqa: E402
import matrix_cells  # noqa: E402
import processor  # noqa: E402
import recipe_settings  # noqa: E402
from pretended_devices import DEVICES  # noqa: E402

SETTINGS = recipe_settings.distinct()
_WORDS = 300
"""Letters of what a cell said, from its end."""


def main() -> int:
    """Run what was asked and is not known yet; 1 if a cell fails or a fault is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--again", action="store_true", help="also what is known already")
    asked = parser.parse_args()
    devices, settings = asked.devices.split(","), asked.settings.split(",")
    due = [("faults", fault, device) for device in devices for fault in matrix_cells.faults(DEVICES[device])]
    due += [("cells", setting, device) for setting in settings for device in devices]
    with tempfile.TemporaryDirectory() as folder:
        base = matrix_cells.make_base(Path(folder) / "base")
        for kind, name, device in due:
            if asked.again or not _is_known(kind, name, device):
                _write(kind, name, device, _run(Path(folder), base, kind, name, device))
    counts = _counted(read())
    print(json.dumps(counts))
    return int(bool(counts["cells"]["fails"] or counts["faults"]["missed"]))


def read() -> dict[str, Any]:
    """The evidence so far."""
    return json.loads(EVIDENCE.read_text(encoding="utf-8")) if EVIDENCE.exists() else {"cells": {}, "faults": {}}


def _is_known(kind: str, name: str, device: str) -> bool:
    known = read()[kind].get(name, {}).get(device)
    return bool(known) and known["outcome"] not in ("fails", "missed") and known["torch"] == version("torch")


def _run(folder: Path, base: Path, kind: str, name: str, device: str) -> dict[str, Any]:
    setting, fault = (SETTINGS[name], "") if kind == "cells" else (SETTINGS[matrix_cells.FAULTY_SETTING], name)
    cell = matrix_cells.run(folder / "cell", base, setting, device, fault)
    shutil.rmtree(folder / "cell")
    found = {key: value for key, value in asdict(cell).items() if value}
    wanted = matrix_cells.refusal(setting, DEVICES[device])
    if fault:
        found["outcome"] = "caught" if cell.outcome == "fails" else "missed"
    elif cell.outcome != "fails" and cell.code != wanted:
        found |= {"outcome": "fails", "why": f"refused by {cell.code!r}, not by {wanted!r}"}
    if "why" in found:  # without the lines of a traceback, which name files of this machine
        lines = [line for line in found["why"].splitlines() if not line.startswith("  ")]
        found["why"] = " ".join(lines).replace(str(folder), "").replace(str(ROOT), "")[-_WORDS:]
    code = campaign.code()
    commit = str(code["commit"])[:12] + ("" if code["clean"] else " and changes")
    found |= {"date": _today(), "torch": version("torch"), "commit": commit}
    print(kind, name, device, json.dumps(found), flush=True)
    return found


def _write(kind: str, name: str, device: str, found: dict[str, Any]) -> None:
    known = read()
    known[kind].setdefault(name, {})[device] = found
    evidence = {
        "about": "The settings of every shipped recipe on a tiny model, on pretended devices: trained; killed and "
        "resumed to the same bits; out of memory and stepped down; saved; merged. No GPU took part.",
        "date": _today(),
        "command": "python benchmarks/accelerator.py",
        "versions": {name: version(name) for name in PACKAGES},
        "machine": processor.facts(),
        "devices": {name: asdict(device) for name, device in DEVICES.items()},
        "settings": {name: {"method": one.method, "recipes": one.recipes} for name, one in SETTINGS.items()},
        "counts": _counted(known),
        "cells": known["cells"],
        "faults": known["faults"],
    }
    EVIDENCE.write_text(json.dumps(evidence, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _counted(known: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Outcomes of cells and faults; what was not run counts as not run."""
    cells, faults = (
        Counter(one["outcome"] for row in known[kind].values() for one in row.values()) for kind in ("cells", "faults")
    )
    of = {
        "cells": len(SETTINGS) * len(DEVICES),
        "faults": sum(len(matrix_cells.faults(one)) for one in DEVICES.values()),
    }
    return {
        "cells": {"of": of["cells"], **{name: cells[name] for name in ("passes", "refused", "fails")}},
        "faults": {"of": of["faults"], **{name: faults[name] for name in ("caught", "missed")}},
    }


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
