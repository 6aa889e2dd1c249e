"""Quantises a model for vLLM with llmcompressor; runs in the `llmcompressor` environment.

    stoker_compress.py SOURCE TARGET [ROWS]

With ROWS, a JSON file of token rows to calibrate with, GPTQ: 4-bit weights in groups of 128. Without, 8-bit floats,
activations as they come. TARGET holds the files beside the weights already and keeps them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from transformers import AutoModelForCausalLM

_WHOLE = ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$", "re:.*router$"]
"""Not quantised: the output layer, and routers of experts."""


def main(source: Path, target: Path, rows: Path | None) -> None:
    """Load, quantise, save."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", use_safetensors=True)
    if rows is None:
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=_WHOLE))
    else:
        tokens: list[list[int]] = json.loads(rows.read_text(encoding="utf-8"))
        oneshot(
            model=model,
            recipe=GPTQModifier(targets="Linear", scheme="W4A16", ignore=_WHOLE),
            dataset=_dataset(tokens),
            num_calibration_samples=len(tokens),
            max_seq_length=max(map(len, tokens)),
        )
    settings = target / "generation_config.json"
    ends = settings.read_bytes()
    model.save_pretrained(target, save_compressed=True)
    settings.write_bytes(ends)


def _dataset(tokens: list[list[int]]) -> Any:
    return Dataset.from_dict({"input_ids": tokens, "attention_mask": [[1] * len(row) for row in tokens]})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
