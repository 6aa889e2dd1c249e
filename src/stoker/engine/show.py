"""The show program: `python -m stoker.engine.show RUN_DIR COUNT` writes prepared rows as JSON text to stdout.

{"rows": [{"row": 0, "segments": [[[text, trained], ...], ...]}, ...]}: a row's documents, each as runs of text that
are trained or not. The rows are evenly spread over the training split.
"""

import itertools
import json
import sys
from pathlib import Path

import tokenizers

from stoker.engine import program, streaming
from stoker.engine.dataset import Segment
from stoker.errors import EXIT_DONE, StokerError
from stoker.rundir import prepared
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report

Runs = list[tuple[str, bool]]


def main(path: Path) -> int:
    """Write COUNT rows to stdout."""
    run_dir, count = RunDir(path), int(sys.argv[2])
    report = prepared.read_report(run_dir.data)
    if report is None:
        raise StokerError("STK206")
    rows = shown_rows(run_dir, report, count)
    sys.stdout.write(json.dumps({"rows": rows}, ensure_ascii=False) + "\n")
    return EXIT_DONE


def shown_rows(run_dir: RunDir, report: Report, count: int) -> list[dict[str, object]]:
    """`count` rows of the training split, evenly spread, as text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(run_dir.data / "tokenizer" / "tokenizer.json"))
    split = streaming.open_split(run_dir, "train", report.train)
    return [
        {"row": number, "segments": [_runs(segment, tokenizer) for segment in split.row(number)]}
        for number in split.spread(count)
    ]


def _runs(segment: Segment, tokenizer: tokenizers.Tokenizer) -> Runs:
    """Neighbouring tokens that are all trained or all not, as text."""
    groups = itertools.groupby(segment.tolist(), key=lambda token: token >= 0)
    return [
        (tokenizer.decode([token if trained else ~token for token in tokens], skip_special_tokens=False), trained)
        for trained, tokens in groups
    ]


if __name__ == "__main__":
    sys.exit(program.run(main))
