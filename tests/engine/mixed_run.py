"""A tiny run over four sources in three stages, of sequences that differ in length by source."""

from pathlib import Path

import tiny_run

from stoker.rundir.layout import RunDir

SIZES = (23, 11, 7, 5)
STAGES = """
    - {share: 40%, mix: {wiki: 60%, code: 30%, qa: 10%}}
    - {share: 35%, mix: {wiki: 30%, code: 30%, qa: 20%, books: 20%}}
    - {share: 25%, mix: {qa: 50%, books: 50%}}
"""
ROWS = [
    row for number, size in enumerate(SIZES) for row in tiny_run.random_rows(size, seed=number, longest=16 + 8 * number)
]


def make(folder: Path, base: Path, where: str = "") -> RunDir:
    """Ready to train for twenty steps."""
    folder.mkdir(parents=True)
    for name in ("wiki", "code", "qa", "books"):
        (folder / f"{name}.jsonl").write_text("{}\n")
    text = f"""
model: {base}
data:
  train: [{{path: wiki.jsonl}}, {{path: code.jsonl}}, {{path: qa.jsonl}}, {{path: books.jsonl}}]
  length: 48
  stages: {STAGES}
tune: {{method: lora, rank: 2, dropout: 0.1}}
train: {{steps: 20, batch: 4, learning_rate: 1e-2, warmup: 0, exact: true}}
save: {{every: 3 steps, keep: 2}}
where: {{gpus: 0, micro: 1, arrange: rows{where}}}
"""
    return tiny_run.make_run(folder, text, ROWS, sizes=SIZES)
