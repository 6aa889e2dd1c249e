"""The program that shows rows of a parquet file: `python -m stoker.engine.parquet_rows FILE`. Needs pyarrow, no torch.

Writes one JSON object: how many rows there are, and some of them, spread evenly over at most a few row groups.
"""

import json
import sys
from pathlib import Path
from typing import Any

from stoker.engine import sources

_MOST_ROWS = 2000
_MOST_GROUPS = 8


def sample(path: Path) -> dict[str, Any]:
    """The number of rows, and some of them."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        groups = range(file.num_row_groups)[:: max(1, -(-file.num_row_groups // _MOST_GROUPS))]
        held = sum(file.metadata.row_group(number).num_rows for number in groups)
        step = max(1, -(-held // _MOST_ROWS))
        rows: list[Any] = []
        seen = 0
        for batch in file.iter_batches(row_groups=list(groups)):
            taken = batch.slice(-seen % step).to_pylist()[::step]
            rows += map(sources.as_written, taken)
            seen += batch.num_rows
        return {"total": file.metadata.num_rows, "rows": rows}


if __name__ == "__main__":
    print(json.dumps(sample(Path(sys.argv[1])), ensure_ascii=False, default=str))  # noqa: T201  # its answer
