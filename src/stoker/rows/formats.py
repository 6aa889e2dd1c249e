"""Row formats: detection by keys (`config/layouts.py`), and from a row to a document. No names of datasets.

A bad row raises `BadRow` with a reason of the catalogue. Knows nothing of tokenizers beyond whether there is a chat
template: with one, alpaca and prompt/completion rows are conversations of one turn; without, plain text. A format of
another package (`stoker.formats`) names an object like `PluginFormat`; built-in formats are tried first.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stoker import messages, plugins
from stoker.config import columns as column_names
from stoker.config import layouts
from stoker.config.columns import Columns
from stoker.config.layouts import RowFormat
from stoker.config.objectives import ObjectiveFacts
from stoker.plugins import Plugin
from stoker.rows import named_columns, preferences, prompt_rows, row_values, turns
from stoker.rows.prompt_rows import PromptRow
from stoker.rows.row_values import BadRow, Row
from stoker.rows.turns import Conversation

Message = dict[str, Any]

ALPACA_PLAIN = "### Instruction:\n{instruction}\n\n### Response:\n"
ALPACA_PLAIN_INPUT = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
"""The prompt of an alpaca row where the tokenizer has no chat template: the layout Alpaca itself was trained with."""

PLAIN_WITHOUT_TEMPLATE = ("alpaca", "prompt_completion", layouts.PREFERENCE, layouts.LABELLED)


@dataclass(frozen=True)
class Text:
    """Running text; all of it is trained."""

    text: str
    opens: bool = True
    """The document starts here."""
    closes: bool = True
    """The document ends here."""


@dataclass(frozen=True)
class Pair:
    """A prompt and what should follow it; the latter is trained."""

    prompt: str
    completion: str


@dataclass(frozen=True)
class Chat:
    """A conversation as a package's format gives it: messages as OpenAI writes them; the assistant's are trained."""

    messages: list[Message]
    tools: list[Any] | None = None


@dataclass(frozen=True)
class Preference:
    """Two documents that begin alike: the one that ends better, then the other."""

    chosen: Pair | Conversation
    rejected: Pair | Conversation


@dataclass(frozen=True)
class Judged:
    """A document whose answer is good or bad."""

    answer: Pair | Conversation
    good: bool


Document = Text | Pair | Conversation | Preference | Judged | PromptRow


class PluginFormat(Protocol):
    """What an entry point of `stoker.formats` names; the entry point's name is the format's."""

    keys: Sequence[Sequence[str]]
    """Alternatives: a row that has every key of one of them is recognised."""
    needs_template: bool
    """Whether its rows can be read only with a chat template."""

    def document(self, row: Row, *, has_template: bool) -> Text | Pair | Chat:
        """A row as `Text`, `Pair` or `Chat`; a ValueError says why the row cannot be used."""


@dataclass(frozen=True)
class Layout:
    """How the rows of a file are laid out, and why we think so."""

    format: str
    reason: str
    """A key of the catalogue."""
    keys: list[str] = field(default_factory=list)
    package: str | None = None
    """Name and version of the package that the format is from, where it is not built in."""
    columns: Columns | None = None
    """`data.columns`, where the run file names them."""

    @property
    def needs_template(self) -> bool:
        """Whether such rows need a chat template."""
        return self.format != layouts.PROMPT and _row_format(self.format).needs_template


def forced(name: str) -> Layout:
    """The layout that `data.format` names."""
    package = None if name in layouts.BUILT_IN else _plugin(name).source
    return Layout(name, "detect.forced", package=package)


def by_columns(columns: Columns) -> Layout:
    """The layout that `data.columns` makes."""
    named, format_ = column_names.of_rows(columns), column_names.layout_of(columns)
    assert format_ is not None
    return Layout(format_, "detect.columns", list(named.values()), columns=columns)


def stored(given: dict[str, Any]) -> Layout:
    """A layout from JSON."""
    named = given.get("columns")
    return Layout(**{**given, "columns": Columns.model_validate(named) if named else None})


def layout(first: Sequence[Row], columns: Columns | None, asked: ObjectiveFacts) -> Layout | None:
    """The layout of rows for an objective, by these first ones; None where it can train none of them.

    Args:
        first: The rows.
        columns: `data.columns`.
        asked: An objective that compares, judges or generates answers takes nothing but rows for that.
    """
    if asked.prompts:
        asks = columns or not first or any(prompt_rows.asks(row) for row in first)
        return Layout(layouts.PROMPT, "detect.prompts", columns=columns) if asks else None
    wanted = layouts.PREFERENCE if asked.pairs else layouts.LABELLED if asked.labels else None
    if columns:
        named = by_columns(columns)
        return named if wanted in (None, named.format) else None
    if wanted is None:
        return detect(first)
    keys = next((keys for row in first if (keys := layouts.BUILT_IN[wanted].match(row))), None)
    return Layout(wanted, "detect.keys", list(keys)) if keys else None


def detect(first: Sequence[Row]) -> Layout | None:
    """The layout of the first row whose keys are recognised; packages are loaded only where no built-in matches."""
    for row in first:
        if found := layouts.recognise(row):
            return Layout(found[0].name, "detect.keys", list(found[1]))
    for plugin in plugins.offered(plugins.FORMATS).values():
        for row in first:
            if keys := _row_format(plugin.name).match(row):
                return Layout(plugin.name, "detect.keys", list(keys), plugin.source)
    return None


def parse(row: Any, format_: str, *, has_template: bool) -> Document:
    """A row as a document."""
    if not isinstance(row, dict):
        raise BadRow("row.not_object", kind=type(row).__name__)
    if format_ in _READERS:
        row_values.refuse_media(row)
        if format_ not in (layouts.PREFERENCE, layouts.LABELLED, layouts.PROMPT):
            row_values.refuse_preferences(row)
        return _READERS[format_](row, has_template)
    return _plugin_document(row, _plugin(format_), has_template=has_template)


def document(value: Any, layout: Layout | None, *, has_template: bool) -> Document | BadRow:
    """A row as it was read as a document, or why it cannot be one."""
    if isinstance(value, Text | BadRow):
        return value
    try:
        if layout and layout.columns and isinstance(value, dict):
            value = named_columns.renamed(value, layout.columns)
        return parse(value, layout.format if layout else "text", has_template=has_template)
    except BadRow as bad:
        return bad


def words(document: Document | BadRow) -> list[str]:
    """All texts of a document."""
    if isinstance(document, Preference):
        return [*words(document.chosen), *words(document.rejected)]
    if isinstance(document, Judged):
        return words(document.answer)
    if isinstance(document, PromptRow):
        return [document.asked] if isinstance(document.asked, str) else document.asked.words
    if isinstance(document, Conversation):
        return document.words
    if isinstance(document, Pair):
        return [document.prompt, document.completion]
    return [document.text] if isinstance(document, Text) else []


# ---- formats of other packages


@functools.cache
def _plugin(name: str) -> Plugin:
    return plugins.offered(plugins.FORMATS)[name]


@functools.cache
def _loaded(name: str) -> PluginFormat:
    plugin = _plugin(name)
    loaded: PluginFormat = plugin.load()
    missing = [word for word in ("keys", "needs_template", "document") if not hasattr(loaded, word)]
    if missing:
        raise plugin.broken(messages.text("plugin.lacks", missing=[f"`{word}`" for word in missing]))
    return loaded


def _row_format(name: str) -> RowFormat:
    if name in layouts.BUILT_IN:
        return layouts.BUILT_IN[name]
    loaded = _loaded(name)
    return RowFormat(name, tuple(map(tuple, loaded.keys)), loaded.needs_template)


def _plugin_document(row: Row, plugin: Plugin, *, has_template: bool) -> Document:
    try:
        document = _loaded(plugin.name).document(row, has_template=has_template)
    except Exception as error:  # someone else's code may raise anything: this row is bad
        problem = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise BadRow("row.plugin", problem=problem, package=plugin.source) from error
    if isinstance(document, Chat):
        return turns.conversation(document.messages, document.tools)
    if isinstance(document, Pair):
        return Pair(row_values.checked("prompt", document.prompt), row_values.filled("completion", document.completion))
    if isinstance(document, Text):
        return Text(row_values.filled("text", document.text))
    raise plugin.broken(messages.text("plugin.wrong_type", found=type(document).__name__, expected="Text, Pair, Chat"))


# ---- built-in formats


def _plain_text(row: Row) -> Text:
    return Text(row_values.text(row, "text"))


def _chat(row: Row, key: str) -> Conversation:
    tools, functions = row.get("tools"), row.get("functions")
    if tools and functions and tools != functions:
        raise BadRow("row.differ", first="tools", second="functions")
    return turns.conversation(row_values.value(row, key, list, "list"), tools or functions, row.get("system"))


def _alpaca(row: Row, *, has_template: bool) -> Document:
    instruction, output = row_values.text(row, "instruction"), row_values.text(row, "output")
    extra = row_values.checked("input", row.get("input") or "")
    system = row_values.checked("system", row.get("system") or "")
    if not has_template:
        if row.get("history") or system:
            raise BadRow("row.needs_template")
        layout = ALPACA_PLAIN_INPUT if extra.strip() else ALPACA_PLAIN
        return Pair(layout.format(instruction=instruction, input=extra), output)
    conversation = [{"role": "system", "content": system}] if system else []
    question = f"{instruction}\n{extra}" if extra.strip() else instruction
    return turns.conversation(conversation + turns.earlier(row) + turns.exchange(question, output))


def _prompt_completion(row: Row, *, has_template: bool) -> Document:
    prompt_key, completion_key = _pair(row) or layouts.PAIRS[0]
    prompt, completion = row_values.text(row, prompt_key), row_values.text(row, completion_key)
    if prompt_key == "question" and row.get("context"):
        raise BadRow("row.context", key="context")
    if has_template:
        return turns.conversation(turns.exchange(prompt, completion), system=row.get("system"))
    if row.get("system"):
        raise BadRow("row.needs_template")
    return Pair(prompt, completion)


def _pair(row: Row) -> tuple[str, str] | None:
    return next((pair for pair in layouts.PAIRS if pair[0] in row and pair[1] in row), None)


def _preference(row: Row, *, has_template: bool) -> Preference:
    if has_template:
        return Preference(*preferences.conversations(row))
    prompt, chosen, rejected = preferences.texts(row)
    return Preference(Pair(prompt, chosen), Pair(prompt, rejected))


def _labelled(row: Row, *, has_template: bool) -> Judged:
    good = row_values.label(row)
    return Judged(preferences.judged_conversation(row) if has_template else Pair(*preferences.judged_text(row)), good)


def fitting(document: Document | BadRow, asked: ObjectiveFacts) -> Document | BadRow:
    """A document that an objective can train; else a bad row, as where it judges answers and the objective does not."""
    if asked.prompts and not isinstance(document, BadRow):
        return document if isinstance(document, PromptRow) else BadRow("row.no_prompt")
    if isinstance(document, BadRow):
        is_other = document.reason == "row.label_value" and not asked.labels  # the column may mean something else
        return BadRow("row.label_word", **document.fields) if is_other else document
    if isinstance(document, Preference) == asked.pairs and isinstance(document, Judged) == asked.labels:
        return document
    if asked.pairs or asked.labels:
        return BadRow("row.no_preference" if asked.pairs else "row.no_label")
    return BadRow("row.preference", key="chosen" if isinstance(document, Preference) else "label")


_READERS: dict[str, Callable[[Row, bool], Document]] = {
    "text": lambda row, _: _plain_text(row),
    "messages": lambda row, _: _chat(row, "messages"),
    "sharegpt": lambda row, _: _chat(row, "conversations"),
    layouts.PROMPT: lambda row, has_template: prompt_rows.read(row, has_template=has_template),
    layouts.PREFERENCE: lambda row, has_template: _preference(row, has_template=has_template),
    layouts.LABELLED: lambda row, has_template: _labelled(row, has_template=has_template),
    "alpaca": lambda row, has_template: _alpaca(row, has_template=has_template),
    "prompt_completion": lambda row, has_template: _prompt_completion(row, has_template=has_template),
}
"""How each built-in format of `layouts.FORMATS` is read, and rows of any of them as prompts."""
