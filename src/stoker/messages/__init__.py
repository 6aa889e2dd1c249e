"""Every sentence a person reads, in English and Simplified Chinese.

Changes when a sentence changes. Callers name a key and give fields; they never write prose.
"""

import functools
import locale
from typing import Any

from stoker import env
from stoker.messages.en import ENGLISH
from stoker.messages.zh import CHINESE

CATALOGUES: dict[str, dict[str, str]] = {"en": ENGLISH, "zh": CHINESE}


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


def text(key: str, /, **fields: Any) -> str:
    """The sentence for `key` in the user's language, with its fields filled in."""
    return CATALOGUES[language()][key].format(**fields)
