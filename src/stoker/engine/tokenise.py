"""From rows to segments of tokens: the part of preparing that any process can do, and does in any order.

What comes out depends on nothing but the rows, the tokenizer and the run's words. Results are taken in the order of the
rows, so that the number of processes changes no bit of a prepared set.
"""

import itertools
import json
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stoker import env, messages
from stoker.config.objectives import ObjectiveFacts
from stoker.engine import _compat
from stoker.engine.rendering import Renderer
from stoker.engine.tokenizer import Tokenizer
from stoker.rows import formats, row_files
from stoker.rows.formats import Document, Judged, Layout, Pair, Preference, Text
from stoker.rows.prompt_rows import PromptRow
from stoker.rows.row_files import Numbered
from stoker.rows.row_values import BadRow
from stoker.rows.turns import Conversation

Made = TypeVar("Made")

_AHEAD = 3
"""Batches that each process may be ahead of the one that is taken: it goes on while a shard is written."""


@dataclass(frozen=True)
class Rows:
    """Rows of one file, in order, with the layout of that file."""

    rows: list[Numbered]
    layout: Layout | None
    is_text: bool


class Unit(NamedTuple):
    """What became of one row, or of some blocks of running text."""

    number: int
    is_row: bool
    """Whether a row begins with it: later blocks of a text are none."""
    segments: list[np.ndarray] | BadRow
    tokens: int = 0
    """Before anything is cut."""
    truncated: bool = False
    undesired: bool = False
    """Whether its answer is judged to be a bad one."""
    columns: str = ""
    """Of a prompt, as JSON: what it asks, and all columns of its row."""


@dataclass(frozen=True)
class Tokenised:
    """What became of some rows."""

    units: list[Unit]
    context_answers: int
    """Answers that are context only, because the template drops their thinking."""


class Tokeniser:
    """Renders rows, tokenises them and cuts them to the run's length."""

    def __init__(self, tokenizer: Tokenizer, objective: ObjectiveFacts, length: int) -> None:
        """Of prompts, `length` is the longest one that leaves room for an answer."""
        self._has_template = tokenizer.template is not None
        self._renderer = Renderer(tokenizer, objective)
        self._objective = objective
        self._length = length

    def __call__(self, given: Rows) -> Tokenised:
        """The segments of each row; the first token of each is stored as untrained."""
        known = self._renderer.context_answers
        rows = list(row_files.values(given.rows))
        numbers = [number for number, _ in rows]
        documents = [self._document(value, given.layout) for _, value in rows]
        found = self._renderer.tokens([part for document in documents for part in _parts(document)])
        if given.is_text and len(found) > 1:
            # Blocks of one text: joined again, so that only the last piece of a batch is short.
            blocks = [tokens for tokens in found if not isinstance(tokens, BadRow)]
            numbers, documents, found = numbers[:1], documents[:1], [np.concatenate(blocks)]
        following = iter(found)
        units = [
            self._pair(number, next(following), next(following))
            if isinstance(document, Preference)
            else self._unit(number, document, next(following))
            for number, document in zip(numbers, documents, strict=True)
        ]
        if self._objective.prompts:
            units = [_with_columns(*one) for one in zip(units, documents, rows, strict=True)]
        return Tokenised(units, self._renderer.context_answers - known)

    def _document(self, value: Any, layout: Layout | None) -> Document | BadRow:
        found = formats.document(value, layout, has_template=self._has_template)
        return formats.fitting(found, self._objective)

    def _pair(self, number: int, *answers: np.ndarray | BadRow) -> Unit:
        """Both answers of a row within the length, each with its prompt."""
        units = [self._unit(number, None, tokens) for tokens in answers]
        segments: list[np.ndarray] = []
        for unit in units:
            if isinstance(unit.segments, BadRow):
                return unit
            segments += unit.segments
        if np.array_equal(segments[0], segments[1]):
            return Unit(number, True, BadRow("row.same_answers"))
        return Unit(number, True, segments, sum(unit.tokens for unit in units), any(unit.truncated for unit in units))

    def _unit(self, number: int, document: Document | BadRow | None, tokens: np.ndarray | BadRow) -> Unit:
        """A document's tokens within the length: text is split, anything else truncated and counted."""
        is_text = isinstance(document, Text)
        is_row = not is_text or document.opens  # type: ignore[union-attr]  # a text
        if isinstance(tokens, BadRow):
            return Unit(number, is_row, tokens)
        if isinstance(document, PromptRow):
            long = len(tokens) > self._length
            bad = BadRow("row.long_prompt", tokens=len(tokens), length=self._length)
            return Unit(number, is_row, bad if long else [tokens], len(tokens))
        pieces = split(tokens, self._length) if is_text or self._objective.trains_all else [tokens[: self._length]]
        if not (pieces[0][1:] >= 0).any():
            return Unit(number, is_row, BadRow("row.no_trained", length=self._length), len(tokens))
        for piece in pieces:
            piece[0] = min(piece[0], ~piece[0])
        undesired = isinstance(document, Judged) and not document.good
        return Unit(number, is_row, pieces, len(tokens), len(pieces) == 1 and len(tokens) > self._length, undesired)


def _with_columns(unit: Unit, document: Document | BadRow, row: Numbered) -> Unit:
    """A prompt with what its row says; nothing of a bad one."""
    if not isinstance(document, PromptRow) or isinstance(unit.segments, BadRow):
        return unit
    said = {**row[1], "system": document.system} if document.system else row[1]
    return unit._replace(columns=json.dumps({"prompt": document.prompt, "row": said}, default=str))


def _parts(document: Document | BadRow) -> list[Text | Pair | Conversation | PromptRow | BadRow]:
    """What is rendered of a document: both answers of a preference."""
    if isinstance(document, Preference):
        return [document.chosen, document.rejected]
    return [document.answer if isinstance(document, Judged) else document]


def split(tokens: np.ndarray, length: int) -> list[np.ndarray]:
    """Pieces of `length` tokens. The last is shorter, but never a single token, which has nothing to train."""
    edges = [*range(0, max(1, len(tokens)), length), len(tokens)]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1:
        edges[-2] -= 1
    return [tokens[start:end] for start, end in itertools.pairwise(edges)]


def in_order(work: Callable[[Rows], Made], batches: Iterable[Rows], workers: int) -> Generator[Made]:
    """What becomes of each batch, in their order; computed by so many processes, or by this one.

    Args:
        work: What is done with a batch.
        batches: Read no further ahead than the processes need.
        workers: Processes; where one of them is ended from outside (for want of memory, say), this one does the rest.
    """
    if workers == 1:
        yield from map(work, batches)
        return
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[tuple[Rows, Future[Made] | None]] = deque()
    pool = ProcessPoolExecutor(workers, context, _start, (work,))
    try:
        for batch in batches:
            waiting.append((batch, _sent(pool, batch)))
            if len(waiting) > _AHEAD * workers:
                yield _taken(work, *waiting.popleft())
        while waiting:
            yield _taken(work, *waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _sent(pool: ProcessPoolExecutor, batch: Rows) -> Future[Any] | None:
    try:
        return pool.submit(_work, batch)
    except BrokenProcessPool:
        return None


def _taken(work: Callable[[Rows], Made], batch: Rows, sent: Future[Made] | None) -> Made:
    try:
        return sent.result() if sent else work(batch)
    except BrokenProcessPool:
        sys.stderr.write(messages.text("prepare.alone") + "\n")
        return work(batch)


# ---- in a process of the pool

_work_of_process: Callable[[Rows], Any]


def _start(work: Callable[[Rows], Any]) -> None:
    global _work_of_process  # one for each process, as the pool's initialisers have it
    _work_of_process = work
    env.put(env.TOKENIZERS_PARALLELISM, "false")  # one thread each
    if sys.platform != "linux":
        _compat.hide_torch()  # a new interpreter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(batch: Rows) -> Any:
    return _work_of_process(batch)
