"""Keys pressed while a page is shown: one at a time, without Enter, without waiting."""

import sys
from typing import Any

if sys.platform == "win32":
    import msvcrt

    class _WindowsKeyboard:
        """The keyboard, if standard input is a terminal."""

        def __enter__(self) -> "_WindowsKeyboard":
            return self

        def __exit__(self, *_: object) -> None:
            return

        def pressed(self) -> str:
            """The key pressed since the last call; empty for none."""
            return msvcrt.getwch() if sys.stdin.isatty() and msvcrt.kbhit() else ""

    Keyboard = _WindowsKeyboard

else:
    import select
    import termios
    import tty

    class _TerminalKeyboard:
        """The keyboard, if standard input is a terminal."""

        def __init__(self) -> None:
            self._before: list[Any] = []

        def __enter__(self) -> "_TerminalKeyboard":
            if sys.stdin.isatty():
                self._before = termios.tcgetattr(sys.stdin)
                tty.setcbreak(sys.stdin)
            return self

        def __exit__(self, *_: object) -> None:
            if self._before:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

        def pressed(self) -> str:
            """The key pressed since the last call; empty for none."""
            if not self._before or not select.select([sys.stdin], [], [], 0)[0]:
                return ""
            return sys.stdin.read(1)

    Keyboard = _TerminalKeyboard
