"""Tries flash_attn on this machine before a plan counts on it, once per combination of versions."""

import contextlib
import tempfile
from pathlib import Path

from stoker import env
from stoker.errors import StokerError
from stoker.facts.machine import Machine
from stoker.launch import programs
from stoker.rundir import files

_FLASH = "flash_attn"
_OF_THE_MOMENT = ("out of memory", "busy or unavailable")
"""What another program's use of the card is answered with; it says nothing of the kernel."""


def tried(machine: Machine) -> Machine:
    """The machine, without a flash_attn that does not run on its cards; why is in `broken`."""
    if machine.kind != "cuda" or _FLASH not in machine.packages or "torch" not in machine.packages:
        return machine
    reason = _kept(machine)
    if reason is None:
        reason = _try()
        if not any(words in reason for words in _OF_THE_MOMENT):
            with contextlib.suppress(OSError):  # a home that is full or may not be written
                files.write_json(_file(), {**_answers(), _key(machine): reason})
    if not reason:
        return machine
    packages = {name: version for name, version in machine.packages.items() if name != _FLASH}
    return machine.model_copy(update={"packages": packages, "broken": {_FLASH: reason}})


def _try() -> str:
    with tempfile.TemporaryDirectory(prefix="stoker-") as name:
        try:
            programs.run_on_folder("attention_check", Path(name))
        except StokerError as error:  # a kernel of another ABI may end the process
            return str(error.fields["reason"])
        return str(files.read_object(Path(name) / "attention_check.json")[_FLASH])


def _kept(machine: Machine) -> str | None:
    reason = _answers().get(_key(machine))
    return str(reason) if reason is not None else None


def _answers() -> dict[str, object]:
    try:
        return files.read_object(_file())
    except (OSError, StokerError):
        return {}


def _file() -> Path:
    return env.home() / "attention.json"


def _key(machine: Machine) -> str:
    versions = [machine.packages["torch"], machine.packages[_FLASH], machine.driver]
    return " ".join([*versions, *sorted({device.name for device in machine.devices})])
