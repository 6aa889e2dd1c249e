"""The digest of the code that decides bits: words about it do not count, the code does."""

from pathlib import Path

import stoker
from stoker.facts import own_code

CODE = '''"""A module."""

RATE = 2  # why


def twice(x):
    """Doubles."""
    text = "a # b"
    return RATE * x
'''


def test_comments_docstrings_and_empty_lines_do_not_count() -> None:
    other = (
        CODE.replace("A module", "The module")
        .replace("  # why", "")
        .replace("Doubles", "Twice it")
        .replace("\n\n", "\n")
    )
    assert own_code.bare(other) == own_code.bare(CODE)
    assert own_code.bare(CODE).splitlines() == [
        "RATE = 2",
        "def twice(x):",
        '    text = "a # b"',
        "    return RATE * x",
    ]


def test_code_counts() -> None:
    for before, after in (("RATE = 2", "RATE = 3"), ("a # b", "a # c"), ("    return", "    if x:\n        return")):
        assert own_code.bare(CODE.replace(before, after)) != own_code.bare(CODE)


def test_every_module_is_there() -> None:
    package = Path(stoker.__file__).parent
    assert all((package / f"{module}.py").is_file() for module in own_code.DECIDES_BITS)
