"""The quantize program: the part of quantisation that runs in our own environment.

    python -m stoker.engine.quantize RUN_DIR KIND SOURCE TARGET WORK
int8        TARGET becomes the model with 8-bit weights, by torchao, in safetensors
gptq, fp8   TARGET gets the files beside the weights; WORK/rows.json tokens of the run's data to calibrate with
gguf-*      WORK/words.json gets texts with their tokens, the template and stop token ids, for comparison
"""

import random
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from stoker.engine import generate, models, program, streaming
from stoker.engine.dataset import token_ids
from stoker.errors import StokerError
from stoker.facts import prompts
from stoker.rundir import files, prepared
from stoker.rundir.layout import RunDir

_CALIBRATION_ROWS = 256
_CALIBRATION_TOKENS = 2048
_OWN_TEXTS = 200
_OWN_TEXT_TOKENS = 512
_MIXED_TEXTS = 200
_MIXED_TEXT_TOKENS = 64
_WORDS = ("tokenizer*", "chat_template*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")

_TEXTS = (
    "The quick brown fox jumps over the lazy dog. I've, you're, he'll, WE'LL, it's, D'Artagnan's 'quoted' words'.",
    "To be, or not to be: that is the question -- whether 'tis nobler in the mind to suffer...",
    "今天天气很好，我们去公园散步吧！人工智能（AI）正在改变世界：2026年，发布了3.5版本。",
    "繁體中文測試，「引號」與《書名》；日本語のテスト：ひらがな・カタカナ・漢字。한국어 문장입니다.",
    "Привет, мир! Ελληνικά. العربية: مرحبا بالعالم. עברית. हिन्दी में पाठ. ภาษาไทย. Tiếng Việt: xin chào.",
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 1e-5 0xFF 50% $9.99 №7 ½ ² ৩ ٣",
    " leading, trailing ",
    "  two   three    four     five\t\ttabs\t \t mixed",
    "\n\n\n blank lines \r\n\r\n windows \n \n ends\n",
    "a\u00a0b\u3000c\u2003d\u200be\ufefff",
    'def f(x: int) -> str:\n    return f"{x!r}"  # comment\n\n\nif __name__ == "__main__":\n\tprint(f(1))\n',
    "for (int i = 0; i < n; ++i) { a[i] = b[i] * c->d(); } // ok? <html>&amp;</html> C:\\path\\to\\file /usr/bin",
    "😀 🚀🚀 👨‍👩‍👧‍👦 🇨🇳 👍🏽 ❤️ ✅ ∑∫√≠≤ ←→ ★ 𝒳 𐍈",
    "naïve café Zürich Ångström coöperate façade łódź İstanbul ﬁ ﬂ Ǆ ß",
    "!!! ??? ... --- === ``` ''' \"\"\" ### *** ((( ))) [[[ ]]] {{{ }}} ~~~ @@@ ^^^ |||",
    "https://example.org/a?b=c&d=%20#e user@example.org snake_case camelCase kebab-case SCREAMING_CASE v1.2.3-rc4",
    "x" * 300 + " " * 40 + "7" * 60,
)
"""English, Chinese, other scripts, numbers, spaces, code, emoji and signs. Composed characters only: some tokenizers
normalise first and llama.cpp does not."""


def main(path: Path) -> int:
    """Quantise, or write what other tools need."""
    kind, source, target, work = sys.argv[2], *(Path(word) for word in sys.argv[3:6])
    run_dir = RunDir(path)
    if kind.startswith("gguf"):
        files.write_json(work / "words.json", words(run_dir, source))
        return 0
    if kind == "int8":
        save_int8(source, target)
    elif kind == "gptq":
        files.write_json(work / "rows.json", _calibration(run_dir))
    _copy_words(source, target)
    return 0


# ---- int8


def save_int8(source: Path, target: Path) -> None:
    """8-bit weights per row of every linear layer but the output's, with dynamic 8-bit activations."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig
    from transformers import TorchAoConfig

    model = AutoModelForCausalLM.from_pretrained(
        source,
        quantization_config=TorchAoConfig(Int8DynamicActivationInt8WeightConfig()),
        use_safetensors=True,
        dtype="auto",
    )
    with torch.no_grad():
        model.save_pretrained(target)


def _calibration(run_dir: RunDir) -> list[list[int]]:
    rows = [row[:_CALIBRATION_TOKENS] for row in _rows(run_dir, _CALIBRATION_ROWS)]
    if not rows:
        raise StokerError("STK637", name=run_dir.name)
    return rows


# ---- files beside the weights


def _copy_words(source: Path, target: Path) -> None:
    """Copy tokenizer and template byte for byte; write generation settings with every stop token."""
    for pattern in _WORDS:
        for path in source.glob(pattern):
            shutil.copyfile(path, target / path.name)
    settings = GenerationConfig.from_pretrained(source)
    settings.eos_token_id = generate.end_ids(settings, models.load_tokenizer(source))
    settings._from_model_config = False  # else transformers would rebuild it from config.json
    settings.to_json_file(target / "generation_config.json")


def words(run_dir: RunDir, source: Path) -> dict[str, Any]:
    """The metadata and tokens that a GGUF file and llama.cpp's tokenizer must reproduce."""
    tokenizer = models.load_tokenizer(source)
    ends = generate.end_ids(GenerationConfig(), tokenizer)
    return {
        "chat_template": tokenizer.get_chat_template() if tokenizer.chat_template else None,
        "eos": tokenizer.eos_token_id,
        "turn_end": next((token for token in ends if token != tokenizer.eos_token_id), None),
        "stops": generate.end_ids(GenerationConfig.from_pretrained(source), tokenizer),
        "texts": [
            {"text": text, "ids": tokenizer(text, add_special_tokens=False).input_ids}
            for text in _texts(run_dir, tokenizer)
        ],
    }


def _texts(run_dir: RunDir, tokenizer: Any) -> Iterator[str]:
    yield from _TEXTS
    for messages in prompts.conversations():
        yield messages[-1]["content"]
        if tokenizer.chat_template:
            yield generate.rendered(tokenizer, messages, add_generation_prompt=True)
    for row in _rows(run_dir, _OWN_TEXTS):
        yield tokenizer.decode(row[:_OWN_TEXT_TOKENS])
    yield from _mixed(tokenizer)


def _mixed(tokenizer: Any) -> Iterator[str]:
    """Random sequences of vocabulary entries: token boundaries that natural text would not show."""
    draw = random.Random(0)  # noqa: S311  # texts, not secrets
    usual = sorted(set(range(len(tokenizer))) - set(tokenizer.added_tokens_decoder))
    for _ in range(_MIXED_TEXTS):
        text = tokenizer.decode(draw.choices(usual, k=_MIXED_TEXT_TOKENS))
        yield unicodedata.normalize("NFC", text.replace("\ufffd", ""))


def _rows(run_dir: RunDir, count: int) -> Iterator[list[int]]:
    """Sequences spread evenly over the run's training data, as tokens."""
    report = prepared.read_report(run_dir.data)
    if report is None:
        return
    split = streaming.open_split(run_dir, "train", report.train)
    for number in split.spread(count):
        yield [token for segment in split.row(number) for token in token_ids(segment).tolist()]


if __name__ == "__main__":
    sys.exit(program.run(main))
