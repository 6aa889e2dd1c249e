"""Every private name of another package that `src` uses: it is listed here, exists, and is what we take it for.

A failure names what an upgrade changed. Overridden methods of the Trainer are in `test_trainer_contract.py`.
"""

import ast
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker import tools
from stoker.config import load

pytestmark = pytest.mark.filterwarnings("default")

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stoker"
TRACING = "engine/tracing/private_names.py"
DOCUMENTED = {"_exit", "_replace"}
"""Names of the standard library that are public in spite of their underscore: `os._exit`, `namedtuple._replace`."""


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _shard_offsets() -> bool:
    from torch.distributed.tensor import _utils

    return parameters(_utils.compute_local_shape_and_global_offset)[:3] == ["global_shape", "mesh", "placements"]


def _generation_settings() -> bool:
    from transformers import GenerationConfig, PreTrainedConfig

    made = GenerationConfig.from_model_config(PreTrainedConfig())
    return made._from_model_config is True and not GenerationConfig()._from_model_config


def _dtype_plan() -> bool:
    from transformers import PreTrainedModel

    return parameters(PreTrainedModel._get_dtype_plan) == ["self", "dtype"]


def _noted_conversions() -> bool:
    from transformers.core_model_loading import revert_weight_conversion

    return '"_weight_conversions"' in inspect.getsource(revert_weight_conversion)


def _keys_not_saved() -> bool:
    from transformers import PreTrainedModel

    source = inspect.getsource(PreTrainedModel.save_pretrained)
    return (
        PreTrainedModel._keys_to_ignore_on_save is None and "for ignore_key in self._keys_to_ignore_on_save" in source
    )


def _blocks() -> bool:
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, vocab_size=8, hidden_size=8, num_attention_heads=1))
    return set(model._no_split_modules) == {"LlamaDecoderLayer"}


def _prepare_inputs() -> bool:
    from transformers import Trainer

    return parameters(Trainer._prepare_inputs) == ["self", "inputs"]


def _states_of_layers() -> bool:
    from transformers import JambaForCausalLM, LlamaForCausalLM

    return JambaForCausalLM._is_stateful is True and LlamaForCausalLM._is_stateful is False


def _cache_in_checkpointed_layers() -> bool:
    from transformers.modeling_layers import GradientCheckpointingLayer

    source = inspect.getsource(GradientCheckpointingLayer.__call__)
    return (
        GradientCheckpointingLayer._can_checkpoint_with_cache is False
        and "if not self._can_checkpoint_with_cache:" in source
    )


def _memory_of_storages() -> bool:
    storage = torch.ones(3).untyped_storage()
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    return typed._untyped_storage is storage


def _parameters_of_a_class() -> bool:
    class Kind(torch.nn.Parameter):
        pass

    data = torch.ones(3)
    made = torch.Tensor._make_subclass(Kind, data, False)
    return type(made) is Kind and made.data_ptr() == data.data_ptr()


def _zero_partitions() -> bool:
    zero = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    assert "self.single_partition_of_fp32_groups.append" in inspect.getsource(zero.DeepSpeedZeroOptimizer.__init__)
    stage3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    assert "self.fp32_partitioned_groups_flat" in inspect.getsource(stage3.DeepSpeedZeroOptimizer_Stage3)
    return parameters(zero.DeepSpeedZeroOptimizer._lazy_init_hp_params_optimizer_state) == ["self"]


def _foreach() -> bool:
    tensors = [torch.ones(2), torch.ones(3)]
    torch._foreach_mul_(tensors, torch.tensor(2.0))
    torch._foreach_add_(tensors, [torch.ones(2), torch.ones(3)])
    return [tensor.sum().item() for tensor in tensors] == [6, 9]


def _foreach_norms() -> bool:
    tensors = [torch.ones(4), torch.ones(9)]
    return [norm.item() for norm in torch._foreach_norm(tensors)] == [2, 3]


def _instructions() -> bool:
    said = (torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_amx_tile_supported())
    return all(isinstance(one, bool) for one in said)


def _module_parts() -> bool:
    layer = torch.nn.Linear(1, 1)
    return set(layer._parameters) == {"weight", "bias"} and layer._buffers == {}


def _fake_storages() -> bool:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        one, other = torch.ones(2), torch.ones(2)
    same = one.untyped_storage()._cdata == one[:1].untyped_storage()._cdata
    return same and one.untyped_storage()._cdata != other.untyped_storage()._cdata


def _views() -> bool:
    whole = torch.ones(2)
    return whole[:1]._is_view() and not whole._is_view()


def _dispatch_mode() -> bool:
    from torch.utils._python_dispatch import TorchDispatchMode

    return parameters(TorchDispatchMode.__torch_dispatch__) == ["self", "func", "types", "args", "kwargs"]


def _fake_store() -> bool:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return issubclass(FakeStore, torch.distributed.Store)


def _sharding_cache() -> bool:
    from torch.distributed.tensor import debug

    return parameters(debug._clear_sharding_prop_cache) == []


def _attention(name: str, first: list[str]) -> Callable[[], bool]:
    return lambda: [one.name for one in getattr(torch.ops.aten, name).default._schema.arguments][:3] == first


def _cast() -> bool:
    return str(torch.ops.aten._to_copy.default._schema).startswith("aten::_to_copy(Tensor self, *, ScalarType? dtype")


def _exclude_guard() -> bool:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        return True


def _sdpa_flag() -> bool:
    from transformers import AutoModelForCausalLM, LlamaConfig

    return AutoModelForCausalLM._model_mapping[LlamaConfig]._supports_sdpa is True


def _flash_flags() -> bool:
    from transformers import GptOssForCausalLM, LlamaForCausalLM

    own = GptOssForCausalLM._compatible_flash_implementations
    return LlamaForCausalLM._supports_flash_attn is True and bool(own) and "flash_attention_2" not in own


def _low_rank_proxy() -> bool:
    from peft.tuners.lora.layer import ParamWrapper, _LoraFactorsProxy

    made = "_LoraFactorsProxy(*self.get_delta_factors(" in inspect.getsource(ParamWrapper._activate_lora)
    return made and parameters(_LoraFactorsProxy) == ["lhs", "rhs", "scaling"]


def _custom_layers() -> bool:
    from peft import LoraConfig

    return parameters(LoraConfig._register_custom_module) == ["self", "mapping"]


def _recompilations() -> bool:
    return callable(torch._dynamo.utils.disable_cache_limit)


def _pieces_of_the_converter() -> bool:
    """Looked at where llama.cpp's tools are installed: by night."""
    python = tools.find(tools.LLAMACPP)
    found = [*python.parent.parent.rglob("conversion/base.py")] if python else []
    return all("def _create_vocab_sentencepiece(self):" in path.read_text(encoding="utf-8") for path in found)


ATTENTION = {
    "_scaled_dot_product_flash_attention": ["query", "key", "value"],
    "_scaled_dot_product_flash_attention_for_cpu": ["query", "key", "value"],
    "_scaled_dot_product_efficient_attention": ["query", "key", "value"],
    "_scaled_dot_product_flash_attention_backward": ["grad_out", "query", "key"],
    "_scaled_dot_product_efficient_attention_backward": ["grad_out_", "query", "key"],
}
"""The operations' first arguments."""

CONTRACTS: dict[str, Callable[[], bool]] = {
    "_prepare_inputs": _prepare_inputs,
    "_dynamo": _recompilations,
    "_create_vocab_sentencepiece": _pieces_of_the_converter,
    "_is_stateful": _states_of_layers,
    "_untyped_storage": _memory_of_storages,
    "_make_subclass": _parameters_of_a_class,
    "_can_checkpoint_with_cache": _cache_in_checkpointed_layers,
    "_no_split_modules": _blocks,
    "_get_dtype_plan": _dtype_plan,
    "_weight_conversions": _noted_conversions,
    "_keys_to_ignore_on_save": _keys_not_saved,
    "_from_model_config": _generation_settings,
    "_lazy_init_hp_params_optimizer_state": _zero_partitions,
    "_foreach_add_": _foreach,
    "_foreach_mul_": _foreach,
    "_foreach_norm": _foreach_norms,
    "_cuda_getDriverVersion": lambda: torch.version.cuda is None or hasattr(torch._C, "_cuda_getDriverVersion"),
    "_is_avx512_bf16_supported": _instructions,
    "_is_amx_tile_supported": _instructions,
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset": _shard_offsets,
    "_supports_flash_attn": _flash_flags,
    "_compatible_flash_implementations": _flash_flags,
    "_register_custom_module": _custom_layers,
    "peft.tuners.lora.layer._LoraFactorsProxy": _low_rank_proxy,
    # Of a trace.
    "torch._subclasses.fake_tensor.FakeTensorMode": _fake_storages,
    "torch.utils._python_dispatch.TorchDispatchMode": _dispatch_mode,
    "torch.testing._internal.distributed.fake_pg.FakeStore": _fake_store,
    "torch.distributed.tensor.debug._clear_sharding_prop_cache": _sharding_cache,
    "_C": lambda: "AutocastCPU" in torch._C.DispatchKey.__members__,
    "_ExcludeDispatchKeyGuard": _exclude_guard,
    "_parameters": _module_parts,
    "_cdata": _fake_storages,
    "_is_view": _views,
    "_destroy": lambda: parameters(torch.library.Library._destroy) == ["self"],
    "_model_mapping": _sdpa_flag,
    "_supports_sdpa": _sdpa_flag,
    "_to_copy": _cast,
    **{name: _attention(name, first) for name, first in ATTENTION.items()},
}
"""By attribute, or by module and name where it is imported."""


@pytest.mark.parametrize("name", sorted(CONTRACTS))
def test_the_private_name_is_what_we_take_it_for(name: str) -> None:
    assert CONTRACTS[name]()


def test_every_private_name_in_use_has_a_contract() -> None:
    used = {name: places for name, places in _used().items() if name not in DOCUMENTED}
    assert used.keys() - CONTRACTS.keys() == set(), {name: used[name] for name in used.keys() - CONTRACTS.keys()}
    assert CONTRACTS.keys() - used.keys() == set(), "not in use any more"


def test_a_trace_uses_private_names_in_one_file_only() -> None:
    tracing = {place for places in _used().values() for place in places if place.startswith("engine/tracing/")}
    assert tracing == {TRACING}


def test_a_module_s_apply_has_the_signature_a_trace_replaces() -> None:
    assert parameters(torch.nn.Module._apply) == ["self", "fn", "recurse"]


def test_accelerate_sets_gradients_in_sync_as_we_do() -> None:
    """The Trainer calls the private one in its loop; ours sets the same flag by the accelerator's property."""
    from accelerate.state import GradientState

    assert parameters(GradientState._set_sync_gradients) == ["self", "sync_gradients"]
    assert "self.sync_gradients = sync_gradients" in inspect.getsource(GradientState._set_sync_gradients)


def test_a_hub_model_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache names a snapshot's folder by its commit, whatever revision was asked for."""
    from stoker.engine import models

    commit, cache = "0123456789" * 4, tmp_path / "models--me--tiny"
    for name, text in {"refs/main": commit, f"snapshots/{commit}/config.json": "{}"}.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(text)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    run = load.parse("model: me/tiny\ndata: {train: x.jsonl}\n", "run.yaml")
    assert models.base_digest(run, tmp_path) == commit


def _used() -> dict[str, set[str]]:
    """Private names that no code of ours defines, and the files that use them."""
    trees = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    own = {name for tree in trees.values() for name in _defined(tree)}
    used: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for name in _named(tree):
            if name not in own:
                used[name].add(path)
    return used


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _named(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _private(node.attr):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("stoker"):
            full = (f"{node.module}.{one.name}" for one in node.names)
            yield from (name for name in full if any(map(_private, name.split("."))))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
