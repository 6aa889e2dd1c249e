"""What ranks that build a model take of main memory, as a multiple of the model."""

import contextlib
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import built_by_ranks
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stoker.engine.parallel import Ranks

KINDS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": torch.bfloat16},
    "fp32": {"dtype": torch.float32},
    "4bit": {"dtype": torch.bfloat16, "packed": True},
}


def measured(kind: str, ranks: int, width: int = 2048, layers: int = 6) -> dict[str, float]:
    """The most that ranks took while they built a model and read all of it: together, and each for itself."""
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
            with _Watch() as watch:
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


class _Watch:
    """The most memory that children forked meanwhile had in all, beyond what they had at first."""

    def __enter__(self) -> "_Watch":
        self.most = 0
        self._least: dict[str, int] = {}
        self._over = threading.Event()
        self._children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            private, mapped, files = 0, 0, {}
            for pid in self._children.read_text().split():
                with contextlib.suppress(OSError, TypeError):  # gone
                    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                    own = _field(rollup, "Pss_Anon")
                    self._least.setdefault(pid, own)
                    private += own - self._least[pid]
                    mapped += _field(rollup, "Pss_Shmem")
                    files |= _files(Path(f"/proc/{pid}/fd"))
            self.most = max(self.most, private + max(mapped, sum(files.values())))


def _field(rollup: str, name: str) -> int:
    return int(re.search(rf"^{name}: +(\d+)", rollup, re.MULTILINE)[1]) << 10


def _files(descriptors: Path) -> dict[int, int]:
    """Memory of the files without a name that a process has open, by their inodes."""
    found = {}
    for one in descriptors.iterdir():
        with contextlib.suppress(OSError):
            if "memfd:stoker-model" in str(one.readlink()):
                stat = one.stat()
                found[stat.st_ino] = stat.st_blocks * 512
    return found
