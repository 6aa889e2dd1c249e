"""A real training step on this CPU, written without the oracle's parts, and its peak as torch's profiler sees it."""

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils.operations import convert_outputs_to_fp32
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.optimization import Adafactor

from stoker.engine import exact
from stoker.estimate.step import Step

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def measured_peak(asked: Step) -> int:
    """Peak bytes of a real run of two steps, from the profiler's record of every allocation."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        real_steps(asked)
    if dist.is_initialized():
        dist.destroy_process_group()
        _clear_sharding_prop_cache()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def real_steps(asked: Step) -> None:
    model = real_model(asked)
    if asked.strategy == "fsdp2":
        shard(model, asked.devices, mixed=asked.autocast)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = real_optimizer(asked, trained)
    cached = asked.foreign.autocast_cache
    mixed = torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached) if asked.autocast else None
    if mixed is not None:
        model.forward = convert_outputs_to_fp32(mixed(model.forward))
    ids = torch.randint(0, asked.shape.vocab, (asked.micro, asked.length))
    for _ in range(2):
        taken: list[list[torch.Tensor]] = []
        for _ in range(asked.accumulation):
            forward_backward(asked, model, ids)
            if asked.gradient_sets > 1:
                taken.append(exact.take_gradients(trained))
        if taken:
            exact.give_gradients(trained, added(*taken))
            taken.clear()
        clip(asked, trained)
        optimizer.step()
        optimizer.zero_grad()


def shard(model: Any, devices: int, *, mixed: bool) -> None:
    """Cut real weights; what other ranks would send is whatever lies in memory.

    Real ranks over gloo agree with it only at times: its threads let go of buffers when they come to it.
    """
    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    mesh = init_device_mesh("cpu", (devices,))
    lowered = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False) if mixed else None
    options = {"mesh": mesh, **({"mp_policy": lowered} if lowered else {})}
    for layer in model.model.layers:
        inside = [one for one in layer.modules() if isinstance(one, torch.nn.Linear)]
        fully_shard(inside if lowered else layer, **options)
    if not model.config.tie_word_embeddings:
        fully_shard(model.model.embed_tokens, mesh=mesh)
        fully_shard(model.lm_head, reshard_after_forward=False, **options)
    fully_shard(model, mesh=mesh)


def clip(asked: Step, trained: list[torch.nn.Parameter]) -> None:
    if asked.strategy == "fsdp2":
        gradients: Any = [parameter.grad for parameter in trained]
        norm = (exact.whole_norm if asked.canonical else exact.sharded_norm)(gradients)
        exact.clip_shards(gradients, norm, 1.0)
    else:
        torch.nn.utils.clip_grad_norm_(trained, 1.0)


def added(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
    for one, other in zip(left, right, strict=True):
        one.add_(other)
    return left


def forward_backward(asked: Step, model: Any, ids: torch.Tensor) -> None:
    if asked.loss == "logits":
        logits = model(input_ids=ids).logits
        labels = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:].reshape(-1)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels)
        del logits
    else:
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()


def real_model(asked: Step) -> Any:
    shape = asked.shape
    names = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"}
    names |= {"kv_heads": "num_key_value_heads", "head_dim": "head_dim", "intermediate": "intermediate_size"}
    extra: dict[str, Any] = {}
    if shape.family == "gpt2":
        names = {"layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "intermediate": "n_inner"}
        extra = {"n_positions": shape.learned_positions, "attn_pdrop": 0.0}
    config = AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tie_embeddings,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **{name: getattr(shape, word) for word, name in names.items()},
        **extra,
    )
    dtype = DTYPES.get(asked.weights, torch.bfloat16)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    kwargs = {"use_reentrant": False}
    if asked.weights.startswith("nf4"):
        in_four_bits(model, double=asked.weights == "nf4_double")
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=asked.recompute == "full", gradient_checkpointing_kwargs=kwargs
        )
    if asked.adapter is not None:
        options = LoraConfig(
            r=asked.adapter.rank,
            target_modules=list(asked.adapter.targets) or LINEAR,
            lora_dropout=0.1 if asked.adapter.dropout else 0.0,
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(model, options)
    if asked.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    model.train()
    return model


def in_four_bits(model: Any, *, double: bool) -> None:
    """bitsandbytes' own layers, quantised here and now."""
    import bitsandbytes

    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    packed = bitsandbytes.nn.Linear4bit(
                        linear.in_features,
                        linear.out_features,
                        bias=False,
                        compute_dtype=torch.bfloat16,
                        compress_statistics=double,
                        quant_type="nf4",
                    )
                    packed.load_state_dict(linear.state_dict())
                    setattr(part, name, packed.to("cpu"))
    model.is_loaded_in_4bit = True


def real_optimizer(asked: Step, trained: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(trained, foreach=True),
        "adamw_fused": lambda: torch.optim.AdamW(trained, fused=True),
        "sgd": lambda: torch.optim.SGD(trained, foreach=True),
        "adafactor": lambda: Adafactor(trained, lr=1e-3, scale_parameter=False, relative_step=False),
    }
    return makers[asked.optimizer]()
