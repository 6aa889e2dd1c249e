"""A disk that refuses to list a folder or to read a file for now, as a network disk does whose server is away."""

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest


def unlistable(patch: pytest.MonkeyPatch, folder: Path, number: int = errno.EIO) -> None:
    """From now on the folder cannot be listed."""
    for call in ("scandir", "listdir"):
        plain = getattr(os, call)
        patch.setattr(os, call, _refusing(plain, folder, number))


def unreadable(patch: pytest.MonkeyPatch, file: Path) -> None:
    """From now on the file cannot be opened."""
    patch.setattr(io, "open", _refusing(io.open, file, errno.EIO))


def _refusing(plain: Any, path: Path, number: int) -> Any:
    def call(asked: Any = ".", *words: Any, **options: Any) -> Any:
        if not isinstance(asked, int) and Path(asked) == path:
            raise OSError(number, os.strerror(number), str(asked))
        return plain(asked, *words, **options)

    return call
