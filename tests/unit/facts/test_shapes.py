"""Shapes: exact weight counts, and the order in which a model's shape is looked for."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.config.run import Shape, TrainTokenizer
from stoker.errors import StokerError
from stoker.facts import model_parts, model_records, shapes

# Totals the publishers state (safetensors metadata of the hub).
_PUBLISHED = {
    "01-ai/Yi-34B": 34_388_917_248,
    "01-ai/Yi-6B": 6_061_035_520,
    "EleutherAI/pythia-160m": 162_322_944,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "THUDM/chatglm3-6b": 6_243_584_000,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-7b": 8_537_680_896,
    "gpt2": 124_439_808,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "microsoft/phi-2": 2_779_683_840,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "openai/gpt-oss-20b": 20_914_757_184,
}

_QWEN3_CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
    "attention_bias": False,
}
"""The sizes of Qwen3-0.6B under its own key names."""


@pytest.fixture(autouse=True)
def _no_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache and no hub, unless a test brings them."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "stoker-home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.mark.parametrize(("model", "total"), _PUBLISHED.items())
def test_weights_are_counted_to_the_last_one(model: str, total: int) -> None:
    assert shapes.shipped()[model].parameters() == total


def test_an_alias_is_the_shape_it_points_to() -> None:
    shipped = shapes.shipped()
    assert shipped["meta-llama/Llama-3.1-8B"] == shipped["meta-llama/Meta-Llama-3.1-8B"]


def test_one_token_passes_only_the_experts_chosen_for_it() -> None:
    dense, sparse = shapes.shipped()["Qwen/Qwen3-8B"], shapes.shipped()["Qwen/Qwen3-30B-A3B"]
    table = dense.vocab * dense.hidden
    assert dense.active_parameters() == dense.parameters() - table - dense.hidden
    assert 2.9e9 < sparse.active_parameters() < 3.4e9


def test_a_tied_table_still_multiplies_in_the_output() -> None:
    tied = shapes.shipped()["Qwen/Qwen2.5-0.5B"]
    assert tied.active_parameters() == tied.parameters() - tied.hidden


def _put(config: dict[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(config), encoding="utf-8")


def test_a_local_folder_goes_first(tmp_path: Path) -> None:
    _put({**_QWEN3_CONFIG, "num_hidden_layers": 2}, tmp_path / "Qwen/Qwen3-0.6B/config.json")
    found = shapes.resolve("Qwen/Qwen3-0.6B", tmp_path)
    assert (found.origin, found.shape.layers) == ("local", 2)


def test_the_cache_goes_before_the_shipped_shapes(tmp_path: Path) -> None:
    cached = tmp_path / "hf-home/hub/models--Qwen--Qwen3-0.6B"
    _put({**_QWEN3_CONFIG, "num_hidden_layers": 3}, cached / "snapshots/aaa/config.json")
    _put({**_QWEN3_CONFIG, "num_hidden_layers": 4}, cached / "snapshots/bbb/config.json")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("bbb", encoding="utf-8")
    found = shapes.resolve("Qwen/Qwen3-0.6B", tmp_path)
    assert (found.origin, found.shape.layers) == ("cache", 4)


def test_shipped_shapes_need_no_network_and_no_exact_case(tmp_path: Path) -> None:
    found = shapes.resolve("qwen/qwen3-0.6b", tmp_path)
    assert (found.origin, found.shape.parameters()) == ("shipped", _PUBLISHED["Qwen/Qwen3-0.6B"])


_INDEX = "model.safetensors.index.json"


class _Hub(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        known = self.path == "/someone/new-model/resolve/main/config.json"
        body = json.dumps(_QWEN3_CONFIG).encode() if known else b"not found"
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine; the value is the list of paths it was asked for."""
    _Hub.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    yield _Hub.asked
    server.shutdown()
    server.server_close()


@pytest.mark.enable_socket
def test_the_hub_is_asked_last(hub: list[str], tmp_path: Path) -> None:
    found = shapes.resolve("someone/new-model", tmp_path)
    assert (found.origin, found.shape.parameters()) == ("hub", _PUBLISHED["Qwen/Qwen3-0.6B"])
    assert hub == [f"/someone/new-model/resolve/main/{name}" for name in ("config.json", _INDEX)]


@pytest.mark.enable_socket
def test_the_hub_is_not_asked_for_a_shipped_shape(hub: list[str], tmp_path: Path) -> None:
    assert shapes.resolve("Qwen/Qwen3-8B", tmp_path).origin == "shipped"
    assert hub == []


@pytest.mark.enable_socket
def test_the_hub_is_not_asked_offline(hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StokerError) as caught:
        shapes.resolve("someone/new-model", tmp_path)
    assert caught.value.code == "STK205"
    assert hub == []


@pytest.mark.enable_socket
@pytest.mark.parametrize("model", ["someone/gone", "../../etc", "a b", "https://elsewhere.example/x"])
def test_what_no_place_knows_is_refused_by_name(hub: list[str], model: str, tmp_path: Path) -> None:
    with pytest.raises(StokerError) as caught:
        shapes.resolve(model, tmp_path)
    assert caught.value.code == "STK205"
    assert caught.value.fields["model"] == model
    assert hub == (["/someone/gone/resolve/main/config.json"] if model == "someone/gone" else [])


def test_a_misspelt_folder_is_said_to_be_missing_and_names_the_closest(tmp_path: Path) -> None:
    made = tmp_path / "models" / "bread"
    made.mkdir(parents=True)
    (made / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StokerError) as caught:
        shapes.resolve("models/braed", tmp_path)
    assert f"there is no folder {tmp_path / 'models' / 'braed'}; closest: `models/bread`" in caught.value.hint
    with pytest.raises(StokerError) as caught:
        shapes.resolve("Qwen/Qwen2.5-0.5b-instrukt", tmp_path)
    assert "no folder" not in caught.value.hint
    assert "`Qwen/Qwen2.5-0.5B-Instruct`" in caught.value.hint


@pytest.mark.enable_socket
def test_a_hub_that_does_not_answer_is_like_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StokerError, match="STK205"):
        shapes.resolve("someone/new-model", tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", '{"hidden_size": 8}', '{"hidden_size": 8'])
def test_a_config_that_describes_no_transformer_is_passed_over(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(StokerError, match="STK205"):
        shapes.resolve(str(tmp_path), tmp_path)


def test_a_config_of_several_modalities_is_read_by_its_text_part() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}
    shape = shapes.from_config({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    assert shape is not None
    assert (shape.layers, shape.heads, shape.head_dim, shape.vocab) == (34, 8, 256, 262208)


def test_a_family_without_a_formula_is_refused_and_never_counted_like_llama(tmp_path: Path) -> None:
    for family in ("deepseek_v3", "glm4_moe", "jamba", "falcon", "mixtral", "gemma3n"):
        _put({**_QWEN3_CONFIG, "model_type": family}, tmp_path / family / "config.json")
        with pytest.raises(StokerError) as caught:
            shapes.resolve(family, tmp_path)
        assert (caught.value.code, caught.value.fields["family"]) == ("STK231", family)


_AHEAD: tuple[dict[str, Any], ...] = (
    {"is_causal": False},
    {"use_bidirectional_attention": True},
    {"text_config": {"use_bidirectional_attention": "all"}},
)


@pytest.mark.parametrize("changed", _AHEAD)
def test_a_configuration_whose_positions_see_ahead_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    _put({**_QWEN3_CONFIG, **changed}, tmp_path / "ahead/config.json")
    with pytest.raises(StokerError, match="STK245"):
        shapes.resolve("ahead", tmp_path)


def test_parts_of_an_image_may_see_each_other(tmp_path: Path) -> None:
    _put({**_QWEN3_CONFIG, "use_bidirectional_attention": "vision", "is_causal": True}, tmp_path / "m/config.json")
    assert shapes.resolve("m", tmp_path).shape.layers == 28


@pytest.mark.parametrize(
    ("family", "key"), [("phi", "qk_layernorm"), ("stablelm", "qk_layernorm"), ("stablelm", "use_parallel_residual")]
)
def test_settings_that_no_formula_counts_are_weighed(tmp_path: Path, family: str, key: str) -> None:
    _put({**_QWEN3_CONFIG, "model_type": family, key: True}, tmp_path / "m/config.json")
    with pytest.raises(StokerError, match="STK231"):
        shapes.resolve("m", tmp_path)


def test_a_class_with_other_towers_is_not_counted_by_its_text_alone(tmp_path: Path) -> None:
    _put({"model_type": "gemma3", "text_config": _QWEN3_CONFIG}, tmp_path / "several/config.json")
    with pytest.raises(StokerError, match="STK231"):
        shapes.resolve("several", tmp_path)


def test_a_record_made_here_is_read_by_the_configuration_s_sizes(tmp_path: Path) -> None:
    config = {**_QWEN3_CONFIG, "model_type": "mixtral"}
    _put(config, tmp_path / "sparse/config.json")
    parts = model_records.shipped()["mistralai/Mixtral-8x7B-v0.1"]
    asked: list[dict[str, Any]] = []

    def weigh(of: dict[str, Any]) -> model_parts.ModelParts:
        asked.append(of)
        model_records.save(of, parts)
        return parts

    first = shapes.resolve("sparse", tmp_path, weigh=weigh)
    _put({**config, "transformers_version": "9.9"}, tmp_path / "later/config.json")
    again = shapes.resolve("later", tmp_path)
    assert asked == [config]
    assert first.shape == again.shape
    assert again.shape.parameters() == 46_702_792_704


@pytest.mark.enable_socket
def test_a_fetched_configuration_is_kept_for_when_the_hub_is_not_reached(
    hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes.resolve("someone/new-model", tmp_path)
    asked = len(hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert shapes.resolve("someone/new-model", tmp_path).origin == "hub"
    assert len(hub) == asked


def test_the_index_beside_a_configuration_says_how_many_weights_are_stored(tmp_path: Path) -> None:
    folder = tmp_path / "indexed"
    _put({**_QWEN3_CONFIG, "torch_dtype": "bfloat16"}, folder / "config.json")
    (folder / _INDEX).write_text('{"metadata": {"total_size": 1192099840}, "weight_map": {}}', encoding="utf-8")
    assert shapes.resolve("indexed", tmp_path).stored_parameters == 596_049_920


def test_every_shipped_model_with_experts_has_its_record() -> None:
    sparse = {name: shape for name, shape in shapes.shipped().items() if shape.experts}
    assert sparse
    assert all(shape.parts and not shape.parts.quantised_parameters > shape.parameters() for shape in sparse.values())


@pytest.mark.parametrize(("width", "ffn"), [(512, 1408), (768, 2048), (128, 384), (4096, 10944)])
def test_the_default_feed_forward_is_8_thirds_of_the_width_rounded_up_to_64(width: int, ffn: int) -> None:
    asked = Shape(shape="llama", layers=2, width=width, heads=2, vocab=1000)
    assert shapes.resolve(asked, Path()).shape.intermediate == ffn


def test_a_shape_of_the_run_file_takes_its_vocabulary_from_the_tokenizer(tmp_path: Path) -> None:
    asked = Shape(shape="llama", layers=6, width=512, heads=8)
    trained = shapes.resolve(asked, tmp_path, TrainTokenizer(train="bpe", vocab=32000))
    assert (trained.origin, trained.shape.vocab) == ("run_file", 32000)
    tokenizer = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 7}]}
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert shapes.resolve(asked, tmp_path, "tok").shape.vocab == 8
    assert shapes.resolve(asked, tmp_path, "tok/tokenizer.json").shape.vocab == 8
    assert shapes.resolve(asked, tmp_path, "Qwen/Qwen3-8B").shape.vocab == 151936
    assert shapes.resolve(asked, tmp_path).shape.vocab == 0


def test_a_stated_vocabulary_wins(tmp_path: Path) -> None:
    asked = Shape(shape="llama", layers=6, width=512, heads=8, vocab=5000)
    assert shapes.resolve(asked, tmp_path, TrainTokenizer(train="bpe", vocab=32000)).shape.vocab == 5000


def test_learned_positions_count_only_where_the_family_has_them() -> None:
    sizes = {"layers": 2, "width": 64, "heads": 1, "vocab": 300}
    gpt2 = shapes.resolve(Shape(shape="gpt2", **sizes), Path(), length=256).shape
    llama = shapes.resolve(Shape(shape="llama", **sizes), Path(), length=256).shape
    assert (gpt2.learned_positions, llama.learned_positions) == (256, 0)


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        ("./smolm2", True),
        ("../smolm2", True),
        ("/nowhere/smolm2", True),
        ("~/smolm2", True),
        ("./smollm2", False),
        ("../beside/smollm2", False),
        ("smolm2", False),
        ("owner/smolm2", False),
        ("run:smolm2", False),
    ],
)
def test_a_path_without_a_folder_is_refused_and_a_name_that_a_hub_may_have_is_not(
    tmp_path: Path, model: str, refused: bool
) -> None:
    folder = tmp_path / "beside"
    (folder / "smollm2").mkdir(parents=True)
    (folder / "smollm2" / "config.json").write_text("{}")
    if not refused:
        shapes.require_folder(model, folder, "model")
        return
    with pytest.raises(StokerError) as caught:
        shapes.require_folder(model, folder, "model")
    assert caught.value.code == "STK465"
    assert ("`smollm2`" in caught.value.hint) == (model == "./smolm2")


def test_a_name_with_another_ending_is_named_first(tmp_path: Path) -> None:
    for asked, meant in (
        ("Qwen/Qwen3-0.6B-Instruct", "Qwen/Qwen3-0.6B"),
        ("Qwen/Qwen2.5-7B-Chat", "Qwen/Qwen2.5-7B"),
        ("qwen/qwen3-0.6b", "Qwen/Qwen3-0.6B"),
    ):
        assert shapes.nearest(asked, tmp_path).names[0] == meant
