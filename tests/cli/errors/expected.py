"""What must be said about a mistake."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Expected:
    """One error as it must be: its place, and words that its English sentences must hold."""

    code: str
    where: str
    says: tuple[str, ...] = ()


def err(code: str, where: str = "", *says: str) -> Expected:
    return Expected(code, where, says)
