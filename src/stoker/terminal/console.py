"""The only place that prints: data to stdout, talk to stderr, errors in one shape.

With `--json`, stdout has one JSON value and nothing else: the answer, or an object whose `ok` is false.
What is printed may be a stranger's: no escape of it reaches the terminal (`plain_text`), and no markup of it is read.
"""

import contextlib
import errno
import io
import itertools
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.exceptions import TyperException

from stoker import env, messages
from stoker.errors import EXIT_SURPRISE, EXIT_USER, StokerError
from stoker.rundir.files import Unreadable
from stoker.terminal import usage
from stoker.terminal.plain_text import json_plain, plain
from stoker.terminal.wrapping import wrap

if TYPE_CHECKING:
    from rich.live import Live

_DISK = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}


class _Screen(Console):
    """Styles and cursor movements of our own are done; those inside a text are shown."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything that rich prints passes here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


# Without `emoji=False` rich turns the `:100:` of `run.yaml:100: key` into a picture.
stdout = _Screen(highlight=False, soft_wrap=True, emoji=False, markup=False)
stderr = _Screen(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)


def data(text: str) -> None:
    """Print a command's answer."""
    print(plain(text), file=stdout.file)


def sentence(text: str, indent: str = "", screen: Console = stdout) -> None:
    """Print a sentence of an answer: on a terminal in lines that end between words, elsewhere in one."""
    room = screen.width - 2 * len(indent)
    lines = wrap(plain(text), room) if screen.is_terminal and "\n" not in text else [text.rstrip()]
    for number, line in enumerate(lines):
        screen.print(f"{indent * min(number + 1, 2)}{line}")


def piece(text: str) -> None:
    """Print a piece of a streamed answer."""
    print(plain(text), end="", flush=True, file=stdout.file)


def ask() -> str:
    """A line from the user; empty at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return ""


def data_json(value: Any) -> None:
    """Print a command's answer as JSON."""
    print(json_plain(json.dumps(value, ensure_ascii=False, indent=1)))


def table(rows: Table) -> None:
    """Print a table to stdout."""
    stdout.print(rows)


def page(content: RenderableType) -> None:
    """Print styled lines to stdout."""
    stdout.print(content)


def live(screen: Console = stdout, *, transient: bool = False) -> "Live":
    """A page that is redrawn until its `with` block ends; one that is transient is gone then."""
    from rich.live import Live  # not needed for `stoker --help`

    return Live(console=screen, auto_refresh=False, transient=transient, vertical_overflow="visible")


def talk(key: str, /, **fields: Any) -> None:
    """Print a sentence of the catalogue to stderr."""
    sentence(messages.text(key, **fields), screen=stderr)


def wants_json() -> bool:
    """Whether the command was given `--json`; asked of the words, because they may be what cannot be read."""
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)


@contextlib.contextmanager
def captured() -> Iterator[list[str]]:
    """Collect the lines that other programs print to our stdout in this block, such as ssh; there after it."""
    lines: list[str] = []
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as taken:
        os.dup2(taken.fileno(), 1)
        try:
            yield lines
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            taken.seek(0)
            lines += taken.read().decode("utf-8", errors="replace").splitlines()


def declined(code: str = "STK550") -> NoReturn:
    """End a command that a person did not want after all, as was said; to a program it is an error with this code."""
    if wants_json():
        raise StokerError(code)
    sys.exit(EXIT_USER)


def show_error(error: StokerError) -> None:
    """`error: what [code]`, the place, and the hint."""
    _show_problem(error)
    stderr.print()
    _show_hint(error)


def _end_with(error: StokerError) -> int:
    """Show the error that ends a command, and return its exit code."""
    if wants_json():
        found = {} if error.result is None else {"result": error.result}
        data_json({"ok": False, "exit_code": error.exit_code, "error": error.as_dict(), **found})
    else:
        _show_errors(error.errors)
    return error.exit_code


def _show_errors(problems: list[StokerError]) -> None:
    """One after another; a hint that several in a row share is printed once after them."""
    for number, (_, alike) in enumerate(itertools.groupby(problems, key=lambda one: one.hint)):
        if number:
            stderr.print()
        together = list(alike)
        for problem in together:
            _show_problem(problem)
        stderr.print()
        _show_hint(together[-1])


def _show_problem(error: StokerError) -> None:
    _headed("error", "bold red", f"{error.what}  [{error.code}]")
    if error.where:
        stderr.print(f"  {env.masked(error.where)}")


def _show_hint(error: StokerError) -> None:
    _headed("hint", "bold", error.hint)


def _headed(key: str, style: str, text: str) -> None:
    """A sentence after its styled word, in lines as `sentence` has them."""
    head = messages.text(key)
    wraps = stderr.is_terminal and "\n" not in text
    first, *rest = wrap(plain(head + text), stderr.width) if wraps else [head + text]
    stderr.print(Text(head, style=style), first.removeprefix(head), sep="")
    for line in rest:
        stderr.print(line)


class StatusLine:
    """One line that is rewritten in a terminal; without one, a new line every few seconds."""

    _LINE_EVERY_SECONDS = 10.0

    def __init__(self) -> None:
        self._live = stderr.status("", spinner="line") if stderr.is_terminal else None
        self._printed_at = 0.0

    def __enter__(self) -> "StatusLine":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, line: str) -> None:
        """Show the newest line."""
        if self._live:
            self._live.update(escape(line))
        elif time.monotonic() - self._printed_at >= self._LINE_EVERY_SECONDS:
            self._printed_at = time.monotonic()
            stderr.print(line)


def status() -> StatusLine:
    """A line of progress on stderr."""
    return StatusLine()


@contextlib.contextmanager
def busy(key: str, /) -> Iterator[None]:
    """Show a sentence of the catalogue as long as the `with` block takes."""
    with status() as line:
        line.show(messages.text(key))
        yield


def _misread(error: Any) -> int:
    if usage.asks_for_help(error):
        data(error.format_message())
        return 0
    return _end_with(usage.explain(error))


def guarded(command: Callable[[], None]) -> int:
    """Run a command and return its exit code: 1 for a user's error, 2 for a surprise, with its traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console without a character shows `?` instead
    stdout.stderr = wants_json()  # what is said beside the JSON is talk
    try:
        return _tried(command)
    finally:
        stdout.stderr = False


def _tried(command: Callable[[], None]) -> int:
    try:
        command()
    except StokerError as error:
        return _end_with(error)
    except TyperException as misread:
        return _misread(misread)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as surprise:  # noqa: BLE001  # the outermost handler of unexpected errors
        return _unforeseen(surprise)
    return 0


def _unforeseen(error: Exception) -> int:
    """A disk that is full, read-only or out of reach is an error the user can fix; everything else is a surprise."""
    if isinstance(error, Unreadable):
        return _end_with(error.named())
    if isinstance(error, OSError) and error.errno in _DISK and error.filename:
        return _end_with(StokerError("STK507", path=error.filename, reason=error.strerror))
    sys.stderr.write(plain("".join(traceback.format_exception(error))))
    problem = StokerError("STK900", reason=f"{type(error).__name__}: {error}")
    problem.exit_code = EXIT_SURPRISE
    return _end_with(problem)
