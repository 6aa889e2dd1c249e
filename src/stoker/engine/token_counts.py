"""The program that counts tokens: `python -m stoker.engine.token_counts TOKENIZER.JSON`. Needs tokenizers, no torch.

Reads a JSON list of texts from stdin and writes a JSON list: the tokens of each, without special ones.
"""

import json
import sys

import tokenizers


def counts(path: str, texts: list[str]) -> list[int]:
    """Tokens of each text."""
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [len(one.ids) for one in tokenizer.encode_batch(texts, add_special_tokens=False)]


if __name__ == "__main__":
    print(json.dumps(counts(sys.argv[1], json.load(sys.stdin))))  # noqa: T201  # its answer
