"""Switching a host on and off: by the provider's API where there is one for it, else by the platform's own verb there.

Only verbs that can be undone. What is irreversible belongs to the end of a run that asks for it (`meter.py`).
"""

import json
import shlex
import time

from stoker import env
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.platforms import Verb
from stoker.launch import autodl
from stoker.launch.autodl import Tell
from stoker.launch.hosts import Host
from stoker.launch.line import Ssh

_GONE_SECONDS = 90.0
_LOOK_SECONDS = 2.0


def on(host: Host, *, card: bool = True, tell: Tell | None = None) -> Host:
    """Switch it on, with its card or without; the host as it is to be reached now."""
    _require_api(host)
    return autodl.power_on(host, card=card, tell=tell)


def off(host: Host) -> None:
    """Switch it off, and see that it is."""
    if has_api(host) and _off_by_api(host):
        return
    verb = verb_of(host)
    line = Ssh(host)
    try:
        line.run(script(verb))
        _await_gone(line)
    finally:
        line.close()


def _off_by_api(host: Host) -> bool:
    """Whether its provider's API switched it off; it may not know the machine, or not answer."""
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


def running(host: Host) -> list[str]:
    """Names of the runs that are under way there, as far as the machine says."""
    line = Ssh(host)
    base = shlex.quote(host.base)
    ask = f"export {env.RUNS.name}={base}/runs; {base}/env/bin/python -m stoker runs --json"
    try:
        told = json.loads(line.run(ask))
    except (StokerError, ValueError):
        return []
    finally:
        line.close()
    return [run["name"] for run in told if run["state"] == "running"]


def script(verb: Verb) -> str:
    """A verb for a shell there, started aside; its variables are looked up there and never come here."""
    lines = []
    for name in verb.variables:
        found = f"tr '\\0' '\\n' </proc/1/environ | sed -n 's/^{name}=//p' | head -n 1"
        lines.append(f'[ -n "${{{name}:-}}" ] || {name}=$({found})')
        lines.append(f'[ -n "${{{name}:-}}" ] || {{ echo "{name}?" >&2; exit 1; }}')
    for name, value in verb.environment.items():
        lines.append(f"export {name}={_word(value)}")
    command = " ".join(_word(word) for word in verb.words)
    return "\n".join([*lines, f"( sleep 1; {command} ) </dev/null >/dev/null 2>&1 &"])


def _await_gone(line: Ssh) -> None:
    until = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        try:
            line.run("true", seconds=10)
        except StokerError:
            return
    raise StokerError("STK727", name=line.name)


def _word(word: str) -> str:
    return f'"{word}"' if word.startswith("$") else shlex.quote(word)


def has_api(host: Host) -> bool:
    """Whether its provider can be asked about it, by a token of the user's."""
    return host.platform == "autodl" and bool(env.read(env.AUTODL_TOKEN))


def _require_api(host: Host) -> None:
    if not has_api(host):
        platform = platforms.find(host.platform)
        raise StokerError("STK728", name=host.name, platform=platform.title if platform else "-")
