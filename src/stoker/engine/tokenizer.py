"""The run's tokenizer: the model's own, one from a folder, or a byte-level BPE trained on the run's text.

What `prepare` needs of it, in one small type. Loading transformers takes seconds and AutoTokenizer loads torch as
well, so a tokenizer trained here needs neither, and a plain folder only the former.
"""

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from huggingface_hub import constants

from stoker import messages
from stoker.config.run import Run, Shape, TrainTokenizer
from stoker.engine import reading
from stoker.errors import StokerError
from stoker.rundir import files, inputs

PAD, END_OF_TEXT, START_OF_TURN, END_OF_TURN = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SENTENCEPIECE = "tokenizer.model"
_SPECIAL = [PAD, END_OF_TEXT, START_OF_TURN, END_OF_TURN]

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' -}}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] + '<|im_end|>' -}}{%- endif -%}"
    "{{- '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML, with the assistant's words and their end marked for training."""

_PROBES = (
    "The quick brown fox's 12,345 jumps.\n\n",
    "  \tdef f(x): return x**2",
    "用同样的词元，结果才相同。",
    "Grüße 👋🏽 e\u0301",
)
"""Texts that tokenizers of one vocabulary cut differently where their rules differ."""
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_PLAIN_FAMILIES = ("llama", "qwen3", "mistral", "gpt2")
"""Model families for which AutoTokenizer, too, takes a plain class as it is (held by a test)."""


@dataclass(frozen=True)
class Tokenizer:
    """What `prepare` needs of a tokenizer."""

    name: str
    backend: tokenizers.Tokenizer
    vocab: int
    bos: int | None
    """Put before plain text, where the tokenizer does so itself."""
    eos: int | None
    special_tokens: tuple[str, ...]
    """The texts of special tokens."""
    added_tokens: tuple[str, ...] = ()
    """The texts of other added tokens, one of which may end a turn."""
    template: str | None = None
    template_fields: dict[str, Any] = field(default_factory=dict)
    """What a chat template may name: `eos_token` and its like."""

    def end_of_text(self) -> int:
        """The token that ends a document; without one, plain text cannot be prepared."""
        if self.eos is None:
            raise StokerError("STK312", tokenizer=self.name, reason=messages.text("tokenizer.no_eos"))
        return self.eos


def for_run(run: Run, folder: Path, target: Path, texts: Callable[[], Iterator[list[str]]]) -> Tokenizer:
    """The run's tokenizer; `target` holds a copy of it afterwards, as transformers reads it.

    Args:
        run: What was asked.
        folder: Where relative paths start.
        target: A folder; where it exists, a tokenizer trained by this very run is in it.
        texts: The run's training text, for a tokenizer that is to be trained.
    """
    if isinstance(run.tokenizer, TrainTokenizer):
        if not target.exists():
            assert isinstance(run.model, Shape)
            made = train(texts(), run.tokenizer.vocab, run.model.shape)
            _save(target, lambda aside: _write_trained(aside, made))
        return _trained(target)
    name, local = _place(run, folder)
    opened = _open(name, local)
    if not target.exists():
        _save(target, lambda aside: write(opened, aside))
    return described(name, opened)


def hub_fingerprint(run: Run, folder: Path) -> str | None:
    """Of a tokenizer that is read from a hub; of others nothing else can change than files and rows."""
    if isinstance(run.tokenizer, TrainTokenizer):
        return None
    name, local = _place(run, folder)
    if local is not None:
        return None
    made = described(name, _open(name, None))
    facts = [made.backend.to_str(), made.bos, made.eos, made.template, sorted(map(str, made.template_fields.items()))]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def require_same(run: Run, folder: Path, prepared: Path, where: str) -> None:
    """The tokenizer that a set was prepared with gives the same tokens as the run's own."""
    if isinstance(run.tokenizer, TrainTokenizer):
        return  # the set's is the run's
    name, local = _place(run, folder)
    own = described(name, _open(name, local)).backend
    other = tokenizers.Tokenizer.from_file(str(prepared / "tokenizer.json"))
    said = [[one.encode(text).ids for text in _PROBES] for one in (own, other)]
    if own.get_vocab() != other.get_vocab() or said[0] != said[1]:
        raise StokerError("STK346", store=where, tokenizer=name)


def write(opened: Any, folder: Path) -> None:
    """Write a tokenizer as transformers does, with the sentencepiece file that it came from.

    transformers 5 reads tokenizer.json and saves that alone, but llama.cpp's converter takes the scores of Gemma's,
    Phi 3's and Llama 2's tokens from `tokenizer.model`. Remove when `save_pretrained` keeps it.
    """
    opened.save_pretrained(folder)
    named = Path(opened.init_kwargs.get("vocab_file") or "")
    beside = Path(opened.name_or_path) / SENTENCEPIECE  # Gemma's class names no such file
    for source in (named, beside):
        if source.name == SENTENCEPIECE and source.is_file() and source.parent != folder:
            shutil.copyfile(source, folder / SENTENCEPIECE)
            return


def train(texts: Iterable[list[str]], vocab: int, family: str) -> tokenizers.Tokenizer:
    """A byte-level BPE of exactly `vocab` tokens; the same text gives the same tokenizer.

    Transformers reads any tokenizer beside a qwen2 model with Qwen2's own way of cutting text into words, whatever
    its files say. So for that family it is trained in this way too, or it would serve other tokens than it learned.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    if family == "qwen2":
        words = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_QWEN2_WORDS), behavior="isolated")
        to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.normalizer = tokenizers.normalizers.NFC()
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([words, to_bytes])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=_SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found < vocab:
        raise StokerError("STK316", vocab=vocab, found=found)
    return tokenizer


# ---- trained here


def _write_trained(folder: Path, tokenizer: tokenizers.Tokenizer) -> None:
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _trained(folder: Path) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Tokenizer(
        name=str(folder),
        backend=backend,
        vocab=backend.get_vocab_size(),
        bos=None,
        eos=backend.token_to_id(END_OF_TEXT),
        special_tokens=tuple(_SPECIAL),
        template=CHAT_TEMPLATE,
        template_fields={"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": PAD},
    )


# ---- anyone else's


def _place(run: Run, folder: Path) -> tuple[str, Path | None]:
    """The name of a tokenizer that is not trained here, and its folder; None for one of a hub."""
    assert not isinstance(run.tokenizer, TrainTokenizer)
    name = str(run.model) if run.tokenizer == "auto" else run.tokenizer
    local = Path(inputs.model_path(name, folder))
    return name, local if local.is_absolute() else None


def _open(name: str, local: Path | None) -> Any:
    """The tokenizer as transformers has it; no code of a model repository is run."""
    if local is None:
        return _of_hub(name)
    with reading.named_whatever("STK312", tokenizer=name):
        if _is_plain(local):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(local)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(local, trust_remote_code=False)


@functools.cache  # one revision in a program, which first asks for its fingerprint
def _of_hub(name: str) -> Any:
    """The tokenizer of a model of the hub; an OSError is of the way there, and transformers names no mirror."""
    from transformers import AutoTokenizer

    with reading.named_whatever("STK312", tokenizer=name):
        try:
            return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except OSError as error:
            reason = "tokenizer.offline" if constants.HF_HUB_OFFLINE else "tokenizer.not_fetched"
            said = messages.text(reason, said=files.reason(error))
            raise StokerError("STK312", tokenizer=name, reason=said) from error


def _is_plain(folder: Path) -> bool:
    """Whether AutoTokenizer would end at the plain class too, so that it need not be loaded, and torch with it."""
    settings, config = _json(folder / "tokenizer_config.json"), _json(folder / "config.json")
    return (
        settings.get("tokenizer_class") in _PLAIN_CLASSES
        and "auto_map" not in settings
        and config.get("model_type", _PLAIN_FAMILIES[0]) in _PLAIN_FAMILIES
        and (folder / "tokenizer.json").is_file()
        and not (folder / "tekken.json").exists()
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def described(name: str, opened: Any) -> Tokenizer:
    """What `prepare` needs of a tokenizer that transformers has opened."""
    if not opened.is_fast:
        raise StokerError("STK312", tokenizer=name, reason=messages.text("tokenizer.not_fast"))
    backend = opened.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    first = backend.encode("a", add_special_tokens=True).ids[0]
    with reading.named_whatever("STK312", tokenizer=name):
        template = opened.get_chat_template() if opened.chat_template else None
    special = {str(token) for token in opened.added_tokens_decoder.values() if token.special}
    return Tokenizer(
        name=name,
        backend=backend,
        vocab=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        bos=first if first == opened.bos_token_id else None,
        eos=opened.eos_token_id,
        special_tokens=tuple(sorted(special | set(opened.all_special_tokens))),
        added_tokens=tuple(sorted(str(token) for token in opened.added_tokens_decoder.values() if not token.special)),
        template=template,
        template_fields=dict(opened.special_tokens_map),
    )


def _save(target: Path, write: Callable[[Path], Any]) -> None:
    """Write aside, then rename: a folder that is there is whole."""
    aside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        write(aside)
    except Exception:
        shutil.rmtree(aside, ignore_errors=True)  # on a full disk, what is said next needs its room
        raise
    aside.rename(target)
