"""What `stoker export` makes, read by what larger trainers read with: torch's own checkpoint readers, over two ranks.

torchtitan loads a Hugging Face folder by `HuggingFaceStorageReader`, into the shards of its own mesh. Megatron Bridge
takes the architecture from `config.json`, the tensors by name from every safetensors file. Neither is installed here:
what they call in torch is run, what they ask of the files is checked.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import adapted_run
import pytest
import tiny_run
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from stoker.engine import export, merge
from stoker.rundir import artifacts, files

pytestmark = pytest.mark.filterwarnings("default")

RANKS = 2
DIFFERENT = 3
"""Exit code of a rank whose shards are not those of the file."""

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter, merged and exported by the programs that the command starts; the gate between them is left out."""
    folder = tmp_path_factory.mktemp("export")
    run_dir = adapted_run.make_run(folder / "here", adapted_run.make_base(folder / "base"))
    for program in (merge, export):
        assert program.main(run_dir.path) == 0
        artifacts.accept(run_dir, program.NAME)
    return artifacts.folder(run_dir, export.NAME)


def whole(folder: Path) -> Tensors:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def shards(like: Tensors) -> dict[str, DTensor]:
    """Empty rows of each tensor on each rank, as a trainer that shards has them; 97 rows are not even."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: distribute_tensor(torch.zeros_like(one), mesh, [Shard(0)]) for name, one in like.items()}


def same_rows(found: dict[str, DTensor], wanted: Tensors) -> bool:
    """Whether this rank has its rows of every tensor, bit for bit."""
    parts = {name: distribute_tensor(one, found[name].device_mesh, [Shard(0)]) for name, one in wanted.items()}
    return all(torch.equal(found[name].to_local(), part.to_local()) for name, part in parts.items())


def in_ranks(work: Callable[[], bool]) -> list[int]:
    """Exit codes of two ranks that each did `work` in one process group."""

    def rank(number: int) -> int:
        meeting = Path(os.environ["STOKER_RENDEZVOUS"]) / "store"
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=RANKS)
        try:
            return 0 if work() else DIFFERENT
        finally:
            dist.destroy_process_group()

    return tiny_run.in_ranks(RANKS, rank)


def test_torchs_reader_puts_every_row_on_its_rank_bit_for_bit(exported: Path, tmp_path: Path) -> None:
    wanted = whole(exported)

    def read(folder: Path) -> bool:
        into = shards(wanted)
        dcp.load(into, storage_reader=HuggingFaceStorageReader(str(folder)))
        return same_rows(into, wanted)

    assert in_ranks(lambda: read(exported)) == [0, 0]
    # A bit of the last row of the last tensor: the second rank's.
    damaged = Path(shutil.copytree(exported, tmp_path / "damaged"))
    with (damaged / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    assert DIFFERENT in in_ranks(lambda: read(damaged))


def test_it_becomes_a_distributed_checkpoint_of_torch_and_comes_back(exported: Path, tmp_path: Path) -> None:
    wanted = whole(exported)
    names = dict.fromkeys(wanted, 1)

    def convert() -> bool:
        into = shards(wanted)
        dcp.load(into, storage_reader=HuggingFaceStorageReader(str(exported)))
        dcp.save(into, checkpoint_id=tmp_path / "dcp")
        again = shards(wanted)
        dcp.load(again, checkpoint_id=tmp_path / "dcp")
        writer = HuggingFaceStorageWriter(
            str(tmp_path / "back"), fqn_to_index_mapping=names, save_distributed=True, enable_consolidation=True
        )
        dcp.save(again, storage_writer=writer)
        return same_rows(again, wanted)

    assert in_ranks(convert) == [0, 0]
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == RANKS
    back = whole(tmp_path / "back")
    assert back.keys() == wanted.keys()
    assert all(torch.equal(back[name], one) and back[name].dtype == one.dtype for name, one in wanted.items())
    # One process, without a group, and transformers from what came back.
    alone = {name: torch.zeros_like(one) for name, one in wanted.items()}
    dcp.load(alone, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert all(torch.equal(alone[name], one) for name, one in wanted.items())
    for name in ("config.json", "generation_config.json"):
        shutil.copy(exported / name, tmp_path / "back" / name)
    ours, theirs = (AutoModelForCausalLM.from_pretrained(folder) for folder in (exported, tmp_path / "back"))
    assert torch.equal(adapted_run.logits(ours), adapted_run.logits(theirs))


def test_the_folder_has_what_loaders_by_name_ask_for(exported: Path) -> None:
    """The contract of torchtitan's and Megatron Bridge's loaders: all as transformers itself would have written it."""
    config = files.read_json(exported / "config.json")
    (architecture,) = config["architectures"]
    assert architecture.endswith("ForCausalLM")
    assert "auto_map" not in config
    assert "quantization_config" not in config
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(exported))
    shapes = {name: tuple(one.shape) for name, one in plain.state_dict().items()}
    assert {name: tuple(one.shape) for name, one in whole(exported).items()} == shapes
    assert not [path for path in exported.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".py")]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert (exported / "tokenizer.json").is_file()
    assert (exported / "tokenizer_config.json").is_file()
    assert tokenizer.eos_token == "<eos>"
