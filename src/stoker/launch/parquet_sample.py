"""Some rows of a parquet file, for the light world: the engine's program reads them, since it alone has pyarrow."""

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

from stoker import env
from stoker.errors import StokerError
from stoker.supervise import starting


def read(path: Path) -> tuple[int, list[Any]]:
    """How many rows a file has, and some of them, spread evenly; STK206 where it cannot be read here."""
    if importlib.util.find_spec("pyarrow") is None:
        raise StokerError("STK206")
    done = subprocess.run(  # noqa: S603  # our own program, no shell
        starting.command("stoker.engine.parquet_rows", path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env=env.child_environment({}),
        check=False,
    )
    if done.returncode:
        raise StokerError("STK206")
    found = json.loads(done.stdout)
    return found["total"], found["rows"]
