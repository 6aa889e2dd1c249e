"""The only place that prints: data to stdout, talk to stderr, errors in one shape."""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from stoker import messages
from stoker.errors import EXIT_SURPRISE, EXIT_USER, StokerError, StokerErrors

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)


def data(text: str) -> None:
    """Print a command's answer, as it is."""
    print(text)


def data_json(value: Any) -> None:
    """Print a command's answer as JSON."""
    print(json.dumps(value, ensure_ascii=False, indent=1))


def table(rows: Table) -> None:
    """Print a table to stdout."""
    stdout.print(rows)


def talk(key: str, /, **fields: Any) -> None:
    """Say a sentence of the catalogue to stderr."""
    stderr.print(messages.text(key, **fields), markup=False)


def show_error(error: StokerError) -> None:
    """`error: what [code]`, the place, and the hint."""
    stderr.print(f"[bold red]{messages.text('error')}[/]:", end=" ")
    stderr.print(f"{error.what}  [{error.code}]", markup=False)
    if error.where:
        stderr.print(f"  {error.where}", markup=False)
    stderr.print()
    stderr.print(f"[bold]{messages.text('hint')}[/]:", end=" ")
    stderr.print(error.hint, markup=False)


def guarded(command: Callable[[], None]) -> int:
    """Run a command; a user's mistake is said in words (1), a surprise with its traceback (2)."""
    try:
        command()
    except StokerError as error:
        show_error(error)
        return EXIT_USER
    except StokerErrors as several:
        for index, error in enumerate(several.errors):
            if index:
                stderr.print()
            show_error(error)
        return EXIT_USER
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001  # the outermost net: everything unforeseen ends here, with its traceback
        traceback.print_exc()
        show_error(StokerError("STK900", reason=f"{type(error).__name__}: {error}"))
        return EXIT_SURPRISE
    return 0
