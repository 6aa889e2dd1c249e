"""Weight files tell what is in them; one that is cut, missing or no safetensors is named with its reason."""

import json
from pathlib import Path

import pytest

from stoker.errors import StokerError
from stoker.rundir import safetensors_headers


def write(path: Path, tensors: dict[str, list[int]], cut: int = 0) -> Path:
    """Zeros in F32 of these shapes."""
    header, end = {}, 0
    for name, shape in tensors.items():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes((len(text).to_bytes(8, "little") + text + bytes(end))[: -cut or None])
    return path


def reason(folder: Path) -> str:
    with pytest.raises(StokerError) as caught:
        safetensors_headers.read(folder)
    assert caught.value.code == "STK644"
    return caught.value.what


def test_every_tensor_of_every_file_is_listed(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"a": [2, 3]})
    write(tmp_path / "two.safetensors", {"b": [4], "c": []})
    found = safetensors_headers.read(tmp_path)
    assert {name: (entry.dtype, entry.shape) for name, entry in found.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("F32", (4,)),
        "c": ("F32", ()),
    }


def test_a_cut_file_is_named_with_its_bytes(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": [1000]}, cut=100)
    assert "need 4,000 bytes, the file has 3,900" in reason(tmp_path)


def test_a_file_cut_in_its_header_is_no_safetensors(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": [4]}, cut=60)
    assert "does not start with a safetensors header" in reason(tmp_path)


def test_an_empty_file_is_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "does not start with a safetensors header" in reason(tmp_path)


def test_a_shard_the_index_names_must_be_there(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"a": [2]})
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / safetensors_headers.INDEX_NAME).write_text(json.dumps(index))
    assert "`two.safetensors` is damaged or incomplete: the file does not exist" in reason(tmp_path)


def test_a_tensor_the_index_names_must_be_there(tmp_path: Path) -> None:
    write(tmp_path / "one.safetensors", {"a": [2]})
    (tmp_path / safetensors_headers.INDEX_NAME).write_text(
        json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})
    )
    assert "tensor b is missing" in reason(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../b", "..\\b", "C:\\b", "", 3])
def test_an_index_that_leads_out_is_refused_before_anything_is_opened(tmp_path: Path, name: object) -> None:
    (tmp_path / safetensors_headers.INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "outside the folder" in reason(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}'])
def test_an_index_without_a_map_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / safetensors_headers.INDEX_NAME).write_text(content)
    reason(tmp_path)


def test_an_index_of_pickles_is_refused(tmp_path: Path) -> None:
    (tmp_path / safetensors_headers.INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    assert "pickle files are not loaded" in reason(tmp_path)


# ---- the digest


def sharded(folder: Path) -> Path:
    """A model in two files that its index lists."""
    write(folder / "one.safetensors", {"a": [2]})
    write(folder / "two.safetensors", {"b": [3]})
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": 1.5}')
    return folder


def test_a_digest_is_of_what_is_loaded(tmp_path: Path) -> None:
    before = safetensors_headers.content_digest(sharded(tmp_path))
    write(tmp_path / "consolidated.safetensors", {"a": [2], "b": [3]})
    (tmp_path / "config.json").write_text('{\n  "rope_theta": 1.5,\n  "model_type": "llama"\n}\n\n')
    assert safetensors_headers.content_digest(tmp_path) == before


@pytest.mark.parametrize("name", ["one.safetensors", "two.safetensors", "model.safetensors", "model.fp16.safetensors"])
def test_a_file_that_may_be_loaded_changes_the_digest(tmp_path: Path, name: str) -> None:
    before = safetensors_headers.content_digest(sharded(tmp_path))
    write(tmp_path / name, {"a": [5]})
    assert safetensors_headers.content_digest(tmp_path) != before


def test_a_value_of_the_configuration_changes_the_digest(tmp_path: Path) -> None:
    before = safetensors_headers.content_digest(sharded(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama", "rope_theta": 1.25}')
    assert safetensors_headers.content_digest(tmp_path) != before


def test_weights_that_the_configuration_names_change_the_digest(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "config.json").write_text('{"transformers_weights": "consolidated.safetensors"}')
    write(tmp_path / "consolidated.safetensors", {"a": [2], "b": [3]})
    before = safetensors_headers.content_digest(tmp_path)
    write(tmp_path / "consolidated.safetensors", {"a": [2], "b": [4]})
    assert safetensors_headers.content_digest(tmp_path) != before
