"""Turns exceptions of third-party readers on bad files into errors with a code.

Only calls of transformers, PEFT and the like belong under `named`: around our own code it would hide our bugs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from stoker import messages
from stoker.errors import StokerError
from stoker.rundir import files

_RAISED = (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, SafetensorError)
"""What transformers and PEFT raise for a bad file."""
_MISFITS = ("ignore_mismatched_sizes", "size mismatch")
"""Signs of a RuntimeError about weights that do not fit; all others are about memory or the device."""
_WEIGHTS = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json")


@contextmanager
def named(code: str, **fields: Any) -> Iterator[None]:
    """Raise reading errors in the block as this code, with the reason."""
    try:
        yield
    except _RAISED as error:
        raise StokerError(code, **fields, reason=files.reason(error)) from error
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _MISFITS):
            raise
        raise StokerError(code, **fields, reason=files.reason(error)) from error


@contextmanager
def named_whatever(code: str, **fields: Any) -> Iterator[None]:
    """The same for readers that raise anything: `tokenizers` raises `Exception`, a chat template whatever it likes."""
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        raise StokerError(code, **fields, reason=files.reason(error)) from error


def require_safetensors(folder: Path) -> None:
    """Require safetensors weights in a folder; without them readers would fall back to pickles."""
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise StokerError("STK512", path=folder, reason=messages.text("weights.pickles"))
