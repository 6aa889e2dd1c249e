"""The supervisor's reasons in words."""

from stoker import messages

_WORDS = {
    "hang": "reason.hang",
    "launch": "reason.launch",
    "memory": "reason.memory",
    "device": "reason.device",
    "machine": "reason.machine",
    "surprise": "reason.surprise",
    "lost": "reason.lost",
    "dead": "reason.dead",
    "silent": "reason.silent",
    "node": "reason.node",
    "away": "reason.away",
    "bad_step": "reason.bad_step",
    "time": "reason.time",
    "money": "reason.money",
    "deadline": "reason.deadline",
    "notice": "reason.notice",
    "user": "reason.user",
    "signal": "reason.signal",
    "asked": "reason.asked",
    "store": "reason.store",
}


def reason(word: str) -> str:
    """A reason of the supervisor in words; signals and error codes stand for themselves."""
    return messages.text(_WORDS[word]) if word in _WORDS else word
