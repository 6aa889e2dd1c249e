"""Every sentence a person reads, in English and Simplified Chinese.

Changes when a sentence changes. Callers name a key and give fields; they never write prose.
"""

import functools
import locale
import string
from collections.abc import Callable, Sequence
from typing import Any

from stoker import env
from stoker.messages.en import ENGLISH
from stoker.messages.zh import CHINESE

CATALOGUES: dict[str, dict[str, str]] = {"en": ENGLISH, "zh": CHINESE}
MessageCallback = Callable[..., None]
"""Called with a key of the catalogue and its fields, by functions that print nothing themselves."""
_LISTED = 5


@functools.cache
def _language(setting: str) -> str:
    tag = setting
    if not tag:
        # Windows reports no LANG; the locale module asks the system there.
        tag = env.read(env.LC_ALL) or env.read(env.SYSTEM_LANG)
        tag = tag or (locale.getlocale()[0] or "")
    return "zh" if tag.lower().startswith(("zh", "chinese")) else "en"


def language() -> str:
    """`en` or `zh`: STOKER_LANG decides, else the locale."""
    return _language(env.read(env.LANG))


def known(key: str) -> bool:
    """Whether there is a sentence for `key`."""
    return key in ENGLISH


def named(kind: str, key: str) -> str:
    """The name of one of a kind (`part.weights`), else its key."""
    return text(f"{kind}.{key}") if known(f"{kind}.{key}") else key


def text(key: str, /, **fields: Any) -> str:
    """The sentence for `key` in the user's language, with its fields filled in."""
    return in_language(language(), key, **fields)


def shortened(names: Sequence[str]) -> list[str]:
    """Names for a sentence: of many the first, and how many more."""
    more = [f"+ {len(names) - _LISTED}"] if len(names) > _LISTED else []
    return [*names[:_LISTED], *more]


def in_language(language: str, key: str, /, **fields: Any) -> str:
    """The sentence for `key` in a language, with its fields filled in."""
    catalogue = CATALOGUES[language]
    return _Filled(catalogue["list.comma"]).vformat(catalogue[key], (), fields)


class _Filled(string.Formatter):
    """As `str.format`; `{count:file|files}` is the form for a count, and a list is joined as the language does."""

    def __init__(self, comma: str) -> None:
        self._comma = comma

    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            one, _, many = format_spec.partition("|")
            return one if str(value) == "1" else many
        if isinstance(value, list | tuple):
            return self._comma.join(str(item) for item in value)
        return str(super().format_field(value, format_spec))
