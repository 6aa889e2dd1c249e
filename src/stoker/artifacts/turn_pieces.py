"""What a chat template writes around the turns of a conversation, found from what it renders, and the same in Go.

Ollama renders conversations by a template of Go's `text/template`. Nothing is looked up by a model's name: the pieces
are cut out of rendered conversations whose every word is unique, then compared with every other rendered conversation.
A template that is more than such pieces (a clock, a system prompt in the last turn) has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class RenderedConversation:
    """A conversation and what the tokenizer's chat template makes of it, ending with the prompt for an answer."""

    messages: Messages
    text: str | None
    """None: the template refuses it."""
    ids: list[int]
    """The text's tokens, as the model was trained."""


@dataclass(frozen=True)
class Around:
    """What stands before and after one message."""

    before: str
    after: str


@dataclass(frozen=True)
class TurnPieces:
    """All that a template writes but the messages themselves."""

    opening: str
    """At the beginning of a conversation without a system prompt: a token, or a system prompt of the template's own."""
    system: Around | None
    """None: the template refuses a system prompt."""
    first_user: str
    """Before the user's turn that follows a system prompt."""
    user: Around
    assistant: Around
    answer: str
    """After the last user's turn: the answer begins here."""

    def render(self, messages: Messages) -> str:
        """A conversation, as the Go template renders it."""
        has_system = self.system is not None and any(one["role"] == "system" for one in messages)
        said, after_system = ["" if has_system else self.opening], False
        for one in messages:
            around = {"system": self.system, "user": self.user, "assistant": self.assistant}[one["role"]]
            if around is not None:
                folded = after_system and one["role"] == "user"
                said += [self.first_user if folded else around.before, one["content"], around.after]
            after_system = one["role"] == "system"
        return "".join([*said, self.answer])

    def without_start(self, token: str) -> "TurnPieces":
        """The same for a program that writes the start token itself."""
        system = self.system and replace(self.system, before=self.system.before.removeprefix(token))
        return replace(self, opening=self.opening.removeprefix(token), system=system)

    def go_template(self) -> str:
        """The template in Go's language, with the names that Ollama gives it.

        Pieces are string literals: no white space of theirs is trimmed, and a Modelfile keeps every character.
        """
        folds = self.system is not None and self.first_user != self.user.before
        before_user = f"{{{{ if $system }}}}{_literal(self.first_user)}{{{{ $system = false }}}}{{{{ else }}}}"
        user = f"{before_user}{_literal(self.user.before)}{{{{ end }}}}" if folds else _literal(self.user.before)
        system = opening = ""
        if self.system is not None:
            system = f"{_literal(self.system.before)}{{{{ .Content }}}}{_literal(self.system.after)}"
            opening = "{{- if not .System }}" + _literal(self.opening) + "{{ end }}"
        lines = [
            *(["{{- $system := false }}"] if folds else []),
            *([opening or _literal(self.opening)] if self.opening else []),
            "{{- range .Messages }}",
            f'{{{{- if eq .Role "system" }}}}{system}' + ("{{ $system = true }}" if folds else ""),
            f'{{{{- else if eq .Role "user" }}}}{user}{{{{ .Content }}}}{_literal(self.user.after)}',
            f'{{{{- else if eq .Role "assistant" }}}}{_literal(self.assistant.before)}{{{{ .Content }}}}'
            f"{_literal(self.assistant.after)}",
            "{{- end }}",
            f"{{{{- end }}}}{_literal(self.answer)}",
        ]
        return "\n".join(lines)


PLAIN = "{{ .Prompt }}"
"""Ollama's template for a model that continues a text."""


def _literal(text: str) -> str:
    """A Go string literal as an action. Ollama drops what is not printable from a Modelfile, so that is escaped."""
    return f'{{{{ "{"".join(map(_escaped, text))}" }}}}' if text else ""


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return {"\n": "\\n", "\t": "\\t"}.get(character, f"\\U{ord(character):08x}")


# ---- finding the pieces

_WITH_SYSTEM = ("system", "user")
_NEEDED = (("user",), ("user", "assistant", "user"), _WITH_SYSTEM)


def find(samples: Sequence[RenderedConversation], ends: Sequence[str]) -> TurnPieces | None:
    """The pieces that make every sample, or None.

    Args:
        samples: Each message's content occurs in no other place of its text; among them the three shapes below.
        ends: Texts of the tokens that end a turn: where a turn's text is cut off from the next one's.
    """
    by_roles: dict[tuple[str, ...], RenderedConversation] = {}
    for sample in samples:
        by_roles.setdefault(tuple(one["role"] for one in sample.messages), sample)
    asked, turns, told = (_between(by_roles[roles]) for roles in _NEEDED)
    if asked is None or turns is None or (told is None and by_roles[_WITH_SYSTEM].text is not None):
        return None
    opened, closed = asked
    before_user, after_answer = _cut_before(turns[2], opened, ends)
    after_user = _cut_after(_shared_start(turns[1], closed), ends)
    system, first_user = None, before_user
    if told is not None:
        folds = not told[1].endswith(before_user)
        system = Around(told[0], "" if folds else told[1].removesuffix(before_user))
        first_user = told[1] if folds else before_user
    found = TurnPieces(
        opening=opened.removesuffix(before_user),
        system=system,
        first_user=first_user,
        user=Around(before_user, after_user),
        assistant=Around(turns[1].removeprefix(after_user), after_answer),
        answer=closed.removeprefix(after_user),
    )
    return found if all(_makes(found, sample) for sample in samples) else None


def _makes(pieces: TurnPieces, sample: RenderedConversation) -> bool:
    if sample.text is None:
        return pieces.system is None and any(one["role"] == "system" for one in sample.messages)
    return pieces.render(sample.messages) == sample.text


def _between(sample: RenderedConversation) -> list[str] | None:
    """The text before, between and after the messages; None where a message is not in it once, in order."""
    parts, rest = [], sample.text
    if rest is None:
        return None
    for one in sample.messages:
        if rest.count(one["content"]) != 1:
            return None
        part, _, rest = rest.partition(one["content"])
        parts.append(part)
    return [*parts, rest]


def _cut_before(text: str, other: str, ends: Sequence[str]) -> tuple[str, str]:
    """The end of a text that is also the end of the other, and what precedes it: the end of a turn and white space."""
    shared = _shared_start(text[::-1], other[::-1])[::-1]
    last = max((shared.rfind(end) + len(end) for end in ends if end in shared), default=0)
    shared = shared[last:].lstrip() or shared[last:]
    return shared, text.removesuffix(shared)


def _cut_after(text: str, ends: Sequence[str]) -> str:
    """The beginning of a text up to the first end of a turn, with the white space that follows; all without one."""
    cuts = [text.find(end) + len(end) for end in ends if end in text]
    if not cuts:
        return text
    rest = text[min(cuts) :]
    return text[: len(text) - len(rest.lstrip())]


def _shared_start(one: str, other: str) -> str:
    return "".join(pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
