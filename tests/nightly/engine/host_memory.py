"""What ranks that build a model take of main memory, as a multiple of the model."""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import built_by_ranks
import torch
from memory_watch import MemoryWatch
from transformers import LlamaConfig, LlamaForCausalLM

from stoker.engine.parallel import Ranks

KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": torch.bfloat16},
    "fp32": {"dtype": torch.float32},
    "4bit": {"dtype": torch.bfloat16, "packed": True},
}


def measured(kind: str, ranks: int, width: int = 1024, layers: int = 24) -> dict[str, float]:
    """The most that ranks took while they built a model and read all of it: together, and each for itself.

    As in a real model, one tensor is a hundredth of all: of the one that is quantised there are wider copies meanwhile.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sizes = LlamaConfig(
            vocab_size=1000,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=8,
        )
        _in_child(lambda: LlamaForCausalLM(sizes).to(torch.bfloat16).save_pretrained(folder))

        def make() -> Any:
            model = built_by_ranks.loaded(folder, **KINDS[kind])
            if kind == "bf16":  # the type of the files: as a class that joins its experts has them, not mapped
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
            return model

        found = {}
        for name in ("shared", "own"):
            with MemoryWatch(0.05, _files_without_a_name) as watch:
                sizes_bytes = built_by_ranks.by_ranks(ranks, make, _read_through, alone=name == "own")
            found[name] = round(watch.most / sizes_bytes[0], 3)
        return {**found, "model_mb": round(sizes_bytes[0] / 1e6)}


def _in_child(work: Any) -> None:
    """So that nothing of it stays in this process, whose memory ranks inherit."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def _read_through(model: Any, ranks: Ranks) -> int:
    """The bytes of a model; every page of it is read, by all at a time."""
    tensors = [*model.parameters(), *model.buffers()]
    states = [one.quant_state for one in model.parameters() if hasattr(one, "quant_state")]
    tensors += [value for state in states for value in state.as_dict(packed=True).values()]
    total = 0
    for tensor in tensors:
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).max()
        total += tensor.nbytes
    ranks.meet()
    return total


def _files_without_a_name(pids: list[int]) -> int:
    """Memory of the files that ranks pass each other: mapped, or open in one of them."""
    mapped, files = 0, {}
    for pid in pids:
        with contextlib.suppress(OSError, TypeError):  # gone
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            mapped += int(re.search(r"^Pss_Shmem: +(\d+)", rollup, re.MULTILINE)[1]) << 10
            files |= _open_files(Path(f"/proc/{pid}/fd"))
    return max(mapped, sum(files.values()))


def _open_files(descriptors: Path) -> dict[int, int]:
    """Those that a process has open, by their inodes."""
    found = {}
    for one in descriptors.iterdir():
        with contextlib.suppress(OSError):
            if "memfd:stoker-model" in str(one.readlink()):
                stat = one.stat()
                found[stat.st_ino] = stat.st_blocks * 512
    return found
