"""A run directory that is renamed while it trains (`mv runs/v runs/w`): a link at its old path leads to it.

Trainer, supervisor and copies know the run directory by its path; nothing of theirs makes it again.
"""

import contextlib
import os
import sys
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

    def _path_of(descriptor: int) -> str:
        return fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode("utf-8", "surrogateescape")
else:

    def _path_of(descriptor: int) -> str:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())


class RenamedFolder:
    """Keeps a folder reachable by the path it was opened with; Windows renames no folder that is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = None if sys.platform == "win32" else os.open(path, os.O_RDONLY)
        self._is_linked = False

    def follow(self) -> None:
        """Link the old path to the folder where it is no longer there; nothing where it was deleted or moved away."""
        if self._descriptor is None or self._path.exists():
            return
        with contextlib.suppress(OSError):
            path = Path(_path_of(self._descriptor))
            if os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                self._unlink()
                self._path.symlink_to(path, target_is_directory=True)
                self._is_linked = True

    def close(self) -> None:
        """Remove the link."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        with contextlib.suppress(OSError):
            self._unlink()

    def _unlink(self) -> None:
        if self._is_linked and self._path.is_symlink():
            self._path.unlink()
