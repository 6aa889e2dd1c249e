"""A digest of Stoker's own code that decides the bits of a step: an upgrade that changes none of it stays EXACT."""

import ast
import functools
import hashlib
import io
import tokenize
from pathlib import Path

import stoker

DECIDES_BITS = (
    *("engine/_compat", "engine/experts", "engine/fsdp", "engine/fused_loss", "engine/muon"),
    *("engine/adapters", "engine/checkpoint", "engine/dataset", "engine/exact", "engine/guard", "engine/models"),
    *("engine/paged", "engine/parallel", "engine/rehearsal", "engine/train", "engine/trainer", "engine/zero"),
    *("engine/host_copies", "engine/known_rows", "engine/shared_build", "engine/shares", "engine/weights"),
    *("engine/mixed_order", "engine/optimizer_factory", "engine/rounded", "engine/streaming"),
    *("engine/deterministic", "engine/divergence", "engine/objective", "engine/reference"),
    *("engine/answer_figures", "engine/arranged", "engine/distillation", "engine/rollouts", "engine/sampler"),
    *("engine/teacher", "engine/vllm_sampler", "engine/foreign/stoker_vllm"),
    *("rewards/verifiers_environment", "rewards/worker_main"),
    *("estimate/fused_rows", "estimate/rounding", "rows/order", "rows/mixture", "rundir/prepared"),
)
"""Modules that a training process computes a step with. What the plan decides is in the fingerprint by its value."""


@functools.cache
def digest() -> str:
    """Of the modules' code as it is installed here."""
    package, found = Path(stoker.__file__).parent, hashlib.sha256()
    for module in DECIDES_BITS:
        found.update(f"{module}\n{bare((package / f'{module}.py').read_text(encoding='utf-8'))}\n".encode())
    return found.hexdigest()[:16]


def bare(source: str) -> str:
    """A module's code without comments, docstrings and empty lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())
