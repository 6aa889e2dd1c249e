"""A tokenizer as Gemma's, Llama 2's and Phi 3's publishers ship it: tokenizer.json, and the same as `tokenizer.model`.

Pieces are learned by `tokenizers`; the file is written as sentencepiece's `ModelProto`, which its package reads.
"""

import json
import struct
from pathlib import Path

import tokenizers
from prepare_case import CHATML, CORPUS
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>")
UNKNOWN = "<unk>"
SPACE = "▁"
TURNS = SPECIAL[:2]
"""Of which sentencepiece knows no more than that they are not cut, as of Gemma's `<start_of_turn>`."""
_NORMAL, _OF_UNKNOWN, _CONTROL, _WHOLE, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BYTES = [f"<0x{number:02X}>" for number in range(256)]
Piece = tuple[str, float, int]


def make_tokenizer(folder: Path, *, vocab: int, prefix: bool = False) -> Path:
    """Both files, of the same pieces; with `prefix`, text begins with a space, as Llama's and Phi's does."""
    pieces = learned(vocab)
    write_json(folder, pieces, prefix=prefix)
    (folder / "tokenizer.model").write_bytes(model_proto(pieces, prefix=prefix))
    return folder


def write_json(folder: Path, pieces: list[Piece], *, prefix: bool) -> None:
    """tokenizer.json and its settings, as transformers would make them of sentencepiece's pieces."""
    from transformers import PreTrainedTokenizerFast

    core = tokenizers.Tokenizer(
        models.BPE(
            vocab={text: number for number, (text, _, _) in enumerate(pieces)},
            merges=_merges([text for text, _, kind in pieces if kind == _NORMAL]),
            unk_token=UNKNOWN,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE)
    core.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    core.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    core.add_special_tokens([*SPECIAL, UNKNOWN])
    names = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": UNKNOWN}
    PreTrainedTokenizerFast(
        tokenizer_object=core, chat_template=CHATML, add_prefix_space=prefix, **names
    ).save_pretrained(folder)


def learned(vocab: int) -> list[Piece]:
    """Special pieces, all bytes, pieces learned from the corpus (the first has the highest score), and unused ones."""
    core = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN))
    lines = pre_tokenizers.Split(tokenizers.Regex("\\n+"), behavior="isolated")  # no published piece crosses them
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never")
    core.pre_tokenizer = pre_tokenizers.Sequence([lines, words])
    fixed = [*SPECIAL, UNKNOWN, *_BYTES]
    text = [line.encode("ascii", "ignore").decode() for line in CORPUS]  # what is rarer is read as bytes
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=fixed, show_progress=False)
    core.train_from_iterator(text, trainer)
    ordered = sorted(json.loads(core.to_str())["model"]["vocab"].items(), key=lambda pair: pair[1])
    kinds = {
        **dict.fromkeys(SPECIAL, _CONTROL),
        **dict.fromkeys(TURNS, _WHOLE),
        UNKNOWN: _OF_UNKNOWN,
        **dict.fromkeys(_BYTES, _BYTE),
    }
    pieces = [(text, -float(number), kinds.get(text, _NORMAL)) for text, number in ordered]
    return pieces + [(f"<unused{number}>", -float(number), _UNUSED) for number in range(len(pieces), vocab)]


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, in the order of its score."""
    known = set(pieces)
    pairs = ((piece[:at], piece[at:]) for piece in pieces for at in range(1, len(piece)))
    return [(left, right) for left, right in pairs if left in known and right in known]


def model_proto(pieces: list[Piece], *, prefix: bool) -> bytes:
    """`sentencepiece_model.proto`: pieces, a BPE with bytes for the unknown, text taken as it is."""
    written = [_field(1, _piece(*piece)) for piece in pieces]
    trainer = _number(3, 2) + _number(35, 1) + _number(40, [kind for _, _, kind in pieces].index(_OF_UNKNOWN))
    normalizer = _field(1, b"identity") + _number(3, int(prefix)) + _number(4, 0) + _number(5, 1)
    return b"".join([*written, _field(2, trainer), _field(3, normalizer)])


def _piece(text: str, score: float, kind: int) -> bytes:
    return _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)
