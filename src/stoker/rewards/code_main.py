"""The program that runs a completion's code and its tests, in a process of its own. Standard library only, in one file.

Its input is one line of JSON, `[code, tests, word]`; its argument a descriptor, by which it says that it has begun:
what it runs cannot take that back. It runs the code, then the tests, and prints the word: code that ends before its
tests have passed does not say it by accident. The input is closed before the code runs. It is no lock: code that knows
this program finds the word in the frame that runs it, and code can change what its tests call, too.
"""

import contextlib
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Read, begin, run, say the word."""
    with contextlib.suppress(OSError):
        # Where memory ends, this is ended before the training.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    begun = int(sys.argv[1])
    os.write(begun, b"begun")
    os.close(begun)
    given = sys.stdin.readline()
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    code, tests, word = json.loads(given)
    del given
    names = {"__name__": "__main__"}
    for source in (code, *tests):
        exec(compile(source, "<completion>", "exec", dont_inherit=True), names)  # noqa: S102  # the point of it
    os.write(1, word.encode())


if __name__ == "__main__":
    main()
