"""Shares of a checkpoint: what ranks write of it, one beside the other, is what one rank writes of it whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from stoker.engine import host_copies, shares
from stoker.engine.shares import Part, Share, SharedFile
from stoker.engine.writers import Writers

pytestmark = pytest.mark.filterwarnings("default")

RANKS = 3


def tensors() -> dict[str, torch.Tensor]:
    """Of every type a checkpoint may have; some with fewer rows than ranks, one without any."""
    kinds = [torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.int16]
    kinds += [torch.int8, torch.uint8, torch.bool]
    found = {f"layer.{number}": torch.arange(35).view(7, 5).to(kind) for number, kind in enumerate(kinds)}
    odd = {'ü"\\\n/': torch.ones(2, 3), "none": torch.ones(0, 4), "scalar": torch.tensor(3.0), "A": torch.ones(1)}
    return {**found, **odd}


def parts(whole: Mapping[str, torch.Tensor], rank: int) -> dict[str, Part]:
    """Rows as FSDP2 gives them to a rank; what has no rows is the first one's."""
    return {name: rows(tensor, rank) for name, tensor in whole.items()}


def rows(tensor: torch.Tensor, rank: int) -> Part:
    if not tensor.dim():
        return shares.part(tensor, host_copies.plain, first=rank == 0)
    each = -(-tensor.shape[0] // RANKS)
    own = tensor[rank * each : (rank + 1) * each]
    return Part(tensor.to("meta"), min(rank * each, tensor.shape[0]) * (tensor[:1].numel() or 1), own.clone())


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}])
def test_a_file_of_shares_is_the_one_that_safetensors_writes(tmp_path: Path, metadata: dict[str, str]) -> None:
    whole = tensors()
    save_file(whole, tmp_path / "expected", metadata=metadata or None)
    files = [SharedFile("file", parts(whole, rank), metadata) for rank in range(RANKS)]
    assert len({file.header for file in files}) == 1
    files[0].lay_out(tmp_path)
    written = [file.write(tmp_path) for file in reversed(files)]  # in any order
    assert (tmp_path / "file").read_bytes() == (tmp_path / "expected").read_bytes()
    assert sum(written) == files[0].size - len(files[0].header)


def test_a_share_that_is_missing_shows(tmp_path: Path) -> None:
    """Negative control: of the bytes, and of their number."""
    whole = tensors()
    save_file(whole, tmp_path / "expected")
    files = [SharedFile("file", parts(whole, rank), {}) for rank in range(RANKS)]
    files[0].lay_out(tmp_path)
    written = [file.write(tmp_path) for file in files[:-1]]
    assert (tmp_path / "file").stat().st_size == (tmp_path / "expected").stat().st_size
    assert (tmp_path / "file").read_bytes() != (tmp_path / "expected").read_bytes()
    assert sum(written) < files[0].size - len(files[0].header)


def test_bytes_that_another_rank_wrote_over_are_noticed(tmp_path: Path) -> None:
    whole = tensors()
    files = [SharedFile("file", parts(whole, rank), {}) for rank in range(RANKS)]
    files[0].lay_out(tmp_path)
    for file in files:
        file.write(tmp_path)
    for file in files:
        file.read_back(tmp_path)
    raw = bytearray((tmp_path / "file").read_bytes())
    raw[-1] ^= 1  # of the last rank's rows
    (tmp_path / "file").write_bytes(raw)
    files[0].read_back(tmp_path)
    with pytest.raises(OSError, match="file"):
        files[-1].read_back(tmp_path)


def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, **more))


def adapted(**more: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(llama(), LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **more))


def written(model: Any, folder: Path) -> Share:
    """A share of all of it: names and files without ranks."""
    from stoker.engine import checkpoint

    weights = checkpoint.copied_weights(model, Writers(together=True).take)
    share = shares.of(model, weights, {})
    folder.mkdir()
    checkpoint.weights_writer(model, shares.stand_ins(model, weights))(folder)
    share.lay_out(folder)
    share.write(folder)
    (folder / checkpoint.TENSORS_NAME).unlink()
    return share


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


MODELS = {
    "plain": llama,
    "tied": lambda: llama(tie_word_embeddings=True),
    "adapter": adapted,
    "whole modules": lambda: adapted(modules_to_save=["lm_head"]),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_folder_is_the_one_that_the_class_itself_writes(tmp_path: Path, kind: str) -> None:
    from stoker.engine import checkpoint

    model = MODELS[kind]()
    written(model, tmp_path / "shares")
    weights = checkpoint.copied_weights(model, Writers().take)
    checkpoint.save_weights(model, tmp_path / "whole", weights)
    (tmp_path / "beside").mkdir()
    checkpoint.weights_writer(model, weights)(tmp_path / "beside")
    assert contents(tmp_path / "shares") == contents(tmp_path / "whole") == contents(tmp_path / "beside")


@pytest.mark.parametrize("kind", MODELS)
def test_a_write_that_failed_is_tried_again_with_all_of_it(tmp_path: Path, kind: str) -> None:
    """A run's last save is, on a disk that was full: a checkpoint without its weights was committed."""
    from stoker.engine import checkpoint

    model = MODELS[kind]()
    write = checkpoint.weights_writer(model, checkpoint.copied_weights(model, Writers().take))
    for name in ("undisturbed", "full", "again"):
        (tmp_path / name).mkdir()
    checkpoint.weights_writer(model, checkpoint.copied_weights(model, Writers().take))(tmp_path / "undisturbed")
    (file,) = (name for name in contents(tmp_path / "undisturbed") if name.endswith(".safetensors"))
    (tmp_path / "full" / file).mkdir()  # nothing can be written there
    with pytest.raises(Exception, match="Is a directory"):
        write(tmp_path / "full")
    write(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "undisturbed")


def test_several_files_have_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    monkeypatch.setattr(shares, "_LARGEST_FILE", 4000)
    written(model, tmp_path / "shares")
    model.save_pretrained(tmp_path / "whole", max_shard_size=4000)
    assert len(contents(tmp_path / "whole")) > 4
    assert contents(tmp_path / "shares") == contents(tmp_path / "whole")


def test_a_class_that_joins_experts_is_not_written_by_shares() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    routed = MixtralForCausalLM(MixtralConfig(**sizes, num_attention_heads=2, num_local_experts=2))
    assert not shares.are_stored_as_held(routed)
    assert all(shares.are_stored_as_held(make()) for make in MODELS.values())
