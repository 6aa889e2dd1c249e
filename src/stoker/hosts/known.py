"""Hosts of this user: one record each in `STOKER_HOME/hosts`, and their pinned keys in `STOKER_HOME/known_hosts`.

Knows addresses and the options of ssh; connects to no host (`shell.py`) and probes none (`probe.py`).
"""

import os
import re
import shlex
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stoker import env, messages, plugins
from stoker.config import place_names
from stoker.errors import StokerError
from stoker.hosts.box_facts import BoxFacts
from stoker.rundir import files
from stoker.store import address

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOCAL = "localhost"

ALONE = {
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "Tunnel": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "ControlMaster": "no",
    "ControlPath": "none",
}
"""Isolates a connection, whatever the user's own config says: nothing of the user's is forwarded or run."""


class Host(BaseModel):
    """A machine reached by ssh. Empty fields are left to the user's own ssh config."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    """The user's name for it."""
    host: str
    """Address, or a host of the user's own ssh config."""
    user: str = ""
    port: int | None = None
    key: str = ""
    """File of the private key that logs in; empty where the user's own keys do."""
    fingerprint: str = ""
    """SHA-256 of the pinned host key."""
    base: str = ""
    """Stoker's folder on that machine."""
    python: str = ""
    """The image's own Python, the one with its torch."""
    platform: str = ""
    """Name of its profile in `facts/data/platforms.json`; empty for the user's own machine."""
    instance: str = ""
    """The provider's id of it, where its API is used."""
    facts: BoxFacts | None = None
    """Result of the last probe."""

    @property
    def url(self) -> str:
        """The address as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return "ssh://" + (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def parse(name: str, given: str) -> Host:
    """A host from an address as it is written, or from the `ssh -p PORT user@address` a provider shows."""
    if not _NAME.fullmatch(name) or _is_reserved(name):
        raise StokerError("STK722", name=name)
    text = _from_command(given) if given.startswith("ssh ") else given
    try:
        found = address.parse(f"{text.rstrip('/')}/", Path())
    except StokerError:
        found = None
    if found is None or found.kind != "ssh" or found.root != "/":
        raise StokerError("STK721", given=env.without_secrets(given))
    return Host(name=name, host=found.host, user=found.user, port=found.port)


def _is_reserved(name: str) -> bool:
    """Whether `--on` means a place by this name."""
    taken = (*place_names.NAMED_BY_ON, _LOCAL)
    return name in taken or name in plugins.offered(plugins.PLACES)


def every() -> list[Host]:
    """All hosts, by name."""
    return [_read(path) for path in sorted(_folder().glob("*.json"))]


def find(name: str) -> Host:
    """The host of this name."""
    path = _folder() / f"{name}.json"
    if not _NAME.fullmatch(name) or not path.is_file():
        raise StokerError("STK720", name=name, known=[host.name for host in every()] or messages.text("hosts.nobody"))
    return _read(path)


def save(host: Host) -> None:
    """Write a host's record."""
    _private(_folder())
    files.write_text(_folder() / f"{host.name}.json", host.model_dump_json(indent=1) + "\n")


def remove(name: str) -> None:
    """Delete a host's record and its pinned key."""
    host = find(name)
    forget_key(host.name)
    (_folder() / f"{host.name}.json").unlink()


def destination(host: Host) -> list[str]:
    """Destination for ssh, scp and sftp: options, then the host itself as the last word."""
    config = env.read(env.SSH_CONFIG)
    port = ["-o", f"Port={host.port}"] if host.port else []
    user = ["-o", f"User={host.user}"] if host.user else []
    return [*(["-F", config] if config else []), *port, *user, host.host]


def options(host: Host) -> dict[str, str]:
    """Options of ssh for a host: the key that logs in, and its own pinned key."""
    pinned = {
        "HostKeyAlias": alias(host.name),
        "UserKnownHostsFile": quoted(known_hosts()),
        "GlobalKnownHostsFile": os.devnull,
        "StrictHostKeyChecking": "yes",
        "VerifyHostKeyDNS": "no",
        "UpdateHostKeys": "no",
    }
    # Else the other keys of an agent would use up the attempts the server allows.
    return pinned | ({"IdentityFile": quoted(Path(host.key)), "IdentitiesOnly": "yes"} if host.key else {})


def known_hosts() -> Path:
    """The file of pinned keys, in OpenSSH's form; a host is listed as `alias(name)`."""
    return env.home() / "known_hosts"


def alias(name: str) -> str:
    """The name a host's key is pinned under: addresses and ports of rented machines change."""
    return f"stoker-{name}"


def pin(name: str, keys: list[str]) -> None:
    """Pin a host's keys (`type base64`), replacing those pinned before."""
    _private(env.home())
    lines = [*_other_lines(name), *(f"{alias(name)} {key}" for key in keys)]
    files.write_text(known_hosts(), "".join(f"{line}\n" for line in lines))


def forget_key(name: str) -> None:
    """Delete a host's pinned keys."""
    if known_hosts().is_file():
        pin(name, [])


def quoted(path: Path) -> str:
    """A path as the value of an ssh option: quoted, `%` escaped."""
    return '"' + path.as_posix().replace("%", "%%") + '"'


def _other_lines(name: str) -> list[str]:
    lines = known_hosts().read_text(encoding="utf-8").splitlines() if known_hosts().is_file() else []
    return [line for line in lines if line.split(" ")[0] != alias(name)]


def _from_command(given: str) -> str:
    """`ssh -p 12345 root@connect.example.com` as an address; other options are refused."""
    try:
        words = shlex.split(given)[1:]
    except ValueError:
        return ""
    port = ""
    while len(words) > 1 and words[0].startswith("-p"):
        port, words = (words[0][2:], words[1:]) if words[0] != "-p" else (words[1], words[2:])
    if words[1:2] == ["-p"] and len(words) == 3:
        port, words = words[2], words[:1]
    return f"ssh://{words[0]}" + (f":{port}" if port else "") if len(words) == 1 else ""


def _read(path: Path) -> Host:
    return files.read_record(path, Host)


def _folder() -> Path:
    return env.home() / "hosts"


def _private(folder: Path) -> None:
    """Make a folder that only its owner can read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
