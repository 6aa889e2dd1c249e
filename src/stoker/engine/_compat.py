"""Workarounds for how other packages behave, each with the condition under which it goes. Nothing else is patched."""

import sys


def hide_torch() -> None:
    """Make this process believe that torch is not installed; only for programs that never compute with it.

    transformers 5.22 imports torch to open a tokenizer when it is there: 3 of `prepare`'s 5 start-up seconds.
    Remove when `AutoTokenizer` no longer does.
    """
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to say "not importable"
