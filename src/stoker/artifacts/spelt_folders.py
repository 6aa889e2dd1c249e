"""Folders of this machine as texts spell them: what nobody is to see in a page or a published file.

Knows no text and no run.
"""

import re
from pathlib import Path, PureWindowsPath


def spellings(folder: Path | str) -> set[str]:
    """A folder as it is named and where its links lead; none of a root, which is part of any text."""
    path = Path(folder)
    found = {str(folder), *([str(path.resolve())] if path.is_absolute() else [])}
    return {one for one in found if len(PureWindowsPath(one).parts) > 1}


def pattern(spelling: str) -> str:
    """A regular expression of it: on Windows with any letters and separators, also as JSON and Python double them."""
    if not PureWindowsPath(spelling).drive:
        return re.escape(spelling)
    between = r"[\\/]+"
    return f"(?i:{between.join(map(re.escape, re.split(between, spelling)))})"
