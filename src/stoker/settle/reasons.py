"""The supervisor's reasons in the user's language."""

from stoker import messages


def reason(word: str) -> str:
    """The sentence for a reason; signals and error codes are shown as they are."""
    key = f"reason.{word}"
    return messages.text(key) if messages.known(key) else word
