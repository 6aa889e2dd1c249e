"""A tiny distillation: prompts of random words, a student, and a teacher that is a wider model."""

from pathlib import Path

import tiny_run

BATCH = 8
LONGEST = 8


def text(
    base: Path,
    teacher: Path,
    *,
    steps: int,
    method: str = "full",
    options: str = "",
    more: str = "",
    where: str = "",
    save: str = "3 steps",
) -> str:
    adapter = ", rank: 4" if method != "full" else ""
    distill = f"distill: {{teacher: {teacher}, max_new_tokens: {LONGEST}{options}}}"
    rate = "learning_rate: 1e-3, warmup: 0, clip: 0"
    return f"""
model: {base}
data: {{train: rows.jsonl, length: 16, pack: false{", eval: 20%" if "eval_every" in more else ""}}}
tune: {{method: {method}{adapter}}}
train: {{objective: distill, batch: {BATCH}, steps: {steps}, {rate}, {distill}{more}}}
save: {{every: {save}}}
where: {{micro: 4, gpus: 0{where}}}
"""


def teacher(folder: Path) -> Path:
    """Another model with the student's words, wider and deeper."""
    return tiny_run.make_base_model(folder, seed=5, width=96, layers=3)
