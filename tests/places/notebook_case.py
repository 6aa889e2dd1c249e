"""A tiny run for the tests of notebooks and kernels, and the weights an uninterrupted training of it gives."""

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 46
TEXT = """\
model: {{shape: llama, layers: 2, width: 128, heads: 2}}
tokenizer: {{train: bpe, vocab: 512}}
data: {{train: "recipe:text/shakespeare.txt", length: 128}}
train: {{objective: pretrain, steps: {steps}, batch: 16, learning_rate: 1e-3}}
save: {{every: 5 steps, keep: 3{store}}}
where: {{gpus: 0}}
"""


def write(folder: Path, store: str = "", steps: int = STEPS) -> Path:
    """The run file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny.yaml"
    path.write_text(TEXT.format(steps=steps, store=f", store: {store}" if store else ""))
    return path


def stoker(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`stoker WORDS` as a laptop says it."""
    environment = {**os.environ, "STOKER_RUNS": str(folder / "runs"), "STOKER_METADATA": "off"}
    return subprocess.run(
        [sys.executable, "-m", "stoker", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@functools.cache
def whole_sha() -> str:
    """Of the weights of an uninterrupted training."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        done = stoker(folder, "train", "tiny.yaml")
        assert done.returncode == 0, done.stderr
        return weights_sha(folder / "runs" / "tiny")


def weights_sha(run: Path) -> str:
    """Of a finished model's weights."""
    digest = hashlib.sha256()
    for path in sorted((run / "artifacts" / "final").glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
