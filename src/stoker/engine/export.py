"""The export program: `python -m stoker.engine.export RUN_DIR` makes a folder that transformers and vLLM load as is.

The merged model, or the finished model of a full tune, with generation settings that list every stop token. Weights are
hard-linked where possible, so an export takes no space. The model card is written by the caller, after the parity gate.
"""

import os
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig

from stoker.config.run import Shape
from stoker.engine import generate, merge, program, trained_on
from stoker.errors import EXIT_DONE, StokerError
from stoker.rundir import artifacts, files, inputs, layout
from stoker.rundir.events import EventLog
from stoker.rundir.layout import RunDir

NAME = "export"
UNKNOWN = {"license": "unknown"}
_LEFT_OUT = ("README.md", "training_args.bin")


def main(path: Path) -> int:
    """Gather the files in `artifacts/.export.tmp`."""
    run_dir = RunDir(path)
    whole = not (run_dir.final / merge.ADAPTER_CONFIG).is_file()
    source = run_dir.final if whole else artifacts.folder(run_dir, merge.NAME)
    folder = artifacts.begin(run_dir, NAME)
    for file in (path for path in files.below(source) if path.name not in _LEFT_OUT):
        _take(file, folder / file.relative_to(source))
    if whole:
        _complete(source, folder)
    with closing(EventLog(run_dir.events_file)) as log:
        log.write(
            "exported",
            source=source.name,
            dtype=files.read_object(folder / "config.json")["dtype"],
            bytes=sum(path.stat().st_size for path in folder.glob("*.safetensors")),
            licence=licence(run_dir),
        )
    return EXIT_DONE


def _take(source: Path, target: Path) -> None:
    """Hard-link weights, which are large; copy small files, which may be changed."""
    target.parent.mkdir(exist_ok=True)
    if source.suffix == ".safetensors":
        try:
            os.link(source, target)
        except OSError:  # another disk, or one without links
            pass
        else:
            return
    shutil.copyfile(source, target)


def _complete(final: Path, folder: Path) -> None:
    """Set what training left out of the configuration: the KV cache, and the template's end of turn."""
    config = AutoConfig.from_pretrained(final)
    config.use_cache = True
    config.save_pretrained(folder)
    generate.write_settings(final, config, folder)


def licence(run_dir: RunDir) -> dict[str, Any]:
    """The licence of the base model by its card; `unknown` if it states none."""
    run = run_dir.run()
    if isinstance(run.model, Shape):
        return UNKNOWN
    try:
        if run.model.startswith(inputs.EARLIER_RUN):
            return licence(layout.find(run.model.removeprefix(inputs.EARLIER_RUN)))
        base = trained_on.folder(run_dir, run)
    except StokerError:  # the base is gone; the model itself does not need it
        return UNKNOWN
    return said_licence(base / "README.md")


def said_licence(card: Path) -> dict[str, Any]:
    """`license` of a card's front matter, with name and link if it is a custom one."""
    if not card.is_file():
        return UNKNOWN
    parts = card.read_text(encoding="utf-8", errors="replace").split("---\n", 2)
    try:
        said = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except yaml.YAMLError:
        return UNKNOWN
    if not isinstance(said, dict) or not said.get("license"):
        return UNKNOWN
    return {key: said[key] for key in ("license", "license_name", "license_link") if key in said}


if __name__ == "__main__":
    sys.exit(program.run(main))
