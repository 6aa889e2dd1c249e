"""A long text has the same tokens in pieces as in one, by tokenizers of every kind; and takes less memory."""

import functools
import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece_case
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from stoker.engine import long_texts

ROOT = Path(__file__).resolve().parents[2]
WORDS_OF_2023 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What newer byte-level tokenizers call a word."""
MEMORY = """
import sys
from tokenizers import Tokenizer
from stoker.engine import long_texts
if sys.argv[2] == "whole":
    long_texts.LONGEST = 1 << 40
encoder = Tokenizer.from_file(sys.argv[1])
text = "".join(f"line {number} of a long text, which says nothing new;\\n" for number in range(50_000))
def used():
    with open("/proc/self/status", encoding="ascii") as status:
        return int(next(line.split()[1] for line in status if line.startswith("VmHWM")))
before = used()
(ids,) = long_texts.ids(encoder, [text])
print(len(ids), used() - before)
"""


def read(*patterns: str) -> str:
    """Text of the repository."""
    return "".join(path.read_text(encoding="utf-8") for one in patterns for path in sorted(ROOT.glob(one)))


def learned(core: Tokenizer, trainer: trainers.Trainer) -> Tokenizer:
    text = read("docs/concepts/*.md", "src/stoker/rows/*.py")
    core.train_from_iterator([text[at : at + 2000] for at in range(0, len(text), 2000)], trainer)
    return core


def byte_level(*, words: str | None = None, prefix: bool = False, normal: bool = False) -> Tokenizer:
    core = Tokenizer(models.BPE())
    if words:
        cut = pre_tokenizers.Split(Regex(words), behavior="isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.pre_tokenizer = pre_tokenizers.Sequence([cut, bytes_])
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if normal:
        core.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return learned(core, trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False))


def several_words() -> Tokenizer:
    """Tokens of several words, marks and spaces: only a line ends them."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Split(Regex("\\n+"), behavior="isolated")
    alphabet = [chr(number) for number in range(32, 127)]
    return learned(core, trainers.BpeTrainer(vocab_size=6000, initial_alphabet=alphabet, show_progress=False))


def greedy_added() -> Tokenizer:
    """Byte-level, with tokens that take the white space around them along."""
    core = byte_level()
    core.add_special_tokens([AddedToken("<|a|>", lstrip=True), AddedToken("<|b|>", rstrip=True)])
    core.add_tokens([AddedToken("the", single_word=True)])
    return core


def unigram() -> Tokenizer:
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return learned(core, trainers.UnigramTrainer(vocab_size=1500, unk_token="<unk>", special_tokens=["<unk>"]))


def word_piece() -> Tokenizer:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return learned(core, trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[UNK]"], show_progress=False))


def sentencepiece(*, prefix: bool) -> Tokenizer:
    """Without words of its own: a merge may reach as far as its pieces do."""
    with tempfile.TemporaryDirectory() as folder:
        made = sentencepiece_case.make_tokenizer(Path(folder), vocab=900, prefix=prefix)
        return Tokenizer.from_file(str(made / "tokenizer.json"))


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": byte_level,
    "bytes, words of 2023": functools.partial(byte_level, words=WORDS_OF_2023, normal=True),
    "bytes, a space before every text": functools.partial(byte_level, prefix=True),
    "bytes, added tokens": greedy_added,
    "tokens of several words": several_words,
    "unigram, a space before the first word": unigram,
    "word pieces": word_piece,
    "sentencepiece": functools.partial(sentencepiece, prefix=False),
    "sentencepiece, a space before every text": functools.partial(sentencepiece, prefix=True),
}
NEVER_CUT = ("unigram, a space before the first word", "sentencepiece, a space before every text")
"""By sums that are rounded, and with a space even before a space."""
SAY_MORE = {
    "bytes, a space before every text",
    "bytes, added tokens",
    "tokens of several words",
    "word pieces",
    "sentencepiece, a space before every text",
}
"""What stands around a word changes its tokens, in one of the texts."""
made = functools.cache(lambda name: MAKERS[name]())


def texts() -> dict[str, str]:
    """Some that are written, and some that nobody would write."""
    drawn = random.Random(7)
    prose = read("docs/concepts/prepared-data.md")[:20_000]
    runs = "".join(
        drawn.choice("a1=- \n的") * drawn.choice((1, 2, 3, 999, 2001)) + drawn.choice("b 9.") for _ in range(60)
    )
    return {
        "prose": prose,
        "Chinese": read("docs/concepts/prepared-data.zh.md")[:20_000],
        "code": read("src/stoker/engine/rendering.py"),
        "one line": json.dumps([{"place": number, "of": drawn.random()} for number in range(600)], separators=",:"),
        "marks": "".join(drawn.choice("ab 1.,'\n\t#<|>/=-_") for _ in range(20_000)),
        "all kinds": "".join(
            chr(drawn.choice((97, 32, 0x301, 0x3000, 0x4E00, 0x1F600)) + drawn.randrange(24)) for _ in range(9000)
        ),
        "added": prose.replace(". ", " <|a|> ").replace(", ", "<|b|> "),
        "runs": runs,
        "repeated": "0;" * 3001 + "1, 2; " * 1001 + prose[:3000] + "\\_" * 2001 + " c " + prose[:3000],
        "marks that are put together": " c"
        + "\u0332" * 1100
        + "\u0327 "
        + prose[:3000]
        + " foo"
        + "\0" * 2000
        + "bar ",
    }


TEXTS = texts()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MAKERS)
def test_pieces_have_the_tokens_of_the_whole(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "LONGEST", 300)
    encoder, long = made(name), TEXTS[text]
    assert "".join(long_texts.pieces(encoder, long)) == long
    short, found = long_texts.ids(encoder, ["short", long])
    assert found.tolist() == encoder.encode(long, add_special_tokens=False).ids
    assert short.tolist() == encoder.encode("short", add_special_tokens=False).ids


@pytest.mark.parametrize("name", MAKERS)
def test_what_people_write_is_cut_by_all_but_two(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "LONGEST", 300)
    for text in ("prose", "Chinese", *(["code"] if name != "tokens of several words" else [])):
        sizes = [len(one) for one in long_texts.pieces(made(name), TEXTS[text])]
        assert (len(sizes) == 1) if name in NEVER_CUT else (max(sizes) < 2000), (text, sizes)


def test_without_comparing_those_that_say_more_have_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_texts, "LONGEST", 300)
    monkeypatch.setattr(long_texts, "_fall_apart", lambda *_: True)
    others = {
        name
        for name, text in itertools.product(MAKERS, TEXTS.values())
        if long_texts.ids(made(name), [text])[0].tolist() != made(name).encode(text, add_special_tokens=False).ids
    }
    assert others == SAY_MORE


def test_a_long_text_takes_less_memory_in_pieces(tmp_path: Path) -> None:
    made("bytes").save(str(tmp_path / "tokenizer.json"))
    tokens, used = zip(*(_measured(tmp_path / "tokenizer.json", how) for how in ("pieces", "whole")), strict=True)
    assert tokens[0] == tokens[1]
    assert used[0] < used[1] / 2, used


def _measured(path: Path, how: str) -> tuple[int, int]:
    said = subprocess.run([sys.executable, "-c", MEMORY, str(path), how], capture_output=True, text=True, check=True)
    tokens, used = map(int, said.stdout.split())
    return tokens, used
