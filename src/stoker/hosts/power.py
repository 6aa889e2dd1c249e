"""Switches a host on and off: by the provider's API where there is one, else by the platform's own command there.

Only commands that can be undone. The irreversible ones are for the end of a run that asks for it (`settle/meter.py`).
"""

import json
import shlex
import time

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.platforms import Verb
from stoker.hosts import autodl
from stoker.hosts.box_facts import Disk, Kept
from stoker.hosts.known import Host
from stoker.hosts.shell import SILENT, Ssh
from stoker.messages import MessageCallback

_GONE_SECONDS = 120.0
_LOOK_SECONDS = 4.0
_SILENT_LOOKS = 3
_SILENT_SECONDS = 12.0
"""A machine counts as off after so many failed connections over so long: a network may fail for a moment."""
_ASK_SECONDS = 30.0
_LOST = ("nothing", "hours")


def on(host: Host, *, card: bool = True, tell: MessageCallback | None = None) -> Host:
    """Switch it on, with its card or without; the host with its new address."""
    _require_api(host)
    return autodl.power_on(host, card=card, tell=tell)


def off(host: Host, *, lossy: bool = False) -> None:
    """Switch it off and wait until it is; if Stoker's folder there is lost with that, only if `lossy`."""
    if (kept := lost(host)) and not lossy:
        raise StokerError("STK771", name=host.name, folder=host.base, kept=messages.text(f"hosts.kept.{kept}"))
    if has_api(host) and _off_by_api(host):
        return
    verb = verb_of(host)
    shell = Ssh(host)
    try:
        shell.run(script(verb))
        await_gone(shell)
    finally:
        shell.close()


def _off_by_api(host: Host) -> bool:
    """Whether its provider's API switched it off; the API may not know the machine, or not answer."""
    try:
        autodl.power_off(host)
    except StokerError as error:
        if error.code not in autodl.NOT_SERVED:
            raise
        return False
    return True


def verb_of(host: Host) -> Verb:
    """The command that switches it off and can be undone."""
    platform = platforms.find(host.platform)
    if platform is None or platform.meter.reversible is None:
        raise StokerError("STK726", name=host.name, platform=platform.title if platform else "-")
    return platform.meter.reversible


def lost(host: Host) -> Kept | None:
    """What Stoker's folder there survives, if that is less than a stop; by the platform's profile."""
    disks = [disk for disk in host.facts.disks if _holds(disk, host.base)] if host.facts else []
    disk = max(disks, key=lambda one: len(one.path), default=None)
    return disk.survives if disk and disk.survives in _LOST else None


def _holds(disk: Disk, folder: str) -> bool:
    return f"{folder}/".startswith(f"{disk.path.rstrip('/')}/")


def running(host: Host) -> list[str] | None:
    """Names of the runs that are running there; None where the machine does not answer."""
    shell = Ssh(host)
    base = shlex.quote(host.base)
    ask = (
        f"[ -e {base}/env/bin/python ] || {{ echo '[]'; exit 0; }}\n"
        f"export {env.RUNS.name}={base}/runs; {base}/env/bin/python -m stoker runs --json"
    )
    try:
        told = json.loads(shell.run(ask, seconds=_ASK_SECONDS))
    except (StokerError, ValueError):
        return None
    finally:
        shell.close()
    return [run["name"] for run in told if run["state"] == "running"]


def script(verb: Verb) -> str:
    """A platform's command as a script that starts it in the background; its variables are read there only."""
    lines = []
    for name in verb.variables:
        found = f"tr '\\0' '\\n' </proc/1/environ | sed -n 's/^{name}=//p' | head -n 1"
        lines.append(f'[ -n "${{{name}:-}}" ] || {name}=$({found})')
        lines.append(f'[ -n "${{{name}:-}}" ] || {{ echo "{name}?" >&2; exit 1; }}')
    for name, value in verb.environment.items():
        lines.append(f"export {name}={_word(value)}")
    return "\n".join([*lines, f"( sleep 1; {_command(verb.words)} ) </dev/null >/dev/null 2>&1 &"])


def _command(words: tuple[str, ...]) -> str:
    """`/bin/sh FILE` is for a script without a `#!`; a program, or a script with one, is run directly."""
    command = " ".join(_word(word) for word in words)
    if words[0] != "/bin/sh":
        return command
    itself = " ".join(_word(word) for word in words[1:])
    head = f"head -c 4 {_word(words[1])} | od -An -tx1 | tr -d ' \\n'"
    return f"case $({head}) in 2321*|7f454c46) {itself};; *) {command};; esac"


def await_gone(shell: Ssh) -> None:
    """Wait until a machine has not answered for a while, with a new connection each time."""
    until = time.monotonic() + _GONE_SECONDS
    silent: list[float] = []
    while time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        shell.close()
        begun = time.monotonic()
        silent = [] if _answers(shell) else [*silent, begun]
        if len(silent) >= _SILENT_LOOKS and time.monotonic() - silent[0] >= _SILENT_SECONDS:
            return
    raise StokerError("STK727", name=shell.name)


def _answers(shell: Ssh) -> bool:
    """Whether sshd answers; a refusal is an answer too."""
    try:
        shell.run("true", seconds=10)
    except StokerError as error:
        return error.code not in SILENT
    return True


def _word(word: str) -> str:
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)


def has_api(host: Host) -> bool:
    """Whether its provider has an API for it, and the user set a token."""
    return host.platform == "autodl" and bool(env.read(env.AUTODL_TOKEN))


def _require_api(host: Host) -> None:
    if not has_api(host):
        platform = platforms.find(host.platform)
        raise StokerError("STK728", name=host.name, platform=platform.title if platform else "-")
