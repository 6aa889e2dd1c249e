"""From documents to tokens, each marked trained or not. Uses the tokenizer's own chat template, byte for byte.

What is trained: what the assistant says and the token that ends its turn (also where that token pads); of a prompt
and completion the latter and its end; of running text and in pretraining everything. The whole text is tokenised
once and character spans are mapped to tokens, so the ids are those of the plain rendering.
"""

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.engine import template_limits
from stoker.engine.formats import BadRow, Chat, Document, Pair, Text
from stoker.engine.tokenizer import Tokenizer

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The mark with which a template says itself what the assistant generates."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Rendered:
    """The text of a document, and which characters of it are trained."""

    text: str
    spans: list[Span]
    bos: bool = False
    """Put the tokenizer's first token before it, if it has one."""
    eos: bool = False
    """End it with the end-of-text token; trained."""


class Renderer:
    """Renders and tokenises documents."""

    def __init__(self, tokenizer: Tokenizer, objective: str) -> None:
        self._tokenizer = tokenizer
        self._train_all = objective == "pretrain"
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or r"(?!)")
        self._marked = bool(tokenizer.template and _GENERATION.search(tokenizer.template))

    def tokens(self, documents: Sequence[Document | BadRow]) -> list[np.ndarray | BadRow]:
        """The tokens of each document; an untrained one is stored as ~id. Bad rows pass through."""
        rendered = self._render(documents)
        usable = [one for one in rendered if isinstance(one, Rendered)]
        encodings = iter(self._encode(usable))
        return [one if isinstance(one, BadRow) else self._marked_tokens(one, next(encodings)) for one in rendered]

    # ---- text and spans

    def _render(self, documents: Sequence[Document | BadRow]) -> list[Rendered | BadRow]:
        chats = iter(self._render_chats([one for one in documents if isinstance(one, Chat)]))
        return [next(chats) if isinstance(one, Chat) else self._render_plain(one) for one in documents]

    def _render_plain(self, document: Text | Pair | BadRow) -> Rendered | BadRow:
        if isinstance(document, Text):
            everything = [(0, len(document.text))]
            return Rendered(document.text, everything, bos=document.opens, eos=document.closes)
        if isinstance(document, Pair):
            text = document.prompt + document.completion
            start = 0 if self._train_all else len(document.prompt)
            return Rendered(text, [(start, len(text))], bos=True, eos=True)
        return document

    def _render_chats(self, chats: list[Chat]) -> list[Rendered | BadRow]:
        if not chats:
            return []
        texts, marks = self._template(chats, mark=self._marked and not self._train_all)
        if self._train_all:
            return [text if isinstance(text, BadRow) else Rendered(text, [(0, len(text))]) for text in texts]
        if not self._marked:
            marks = self._find_spans(chats, texts)
        return [self._with_spans(text, spans) for text, spans in zip(texts, marks, strict=True)]

    def _with_spans(self, text: str | BadRow, spans: list[Span] | BadRow) -> Rendered | BadRow:
        if isinstance(text, BadRow):
            return text
        if isinstance(spans, BadRow):
            return spans
        return Rendered(text, [self._to_end_of_turn(text, span) for span in spans])

    def _to_end_of_turn(self, text: str, span: Span) -> Span:
        """The span up to and with the token that ends the turn, without the white space that follows it."""
        start, end = span
        special = self._tokenizer.special_tokens
        said = text[start:end].rstrip()
        if said.endswith(special):
            return start, start + len(said)
        following = next((token for token in special if text.startswith(token, end)), "")
        return start, end + len(following)

    # ---- where a template does not mark the assistant's words

    def _find_spans(self, chats: list[Chat], texts: list[str | BadRow]) -> list[list[Span] | BadRow]:
        """What the assistant says, by rendering each conversation up to each of its turns."""
        turns = [
            (which, at)
            for which, chat in enumerate(chats)
            for at, message in enumerate(chat.messages)
            if message["role"] == "assistant" and isinstance(texts[which], str)
        ]
        before = self._template([_cut(chats[which], at) for which, at in turns], prompt=True)[0]
        until = self._until(chats, texts, turns)
        found: list[list[Span] | BadRow] = [[] for _ in chats]
        for (which, at), prompt, turn in zip(turns, before, until, strict=True):
            spans, text = found[which], texts[which]
            if isinstance(spans, list) and isinstance(text, str):
                span = _span(text, prompt, turn, chats[which].messages[at]["content"], self._special)
                found[which] = span if isinstance(span, BadRow) else [*spans, span]
        return found

    def _until(self, chats: list[Chat], texts: list[str | BadRow], turns: list[tuple[int, int]]) -> list[str | BadRow]:
        """Each conversation up to and with each assistant turn; the last one is the whole text, rendered already."""
        inner = [(which, at) for which, at in turns if at + 1 < len(chats[which].messages)]
        rendered = dict(zip(inner, self._template([_cut(chats[which], at + 1) for which, at in inner])[0], strict=True))
        return [rendered.get((which, at), texts[which]) for which, at in turns]

    # ---- the template

    def _template(
        self, chats: list[Chat], *, prompt: bool = False, mark: bool = False
    ) -> tuple[list[str | BadRow], list[Any]]:
        """The texts of conversations, and the spans their template marks."""
        render = functools.partial(
            _render_function(),
            chat_template=self._tokenizer.template,
            add_generation_prompt=prompt,
            return_assistant_tokens_mask=mark,
            **self._tokenizer.template_fields,
        )
        with template_limits.limited(self._tokenizer.name, len(chats)):
            texts, marks = _together(chats, render) or _one_by_one(chats, render)
        template_limits.require_size(self._tokenizer.name, (text for text in texts if isinstance(text, str)))
        return texts, marks or [[] for _ in texts]

    # ---- tokens

    def _encode(self, rendered: list[Rendered]) -> list[Any]:
        texts = [one.text for one in rendered]
        if all(one.spans == [(0, len(one.text))] for one in rendered):
            return self._tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
        return self._tokenizer.backend.encode_batch(texts, add_special_tokens=False)

    def _marked_tokens(self, rendered: Rendered, encoding: Any) -> np.ndarray:
        ids = np.array(encoding.ids, dtype=np.int32)
        if rendered.spans == [(0, len(rendered.text))]:
            tokens = ids
        else:
            tokens = ~ids
            for span in rendered.spans:
                first, end = token_range(encoding, span)
                tokens[first:end] = ids[first:end]
        front = [self._tokenizer.bos] if rendered.bos and self._tokenizer.bos is not None else []
        back = [self._tokenizer.end_of_text()] if rendered.eos else []
        if front or back:
            tokens = np.concatenate([np.array(front, np.int32), tokens, np.array(back, np.int32)])
        return tokens


def token_range(encoding: Any, span: Span) -> tuple[int, int]:
    """The tokens that hold any character of a span, first and behind the last.

    Some tokenizers cut white space off a token's offsets, so that a token of nothing but white space is left with an
    empty place at its own end; it belongs to the span that holds that end.
    """
    start, end = span
    count = range(len(encoding))

    def begin(token: int) -> int:
        return encoding.token_to_chars(token)[0]

    def finish(token: int) -> int:
        return encoding.token_to_chars(token)[1]

    first = bisect_right(count, start, key=finish)
    behind = max(bisect_left(count, end, key=begin), bisect_right(count, end, key=finish))
    return first, behind


def _cut(chat: Chat, end: int) -> Chat:
    return Chat(chat.messages[:end], chat.tools)


def _span(text: str, prompt: str | BadRow, turn: str | BadRow, content: str, special: re.Pattern[str]) -> Span | BadRow:
    """Where an assistant's turn stands in the whole text.

    It starts where the prompt for it ends. It ends with the special token that follows its content; where none does
    (a tool call, say), where the conversation up to this turn ends. A template may write earlier turns another way
    than the last one, as those of reasoning models do; one that changes their words is refused.
    """
    if isinstance(prompt, BadRow) or isinstance(turn, BadRow):
        return prompt if isinstance(prompt, BadRow) else turn  # type: ignore[return-value]  # one of them is bad
    start = len(prompt)
    if not text.startswith(prompt):
        return BadRow("row.template_prefix")
    end = _end_of_content(text, start, len(turn), content.strip(), special)
    if end is None and text.startswith(turn):
        end = len(turn)
    return BadRow("row.template_prefix") if end is None else (start, end)


def _end_of_content(text: str, start: int, longest: int, content: str, special: re.Pattern[str]) -> int | None:
    """Behind the first special token from `start` on, if the content stands right before it and the turn ends there."""
    following = special.search(text, start)
    if following is None or not content or following.end() > longest:
        return None
    return following.end() if text[start : following.start()].rstrip().endswith(content) else None


def _together(chats: list[Chat], render: Callable[..., Any]) -> tuple[list[str | BadRow], list[Any]] | None:
    """All in one call; None where one row is bad, or has tools of its own: then they are rendered one by one."""
    if any(chat.tools for chat in chats):
        return None
    try:
        texts, marks = render(conversations=[chat.messages for chat in chats])
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # a template is code of others
        return None
    return texts, marks


def _one_by_one(chats: list[Chat], render: Callable[..., Any]) -> tuple[list[str | BadRow], list[Any]]:
    texts: list[str | BadRow] = []
    marks: list[Any] = []
    for chat in chats:
        try:
            (text,), spans = render(conversations=[chat.messages], tools=chat.tools)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  # a template is code of others: whatever it raises, this row is bad
            text, spans = BadRow("row.template", problem=str(error) or type(error).__name__), []
        texts.append(text)
        marks.append(spans[0] if spans else [])
    return texts, marks


@functools.cache
def _render_function() -> Callable[..., Any]:
    """Transformers' own rendering, loaded when the first conversation comes."""
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template
