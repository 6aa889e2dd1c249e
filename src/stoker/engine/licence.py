"""Prints the base model's licence as JSON: `python -m stoker.engine.licence RUN_DIR`."""

import json
import sys
from pathlib import Path

from stoker.engine import export, program
from stoker.errors import EXIT_DONE
from stoker.rundir.layout import RunDir


def main(path: Path) -> int:
    """Find the base model and read its card."""
    sys.stdout.write(json.dumps(export.licence(RunDir(path)), ensure_ascii=False))
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(program.run(main))
