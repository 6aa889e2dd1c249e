"""From documents to tokens, each marked trained or not. Uses the tokenizer's own chat template, byte for byte.

What is trained: what the assistant thinks, says and calls and the token that ends its turn (also where that token
pads); of a prompt and completion the latter and its end; of running text and in pretraining everything. A conversation
of which the template loses or moves a part is a bad row (`sentinel.py`). The whole text is tokenised once and character
spans are mapped to tokens, so the ids are those of the plain rendering.
"""

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker import messages
from stoker.config.objectives import ObjectiveFacts
from stoker.engine import long_texts, sentinel, template_limits
from stoker.engine.sentinel import Reading, Span, Spans
from stoker.engine.tokenizer import Tokenizer
from stoker.rows.formats import Chat, Message, Pair, Text
from stoker.rows.prompt_rows import PromptRow
from stoker.rows.row_values import BadRow
from stoker.rows.turns import Conversation, Turn

Answer = Text | Pair | Conversation | PromptRow
"""What is rendered: a document, or one of the two of a preference."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The mark with which a template says itself what the assistant generates."""

_OPEN_THOUGHT = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
_EMPTY_THOUGHT = re.compile(r"(?:\s*(?:<think>)?\s*</think>|<\|channel>thought\s*<channel\|>)(?:[ \t\r]*\n)*")
_PAIRS = (("end", "begin"), ("end", "start"), ("END", "START"), ("</", "<"))
"""How a token that closes is called, and the one that opens."""
_SHAPES = 10_000
"""Shapes of conversations remembered."""


@dataclass(frozen=True)
class Rendered:
    """The text of a document, and which characters of it are trained."""

    text: str
    spans: list[Span]
    bos: bool = False
    """Put the tokenizer's first token before it, if it has one."""
    eos: bool = False
    """End it with the end-of-text token; trained."""

    @property
    def is_all_trained(self) -> bool:
        """Nothing of it is context."""
        return self.spans == [(0, len(self.text))]


class Renderer:
    """Renders and tokenises documents."""

    def __init__(self, tokenizer: Tokenizer, objective: ObjectiveFacts) -> None:
        self._tokenizer = tokenizer
        self._train_all = objective.trains_all
        special = "|".join(map(re.escape, sorted(tokenizer.special_tokens, key=len, reverse=True)))
        self._closing = re.compile(rf"\s*({special})(?:{special})*" if special else r"(?!)")
        self._ending = re.compile(rf"((?:{special})+)\s*" if special else r"(?!)")
        self._marked = bool(tokenizer.template and _GENERATION.search(tokenizer.template))
        self._special_ids = {tokenizer.backend.token_to_id(token) for token in tokenizer.special_tokens}
        self._readings: dict[tuple[Any, ...], Reading | BadRow] = {}
        self.context_answers = 0
        """Answers so far that are context only, because the template drops their thinking."""

    def tokens(self, documents: Sequence[Answer | BadRow]) -> list[np.ndarray | BadRow]:
        """The tokens of each document; an untrained one is stored as ~id. Bad rows pass through."""
        rendered = self._render(documents)
        made = iter(self._tokens([one for one in rendered if isinstance(one, Rendered)]))
        return [one if isinstance(one, BadRow) else self._with_ends(one, next(made)) for one in rendered]

    # ---- text and spans

    def _render(self, documents: Sequence[Answer | BadRow]) -> list[Rendered | BadRow]:
        chats = iter(self._render_chats([one for one in documents if isinstance(one, Conversation)]))
        return [next(chats) if isinstance(one, Conversation) else self._render_plain(one) for one in documents]

    def _render_plain(self, document: Text | Pair | PromptRow | BadRow) -> Rendered | BadRow:
        if isinstance(document, PromptRow):
            return self._render_prompt(document.asked)
        if isinstance(document, Text):
            everything = [(0, len(document.text))]
            return Rendered(document.text, everything, bos=document.opens, eos=document.closes)
        if isinstance(document, Pair):
            text = document.prompt + document.completion
            start = 0 if self._train_all else len(document.prompt)
            return Rendered(text, [(start, len(text))], bos=True, eos=True)
        return document

    def _render_prompt(self, asked: str | Conversation) -> Rendered | BadRow:
        """Up to where the assistant is to speak; nothing of it is trained."""
        if isinstance(asked, str):
            return Rendered(asked, [], bos=True)
        lost = ""
        for form in sentinel.forms(asked, inline=False):
            (text,) = self._template([sentinel.as_template(asked, form)], prompt=True)[0]
            if isinstance(text, BadRow):
                return text
            lost = next((part for turn in asked.turns if (part := sentinel.lost(turn, text))), "")
            if not lost:
                return Rendered(text, [])
        return BadRow("row.template_loses", part=messages.text(f"part.{lost}"))

    def _render_chats(self, conversations: list[Conversation]) -> list[Rendered | BadRow]:
        found: list[Rendered | BadRow | Reading] = [self._reading(one) for one in conversations]
        for marked in (True, False):
            taken = [(at, one) for at, one in enumerate(found) if isinstance(one, Reading) and one.marked == marked]
            if not taken:
                continue
            chats = [sentinel.as_template(conversations[at], reading.form) for at, reading in taken]
            texts, spans = self._texts_and_spans(chats, marked=marked)
            for (at, reading), text, own in zip(taken, texts, spans, strict=True):
                rendered = text if isinstance(text, BadRow) else self._rendered(conversations[at], reading, text, own)
                found[at] = rendered
        return [one for one in found if not isinstance(one, Reading)]

    def _texts_and_spans(self, chats: list[Chat], *, marked: bool) -> tuple[list[str | BadRow], list[Spans]]:
        """The texts of conversations, and in each the spans that are the assistant's."""
        texts, marks = self._template(chats, mark=marked)
        if self._train_all:
            return texts, [[] for _ in texts]
        if marked:
            return texts, [[span for span in spans if span[0] < span[1]] for spans in marks]
        return texts, self._find_spans(chats, texts)

    def _rendered(self, one: Conversation, reading: Reading, text: str, spans: Spans) -> Rendered | BadRow:
        """A row's text with what is trained of it, unless a part of the row is not where it belongs."""
        if bad := sentinel.unfit(reading, spans) or sentinel.missing(one, text, spans, reading):
            return bad
        if self._train_all:
            return Rendered(text, [(0, len(text))])
        answers = [turn for turn in one.turns if turn.role == "assistant"]
        trained: list[Span] = []
        endless: list[Span] = []
        for turn, group in zip(answers, reading.groups, strict=True):
            if group and turn.trained:
                own = [_without_empty_thought(text, sentinel.sure(spans[number]), turn) for number in group]
                trained += [*own[:-1], self._to_end_of_turn(text, own[-1])]
                endless += [] if self._is_ended(text[slice(*trained[-1])], turn) else trained[-1:]
        self.context_answers += sum(
            turn.trained and not group for turn, group in zip(answers, reading.groups, strict=True)
        )
        return self._ended(text, trained, endless)

    def _to_end_of_turn(self, text: str, span: Span) -> Span:
        """The span up to and with the tokens that end the turn, without the white space that follows them."""
        start, end = span
        if rest := self._ending.fullmatch(text, end):
            return start, rest.end(1)
        special = self._tokenizer.special_tokens
        said = text[start:end].rstrip()
        if said.endswith(special):
            return start, start + len(said)
        following = next((token for token in special if text.startswith(token, end)), "")
        if self._header and text.startswith(self._header, end):
            following = ""  # the assistant speaks again
        return start, end + len(following)

    @functools.cached_property
    def _header(self) -> str:
        """What the template writes where the assistant is to speak; empty where it writes nothing there."""
        asked = [Chat([{"role": "user", "content": "a"}])]
        (before,), (prompt,) = self._template(asked)[0], self._template(asked, prompt=True)[0]
        if isinstance(before, BadRow) or isinstance(prompt, BadRow) or not prompt.startswith(before):
            return ""
        return prompt[len(before) :].strip()

    def _is_ended(self, said: str, turn: Turn) -> bool:
        """Whether a turn ends with a token; that which closes a pair within it, as one of a call may, ends no turn."""
        ends = self._tokenizer.special_tokens + self._tokenizer.added_tokens
        end = max((token for token in ends if said.endswith(token)), key=len, default="")
        opening = (
            {end.replace(*pair) for pair in _PAIRS} | {re.sub(r"^<(\w+)\|>$", r"<|\1>", end)} if turn.calls else set()
        )
        return bool(end) and not any(said.count(token) == said.count(end) for token in opening - {end})

    def _ended(self, text: str, spans: list[Span], endless: list[Span]) -> Rendered | BadRow:
        """Every turn ends with a token of its own; after the last one the end-of-text token takes that place."""
        if not spans:
            return BadRow("row.template_loses", part=messages.text("part.thinking"))
        if not endless:
            return Rendered(text, spans)
        if endless == spans[-1:] and not text[spans[-1][1] :].strip() and self._tokenizer.eos is not None:
            return Rendered(text, spans, eos=True)
        return BadRow("row.template_end")

    # ---- how the template takes conversations of a shape

    def _reading(self, conversation: Conversation) -> Reading | BadRow:
        """How the template takes conversations of this shape, asked once of each shape."""
        shape = sentinel.shape(conversation)
        if shape not in self._readings:
            if len(self._readings) == _SHAPES:
                self._readings.clear()
            inline = any(turn.thinking for turn in conversation.turns) and self._thinks_inline
            self._readings[shape] = self._best_reading(sentinel.of(conversation), inline=inline)
        return self._readings[shape]

    @functools.cached_property
    def _thinks_inline(self) -> bool:
        """Whether thinking is kept only where it is in the content."""
        asked = sentinel.thinker()
        as_field, in_content = (self._best_reading(asked, inline=inline) for inline in (False, True))
        return isinstance(as_field, BadRow) and isinstance(in_content, Reading)

    def _best_reading(self, asked: Conversation, *, inline: bool) -> Reading | BadRow:
        """The first form that loses nothing; else one that loses only thoughts of earlier turns; else why none does."""
        tried: list[Reading | BadRow] = []
        for form in sentinel.forms(asked, inline=inline):
            for marked in (True, False) if self._marked and not self._train_all else (False,):
                (text,), (spans,) = self._texts_and_spans([sentinel.as_template(asked, form)], marked=marked)
                found = text if isinstance(text, BadRow) else sentinel.judged(asked, text, spans, form, marked=marked)
                if isinstance(found, Reading) and all(found.groups):
                    return found
                tried.append(found)
        return min(tried, key=_severity)

    # ---- where a template does not mark the assistant's words

    def _find_spans(self, chats: list[Chat], texts: list[str | BadRow]) -> list[Spans]:
        """The span of each of the assistant's turns, by rendering each conversation up to it."""
        turns = [
            (which, at)
            for which, chat in enumerate(chats)
            for at, message in enumerate(chat.messages)
            if message["role"] == "assistant" and isinstance(texts[which], str)
        ]
        before = self._template([_cut(chats[which], at) for which, at in turns], prompt=True)[0]
        until = self._until(chats, texts, turns)
        found: list[Spans] = [[] for _ in chats]
        latest = dict(turns)
        for (which, at), prompt, turn in zip(turns, before, until, strict=True):
            text = texts[which]
            assert isinstance(text, str)
            message, last = chats[which].messages[at], latest[which] == at
            found[which].append(_span(text, prompt, turn, message, self._closing, last=last))
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

    def _tokens(self, rendered: list[Rendered]) -> list[np.ndarray]:
        texts, encoder = [one.text for one in rendered], self._tokenizer.backend
        if all(one.is_all_trained for one in rendered):
            return long_texts.ids(encoder, texts)
        encodings = encoder.encode_batch(texts, add_special_tokens=False)
        return [self._marked_tokens(one, made) for one, made in zip(rendered, encodings, strict=True)]

    def _marked_tokens(self, rendered: Rendered, encoding: Any) -> np.ndarray:
        ids = np.array(encoding.ids, dtype=np.int32)
        if rendered.is_all_trained:
            return ids
        tokens = ~ids
        for span in rendered.spans:
            first, end = token_range(encoding, span, self._special_ids)
            tokens[first:end] = ids[first:end]
        return tokens

    def _with_ends(self, rendered: Rendered, tokens: np.ndarray) -> np.ndarray:
        front = [self._tokenizer.bos] if rendered.bos and self._tokenizer.bos is not None else []
        back = [self._tokenizer.end_of_text()] if rendered.eos else []
        if front or back:
            tokens = np.concatenate([np.array(front, np.int32), tokens, np.array(back, np.int32)])
        return tokens


def _severity(found: Reading | BadRow) -> int:
    """How little is known of why a form is not whole."""
    if isinstance(found, Reading):
        return 0
    return {"row.template_prefix": 2, "row.template": 3}.get(found.reason, 1)


def token_range(encoding: Any, span: Span, special: Collection[int | None] = ()) -> tuple[int, int]:
    """The tokens that hold any character of a span, first and behind the last.

    Some tokenizers cut white space off a token's offsets, so that a token of nothing but white space is left with an
    empty place at its own end; it belongs to the span that holds that end. A special token that takes the white space
    behind it along belongs to where it starts.
    """
    start, end = span
    count = range(len(encoding))

    def begin(token: int) -> int:
        return encoding.token_to_chars(token)[0]

    def finish(token: int) -> int:
        return encoding.token_to_chars(token)[1]

    first = bisect_right(count, start, key=finish)
    if first < len(encoding) and begin(first) < start and encoding.ids[first] in special:
        first += 1
    behind = max(bisect_left(count, end, key=begin), bisect_right(count, end, key=finish))
    return first, behind


def _without_empty_thought(text: str, span: Span, turn: Turn) -> Span:
    """An empty thought that the template writes is context, as it is where a server asks for no thinking."""
    empty = None if turn.thinking else _EMPTY_THOUGHT.match(text, *span)
    return (empty.end(), span[1]) if empty else span


def _cut(chat: Chat, end: int) -> Chat:
    return Chat(chat.messages[:end], chat.tools)


def _span(
    text: str, prompt: str | BadRow, turn: str | BadRow, message: Message, closing: re.Pattern[str], *, last: bool
) -> Span | BadRow:
    """Where an assistant's turn stands in the whole text.

    It starts where the prompt for it ends. It ends with the special tokens that follow its content; where none do (a
    tool call, say), where the conversation up to this turn ends. A template may write earlier turns another way than
    the last one, as those of reasoning models do: without the thought that the prompt opens, or without an empty one.
    One that changes their words is refused.
    """
    if isinstance(prompt, BadRow) or isinstance(turn, BadRow):
        return prompt if isinstance(prompt, BadRow) else turn  # type: ignore[return-value]  # one of them is bad
    if not text.startswith(prompt):
        prompt = _OPEN_THOUGHT.sub("", prompt)
        if not text.startswith(prompt) or (last and not text.startswith("<think>", len(prompt))):
            return BadRow("row.template_prefix")
    start = len(prompt)
    empty = _EMPTY_THOUGHT.match(turn, start)
    starts = (start, empty.end() if empty else start) if turn.startswith(prompt) else ()
    end = next((start + len(turn) - at for at in starts if text.startswith(turn[at:], start)), None)
    if "tool_calls" not in message:
        closed = _closed(text, start, len(turn), message["content"], closing)
        # A turn may end with several tokens; where it is written another way, the last ones may be of the next turn.
        end = (closed.end(1) if end is None else closed.end()) if closed else end
    return BadRow("row.template_prefix") if end is None else (start, end)


def _closed(text: str, start: int, longest: int, content: Any, closing: re.Pattern[str]) -> re.Match[str] | None:
    """The special tokens that follow the content, if the turn has any."""
    said = (content if isinstance(content, str) else content[0]["text"]).strip()
    at = text.find(said, start, longest)
    while at >= 0:
        if closed := closing.match(text, at + len(said), longest):
            return closed
        at = text.find(said, at + 1, longest)
    return None


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
