"""Keys of a host: its own, which is pinned, and ours, which is put there once where only a password opens it.

A password is asked for by ssh itself, on the user's terminal or by SSH_ASKPASS. It never passes through here.
"""

import base64
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.hosts.shell import Ssh

_SECONDS = 60.0
_REFUSED = "STK705"
_TOO_MANY = "Too many authentication failures"
"""A server's answer to an agent with many wrong keys."""
_ENTER = "sh -c 'umask 077; mkdir -p .ssh && { echo; cat; } >> .ssh/authorized_keys'"
"""For any login shell; the key is read from stdin."""


def offered(host: Host) -> list[str]:
    """The host keys (`type base64`) of a host, reached by the user's own configuration with its jump hosts.

    They are not confirmed yet: no key and no password of the user is tried, and nothing is forwarded.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        file = Path(folder) / "known_hosts"
        settings = {
            **known.ALONE,
            "BatchMode": "yes",
            "PreferredAuthentications": "none",
            "PubkeyAuthentication": "no",
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": known.quoted(file),
            "GlobalKnownHostsFile": os.devnull,
            "HostKeyAlias": known.alias(host.name),
            "HashKnownHosts": "no",
            "VerifyHostKeyDNS": "no",
            "ConnectTimeout": "20",
        }
        done = _ssh(host, settings, "true")
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    keys = [line.split(" ", 1)[1] for line in lines if line.startswith(f"{known.alias(host.name)} ")]
    if not keys:
        raise StokerError("STK723", host=host.url, reason=env.without_secrets(done.stderr.strip()) or "-")
    return keys


def fingerprint(key: str) -> str:
    """A key as `ssh` shows it to people: `SHA256:...`."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def require_files(host: Host) -> None:
    """Refuse addresses of providers that give a shell but take no files."""
    if any(host.host in platform.no_files for platform in platforms.platforms()):
        raise StokerError("STK724", host=host.host)


def opening(host: Host) -> Host | None:
    """The host with a key that logs in: the user's own, else Stoker's; None where neither does."""
    own = our_key()
    for tried in (host, host.model_copy(update={"key": str(own)})):
        if (not tried.key or own.is_file()) and opens(tried):
            return tried
    return None


def opens(host: Host) -> bool:
    """Whether login works without a prompt."""
    shell = Ssh(host)
    try:
        shell.run("true")
    except StokerError as error:
        if error.code != _REFUSED and _TOO_MANY not in str(error.fields.get("reason")):
            raise
        return False
    finally:
        shell.close()
    return True


def installed(host: Host) -> Host:
    """Install a public key there, with the password that ssh asks the user for; the host with that key."""
    key = _usable_key(host) or _made_key()
    public = Path(f"{key}.pub").read_text(encoding="utf-8").strip() + "\n"
    settings = {
        **known.ALONE,
        **known.options(host),
        "PubkeyAuthentication": "no",
        "PreferredAuthentications": "password,keyboard-interactive",
        "ConnectTimeout": "20",
    }
    words = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    try:  # ssh prompts on the terminal and reports a wrong password there
        done = subprocess.run(  # noqa: S603  # ssh with a command of ours
            ["ssh", "-T", *words, *known.destination(host), _ENTER],  # noqa: S607  # of the system
            input=public.encode(),
            stdout=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise StokerError("STK700", reason=error) from error
    opened = host.model_copy(update={"key": str(key)})
    if done.returncode or not opens(opened):
        raise StokerError("STK725", host=host.name)
    return opened


def our_key() -> Path:
    """Stoker's own key, for users without one that works without a prompt."""
    return env.home() / "id_ed25519"


def _made_key() -> Path:
    key = our_key()
    if not key.is_file():
        key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _keygen("-q", "-t", "ed25519", "-N", "", "-C", "stoker", "-f", str(key))
    return key


def _usable_key(host: Host) -> Path | None:
    """A key of the user that ssh would offer this host and that has no passphrase."""
    words = ["ssh", "-G", *known.destination(host)]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout  # noqa: S603  # connects nowhere
    named = re.findall(r"^identityfile (.+)$", said, re.MULTILINE)
    paths = [Path(name.strip().strip('"')).expanduser() for name in named]
    whole = (path for path in paths if path.is_file() and Path(f"{path}.pub").is_file())
    return next((path for path in whole if _keygen("-y", "-P", "", "-f", str(path)).returncode == 0), None)


def _keygen(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603  # ssh's own program
        ["ssh-keygen", *words],  # noqa: S607  # of the system
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _ssh(host: Host, settings: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    words = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    ssh = ["ssh", "-T", *words, *known.destination(host), *command]
    try:
        return subprocess.run(  # noqa: S603  # the system's ssh with a command of ours
            ssh, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        reason = messages.text("reason.no_response", seconds=_SECONDS)
        raise StokerError("STK723", host=host.url, reason=reason) from error
    except OSError as error:
        raise StokerError("STK700", reason=error) from error
