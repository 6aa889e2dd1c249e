"""From rows to segments of tokens: the part of preparing that any process can do, and does in any order.

What comes out depends on nothing but the rows, the tokenizer and the run's words. Results are taken in the order of the
rows, so that the number of processes changes no bit of a prepared set.
"""

import itertools
import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from typing import NamedTuple

import numpy as np

from stoker import env, messages
from stoker.engine import _compat
from stoker.engine.rendering import Renderer
from stoker.engine.tokenizer import Tokenizer
from stoker.rows import formats, row_files
from stoker.rows.formats import Document, Layout, Text
from stoker.rows.row_files import Numbered
from stoker.rows.row_values import BadRow

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
    truncated: bool = False


@dataclass(frozen=True)
class Tokenised:
    """What became of some rows."""

    units: list[Unit]
    context_answers: int
    """Answers that are context only, because the template drops their thinking."""


class Tokeniser:
    """Renders rows, tokenises them and cuts them to the run's length."""

    def __init__(self, tokenizer: Tokenizer, objective: str, length: int) -> None:
        self._has_template = tokenizer.template is not None
        self._renderer = Renderer(tokenizer, objective)
        self._splits_all = objective == "pretrain"
        self._length = length

    def __call__(self, given: Rows) -> Tokenised:
        """The segments of each row; the first token of each is stored as untrained."""
        known = self._renderer.context_answers
        rows = list(row_files.values(given.rows))
        numbers = [number for number, _ in rows]
        documents = [formats.document(value, given.layout, has_template=self._has_template) for _, value in rows]
        found = self._renderer.tokens(documents)
        if given.is_text and len(found) > 1:
            # Blocks of one text: joined again, so that only the last piece of a batch is short.
            blocks = [tokens for tokens in found if not isinstance(tokens, BadRow)]
            numbers, documents, found = numbers[:1], documents[:1], [np.concatenate(blocks)]
        units = list(map(self._unit, numbers, documents, found))
        return Tokenised(units, self._renderer.context_answers - known)

    def _unit(self, number: int, document: Document | BadRow, tokens: np.ndarray | BadRow) -> Unit:
        """A document's tokens within the length: text is split, anything else truncated and counted."""
        is_text = isinstance(document, Text)
        is_row = not is_text or document.opens  # type: ignore[union-attr]  # a text
        if isinstance(tokens, BadRow):
            return Unit(number, is_row, tokens)
        pieces = split(tokens, self._length) if is_text or self._splits_all else [tokens[: self._length]]
        if not (pieces[0][1:] >= 0).any():
            return Unit(number, is_row, BadRow("row.no_trained", length=self._length))
        for piece in pieces:
            piece[0] = min(piece[0], ~piece[0])
        return Unit(number, is_row, pieces, len(pieces) == 1 and len(tokens) > self._length)


def split(tokens: np.ndarray, length: int) -> list[np.ndarray]:
    """Pieces of `length` tokens. The last is shorter, but never a single token, which has nothing to train."""
    edges = [*range(0, max(1, len(tokens)), length), len(tokens)]
    if len(edges) > 2 and edges[-1] - edges[-2] == 1:
        edges[-2] -= 1
    return [tokens[start:end] for start, end in itertools.pairwise(edges)]


def in_order(tokeniser: Tokeniser, batches: Iterable[Rows], workers: int) -> Generator[Tokenised]:
    """What becomes of each batch, in their order; computed by so many processes, or by this one.

    Args:
        tokeniser: Does the work.
        batches: Read no further ahead than the processes need.
        workers: Processes; where one of them is ended from outside (for want of memory, say), this one does the rest.
    """
    if workers == 1:
        yield from map(tokeniser, batches)
        return
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[tuple[Rows, Future[Tokenised] | None]] = deque()
    pool = ProcessPoolExecutor(workers, context, _start, (tokeniser,))
    try:
        for batch in batches:
            waiting.append((batch, _sent(pool, batch)))
            if len(waiting) > _AHEAD * workers:
                yield _taken(tokeniser, *waiting.popleft())
        while waiting:
            yield _taken(tokeniser, *waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _sent(pool: ProcessPoolExecutor, batch: Rows) -> Future[Tokenised] | None:
    try:
        return pool.submit(_work, batch)
    except BrokenProcessPool:
        return None


def _taken(tokeniser: Tokeniser, batch: Rows, sent: Future[Tokenised] | None) -> Tokenised:
    try:
        return sent.result() if sent else tokeniser(batch)
    except BrokenProcessPool:
        sys.stderr.write(messages.text("prepare.alone") + "\n")
        return tokeniser(batch)


# ---- in a process of the pool

_tokeniser: Tokeniser


def _start(tokeniser: Tokeniser) -> None:
    global _tokeniser  # one for each process, as the pool's initialisers have it
    _tokeniser = tokeniser
    env.put(env.TOKENIZERS_PARALLELISM, "false")  # one thread each
    if sys.platform != "linux":
        _compat.hide_torch()  # a new interpreter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _work(batch: Rows) -> Tokenised:
    return _tokeniser(batch)
