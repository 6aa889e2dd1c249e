"""Draws `artifacts/bench.json`: `python -m stoker.engine.plot RUN_DIR` writes `artifacts/bench.svg`."""

import sys
from pathlib import Path
from typing import Any

import matplotlib

from stoker.engine import program
from stoker.errors import EXIT_DONE
from stoker.rundir import files
from stoker.rundir.layout import RunDir

_NAMES = {"transformers": "transformers", "vllm": "vLLM, one at a time", "vllm_batched": "vLLM, batched"}
_PANELS = (
    ("tokens/s", "tokens_per_second"),
    ("first token, P90 ms", "first_token_ms"),
    ("latency, P90 ms", "latency_ms"),
)


def main(path: Path) -> int:
    """Three panels against the number of clients: throughput, first token, latency."""
    run_dir = RunDir(path)
    report = files.read_json(run_dir.artifacts / "bench.json")
    draw(report, run_dir.artifacts / "bench.svg")
    return EXIT_DONE


def draw(report: dict[str, Any], target: Path) -> None:
    """The picture of one report."""
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = report["name"]  # the same figures give the same file
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(_PANELS), figsize=(11, 3.8), layout="constrained")
    for panel, (label, key) in zip(panels, _PANELS, strict=True):
        for way, name in _NAMES.items():
            levels = [level for level in report["levels"] if level["way"] == way]
            values = [level[key]["p90"] if isinstance(level[key], dict) else level[key] for level in levels]
            panel.plot([level["clients"] for level in levels], values, marker="o", label=name)
        panel.set_xlabel("clients")
        panel.set_xticks(sorted({level["clients"] for level in report["levels"]}))
        panel.set_title(label)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(_NAMES))
    figure.suptitle(f"{report['name']}: {report['machine']['name']}, {report['date']}")
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(program.run(main))
