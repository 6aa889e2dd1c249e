"""The showing program: `python -m stoker.engine.show RUN_DIR COUNT` writes prepared rows as text, in JSON, to stdout.

{"rows": [{"row": 0, "segments": [[[text, trained], ...], ...]}, ...]}: a row's documents, each as runs of text that
are trained or not. The rows stand evenly spread over the training split.
"""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import tokenizers

from stoker.engine import program
from stoker.errors import EXIT_DONE, StokerError
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

Runs = list[tuple[str, bool]]


def main(path: Path) -> int:
    """Write so many rows to stdout."""
    data, count = RunDir(path).data, int(sys.argv[2])
    report = prepared.read_report(data)
    if report is None:
        raise StokerError("STK206")
    rows = shown_rows(data, report, count)
    sys.stdout.write(json.dumps({"rows": rows}, ensure_ascii=False) + "\n")
    return EXIT_DONE


def shown_rows(data: Path, report: Report, count: int) -> list[dict[str, object]]:
    """`count` rows of the training split, evenly spread, as text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    total = report.train.sequences
    numbers = sorted({place * total // count for place in range(count)})
    return [
        {"row": number, "segments": [_runs(segment, tokenizer) for segment in _segments(data, report, number)]}
        for number in numbers
    ]


def _segments(data: Path, report: Report, number: int) -> list[np.ndarray]:
    for name in report.train.shards:
        folder = data / "train" / name
        rows = np.memmap(folder / "rows.bin", dtype="<i8", mode="r")
        if number < len(rows) - 1:
            edges = np.memmap(folder / "segments.bin", dtype="<i8", mode="r")[rows[number] : rows[number + 1] + 1]
            tokens = np.memmap(folder / "tokens.bin", dtype="<i4", mode="r")
            return [tokens[start:end] for start, end in itertools.pairwise(edges)]
        number -= len(rows) - 1
    raise AssertionError(number)


def _runs(segment: np.ndarray, tokenizer: tokenizers.Tokenizer) -> Runs:
    """Neighbouring tokens that are all trained or all not, as text."""
    groups = itertools.groupby(segment.tolist(), key=lambda token: token >= 0)
    return [
        (tokenizer.decode([token if trained else ~token for token in tokens], skip_special_tokens=False), trained)
        for trained, tokens in groups
    ]


if __name__ == "__main__":
    sys.exit(program.run(main))
