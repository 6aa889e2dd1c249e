"""What a sample of a run was asked, and what a judge said of its answers, as people read it."""

from typing import Any

from stoker import messages
from stoker.rundir import files

_DOUBTS = {"contradicted": "eval.contradicted", "unjudged": "eval.unjudged"}


def asked(sample: dict[str, Any]) -> str:
    """Of a conversation its turns, without the marks of its template; else the text."""
    try:
        said = [messages.text(f"turn.{one['role']}", text=one["content"]) for one in sample["turns"]]
    except files.FOREIGN:
        said = []
    return "\n".join(said) or str(sample.get("prompt", ""))


def win_rate(found: dict[str, Any]) -> str:
    """What a judge said; nothing of a record that is not ours."""
    try:
        shares = {key: f"{found[key]:.1%}" for key in ("rate", "low", "high")}
        counts = {key: found[key] for key in ("judge", "wins", "ties", "losses", "same")}
        rest = {
            key: f"{found[key]:.0f}" for key in ("characters_before", "characters_after", "cut_before", "cut_after")
        }
        said = [messages.text("eval.win_rate", **shares, **counts), messages.text("eval.characters", **rest)]
        doubts = [messages.text(sentence, count=found[key]) for key, sentence in _DOUBTS.items() if found[key]]
    except files.FOREIGN:
        return ""
    return "\n".join([*said, *doubts])
