"""Models that forked ranks build together, and what each of them then has, byte by byte."""

import hashlib
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tiny_run
import torch
import torch.distributed as dist
from peft import prepare_model_for_kbit_training
from transformers import AutoConfig

from stoker.engine import experts, models
from stoker.engine.parallel import Ranks
from stoker.engine.shared_build import build_once

FOUR_BITS = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_quant_storage": torch.bfloat16,
}


def loaded(folder: Path, dtype: torch.dtype = torch.float32, *, packed: bool = False) -> Any:
    """A model as a run loads it."""
    options = {"quantization_config": experts.ExpertsConfig(**FOUR_BITS), "device_map": {"": "cpu"}} if packed else {}
    of = models.auto_class(AutoConfig.from_pretrained(folder))
    model = of.from_pretrained(folder, dtype=dtype, **options)
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False) if packed else model


def by_ranks(
    count: int, make: Callable[[], Any], look: Callable[[Any, Ranks], Any], *, alone: bool = False
) -> list[Any]:
    """What each of `count` ranks says of the model, or of the error, that they come to together, or each `alone`."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)

        def work(rank: int) -> int:
            torch.set_num_threads(1)
            dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=count)
            ranks = Ranks(rank, count, dist.group.WORLD, rank_here=rank)
            try:
                found = look(make() if alone else build_once(make, ranks), ranks)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what this rank says
                found = f"{type(error).__name__}: {error}"
            (folder / f"{rank}.json").write_text(json.dumps(found))
            ranks.meet()
            return 0

        assert tiny_run.in_ranks(count, work) == [0] * count
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def held(model: Any, _ranks: Ranks | None = None) -> dict[str, Any]:
    """Everything that a model computes with: bytes, types, what is trained, and which tensors are one."""
    rows, shared = {}, defaultdict(list)
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        shared[tensor.data_ptr()].append(name)
        state = getattr(tensor, "quant_state", None)
        rows[name] = [
            *(type(tensor).__name__, str(tensor.dtype), list(tensor.shape), tensor.requires_grad, sha(tensor.data)),
            {key: sha(value) for key, value in state.as_dict(packed=True).items()} if state else {},
        ]
    ids = torch.arange(3, 19)[None]
    with models.evaluating(model):  # bitsandbytes would repack a layer that only answers, on some processors
        loss = float(model(input_ids=ids, labels=ids).loss)
    ties = sorted(names for names in shared.values() if len(names) > 1)
    return {"tensors": rows, "ties": ties, "loss": loss.hex(), "config": model.config.to_json_string()}


def sha(tensor: torch.Tensor) -> str:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def model_files() -> list[str]:
    """Files without a name that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.append(str(descriptor.readlink()))
    return [link for link in found if "memfd:stoker-model" in link]
