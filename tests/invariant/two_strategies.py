"""Full tuning in bf16 by two strategies, in a process of its own: prints each one's weights' SHA and fingerprint.

What a level of instructions decides is chosen as a process starts, so a level needs a process. Usage: python
tests/invariant/two_strategies.py FOLDER
"""

import contextlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tiny_run

from stoker.rundir import checkpoints

RUN = """
model: {base}
data: {{train: rows.jsonl, length: 48, pack: true}}
tune: {{method: full}}
train: {{batch: 8, exact: true, learning_rate: 1e-2, warmup: 0}}
where: {{gpus: 0, micro: 1, arrange: rows, precision: bf16, strategy: {strategy}, processes: 2}}
"""


def main(folder: Path) -> dict[str, dict[str, str]]:
    """Train in both ways."""
    base = tiny_run.make_base_model(folder / "base", dropout=0.1)
    rows = tiny_run.random_rows(37, seed=1, longest=48, segments=2)
    told = {}
    for strategy in ("ddp", "fsdp2"):
        run_dir = tiny_run.make_run(folder / strategy, RUN.format(base=base, strategy=strategy), rows)
        code = tiny_run.train(run_dir)
        assert code == 0, (run_dir.path / "child.log").read_text()[-3000:]
        (last,) = checkpoints.committed(run_dir.checkpoints)[-1:]
        told[strategy] = {"sha": tiny_run.weights_sha(run_dir.final), **last.commit.fingerprint}
    return told


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        told = main(Path(sys.argv[1]))
    print(json.dumps(told))
