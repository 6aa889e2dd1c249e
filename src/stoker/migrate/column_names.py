"""What a source's `columns` says of axolotl's conversations. LLaMA-Factory's are read by `config/dataset_info.py`."""

from typing import Any

_SPELLINGS = (("role", "content"), ("from", "value"))
"""What a message may call who speaks and what is said without being asked."""


def conversation(messages: str, role: str, content: str) -> dict[str, Any]:
    """The columns of conversations; empty where rows are read so by themselves.

    Args:
        messages: The column with the list of messages.
        role: What a message calls who speaks; empty where nothing is said, as the next one.
        content: What it calls the text.
    """
    spelled = (role or "role", content or "content")
    keys = {} if spelled in _SPELLINGS else dict(zip(_SPELLINGS[0], spelled, strict=True))
    # Rows may have `messages` beside a list of another name, and that would go first.
    return {} if messages == "messages" and not keys else {"messages": messages, **keys}


def names(columns: dict[str, Any]) -> list[str]:
    """The names of the user's, as a sentence quotes them."""
    flat = {**columns, **columns.get("roles", {})}
    return [f"`{name}`" for role, name in flat.items() if role != "roles"]
