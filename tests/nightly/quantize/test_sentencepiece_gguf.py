"""A tokenizer that sentencepiece itself made goes with its model into a GGUF file, token for token."""

import json
import subprocess
from pathlib import Path

import family_cells
import pytest
import sentencepiece_case
import tiny_families
from family_cells import Case

from stoker import tools

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(tools.find(tools.LLAMACPP) is None, reason="no llamacpp environment"),
]

_TRAIN = """
import json, sys
import sentencepiece

folder, text, turns, vocab, prefix = sys.argv[1], *map(json.loads, sys.argv[2:])
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(text), model_prefix=f"{folder}/tokenizer", model_type="bpe", vocab_size=vocab,
    byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=prefix,
    control_symbols=["<|endoftext|>"], user_defined_symbols=turns, bos_id=0, eos_id=1, unk_id=2, minloglevel=2,
)
made = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer.model")
kinds = (("IsUnknown", 2), ("IsControl", 3), ("IsByte", 6))
kind = lambda token: next((number for name, number in kinds if getattr(made, name)(token)), 1)
print(json.dumps([[made.IdToPiece(at), made.GetScore(at), kind(at)] for at in range(made.vocab_size())]))
"""


@pytest.mark.parametrize("family", ["gemma2", "phi3", "llama"])
def test_a_file_trained_by_sentencepiece_is_kept_and_converted(tmp_path: Path, family: str) -> None:
    prefix = family != "gemma2"
    with family_cells.quickly():
        case = Case(family, tmp_path)
        _publish(tmp_path / "base", prefix=prefix)
        found = case.cell("gguf")
    assert found.outcome == "works", found.reason
    published = (tmp_path / "base" / "tokenizer.model").read_bytes()
    assert (tmp_path / "runs" / "taught" / "artifacts" / "merged" / "tokenizer.model").read_bytes() == published


def _publish(folder: Path, *, prefix: bool) -> None:
    """Replace a base's tokenizer by one of sentencepiece's."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
    text = [line for one in sentencepiece_case.CORPUS for line in one.split("\n")]
    turns = list(sentencepiece_case.TURNS)
    words = [json.dumps(word) for word in (text, turns, tiny_families.VOCAB - 20, prefix)]
    python = str(tools.require(tools.LLAMACPP))
    made = subprocess.run([python, "-c", _TRAIN, str(folder), *words], check=True, capture_output=True, timeout=300)
    pieces = [(str(piece), float(score), int(kind)) for piece, score, kind in json.loads(made.stdout)]
    sentencepiece_case.write_json(folder, pieces, prefix=prefix)
