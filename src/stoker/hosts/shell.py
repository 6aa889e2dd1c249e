"""Runs scripts and copies files on another machine by OpenSSH, with the user's own configuration, or on this one.

A script is sent to the stdin of a login shell: some platforms set their variables in login shells only, and a secret
is then neither in a command line nor in a file there.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from stoker import env, messages
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.hosts import known
from stoker.hosts.known import Host
from stoker.rundir.files import sha256
from stoker.store.address import Address
from stoker.store.ssh import SshStore
from stoker.store.store_protocol import Bandwidth, Fault, Patience

_ALIVE_SECONDS = 10
_OPEN_SECONDS = 60
_KEPT_SECONDS = 120
"""How long a connection is kept open for the next command."""
_CUT = 255
"""Exit code of ssh when ssh itself failed."""
_RSYNC_FILES = (3, 11, 13, 23, 24)
"""Exit codes of rsync for errors of files and disks, not of the connection."""
_REFUSED = re.compile(r"Connection refused|timed out|No route to host|Host is down|kex_exchange_identification")
"""What ssh says of a machine that is off, or of a provider's proxy in front of it; never of a session that broke."""
_NO_NETWORK = re.compile(r"Could not resolve|Network is unreachable")
UNREACHABLE = ("STK716", "STK723")
"""Codes of a machine that takes no connection: it is off, or the network is down."""
SILENT = ("STK701", *UNREACHABLE)
"""Those, and that of a connection that broke or took too long."""
_LAST_WORDS = 12
"""Lines of a failed script's output that are shown."""


class Shell(Protocol):
    """Runs scripts on a machine and copies files."""

    name: str

    def run(self, script: str, *, secrets: Mapping[str, str] | None = None, seconds: float = 60) -> str:
        """Run a script in a login shell there; its output. A failure raises with its last lines."""

    def talk(self, script: str) -> int:
        """Run a script there with the user's terminal; its exit code."""

    def send(self, files: Mapping[str, Path], target: str) -> None:
        """Copy files to names below a folder there; resumes an interrupted copy."""

    def fetch(self, source: str, target: Path) -> None:
        """Copy the content of a folder there into a folder here."""


def _wrapped(script: str, given: Mapping[str, str], mark: str) -> bytes:
    """A function, so that no command reads the script's rest from stdin; marks separate its output from banners."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in given.items())
    body = f"{exports}main() {{\nset -e\n{script}\n}}\necho {mark}\n(main </dev/null)\ncode=$?\necho {mark} $code\n"
    return body.encode()


def _between(output: str, mark: str) -> tuple[str, int | None]:
    """Output between the marks, and the exit code; None where the connection broke before the end."""
    _, found, rest = output.partition(f"{mark}\n")
    inner, ended, code = rest.rpartition(f"{mark} ")
    return (inner, int(code.split()[0])) if found and ended and code.split() else (rest, None)


def _quiet(script: str) -> str:
    """A script in a login shell whose banner is dropped: stdout is data."""
    inner = shlex.quote(f"exec 1>&3 3>&-; {script}")
    return f"exec 3>&1 >/dev/null; exec bash -lc {inner}"


class _LoginShell:
    """Common part: a shell that reads a script from stdin."""

    name: str

    def _shell(self) -> list[str]:
        raise NotImplementedError

    def run(self, script: str, *, secrets: Mapping[str, str] | None = None, seconds: float = 60) -> str:
        """Run a script in a login shell."""
        mark = f"-----{_nonce()}"
        try:
            done = subprocess.run(  # noqa: S603  # ssh or a shell, with a script of ours
                self._shell(),
                input=_wrapped(script, secrets or {}, mark),
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            reason = messages.text("reason.no_response", seconds=seconds)
            raise StokerError("STK701", host=self.name, reason=reason) from error
        except OSError as error:
            raise StokerError("STK700", reason=error) from error
        said, code = _between(done.stdout.decode("utf-8", "replace"), mark)
        if code == 0:
            return said
        words = env.without_secrets(_last(done.stderr.decode("utf-8", "replace")))
        if code is None:
            raise self._broken(words or f"exit {done.returncode}")
        raise StokerError("STK702", host=self.name, reason=words or _last(said) or f"exit {code}")

    def _broken(self, words: str) -> StokerError:
        return StokerError("STK701", host=self.name, reason=words)


class LocalShell(_LoginShell):
    """This machine, such as the login node of a queue."""

    name = "localhost"

    def _shell(self) -> list[str]:
        return ["bash", "-l", "-s"]

    def talk(self, script: str) -> int:
        """Run a script with the user's terminal."""
        return subprocess.run(["bash", "-c", _quiet(script)], check=False).returncode  # noqa: S603, S607  # a script of ours

    def send(self, files: Mapping[str, Path], target: str) -> None:
        """Copy, each file aside first."""
        for name, path in files.items():
            final = Path(target) / name
            final.parent.mkdir(parents=True, exist_ok=True)
            aside = final.with_name(f".{final.name}.part")
            shutil.copyfile(path, aside)
            aside.replace(final)

    def fetch(self, source: str, target: Path) -> None:
        """Copy a folder."""
        shutil.copytree(source, target, dirs_exist_ok=True)


class Ssh(_LoginShell):
    """A machine reached by OpenSSH: never prompts, never forwards an agent, accepts the pinned host key only."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name
        self._opened = False

    def command(self, *options: str, **settings: str) -> list[str]:
        """`ssh` with settings that isolate the connection and limit waiting, and with further ones."""
        every = {
            **known.ALONE,  # no kept connection of the user's: it was opened without our pinned key
            "BatchMode": "yes",
            "ConnectTimeout": "20",
            "ServerAliveInterval": str(_ALIVE_SECONDS),
            "ServerAliveCountMax": "3",
            **known.options(self.host),
            **settings,
        }
        words = [part for key, value in every.items() for part in ("-o", f"{key}={value}")]
        return ["ssh", *words, *known.destination(self.host)[:-1], *options]

    @property
    def _destination(self) -> str:
        return known.destination(self.host)[-1]

    def talk(self, script: str) -> int:
        """Run a script there with the user's terminal, where there is one."""
        terminal = "-t" if sys.stdin.isatty() and sys.stdout.isatty() else "-T"
        words = [*self._kept(), terminal, self._destination, f"bash -c {shlex.quote(_quiet(script))}"]
        code = subprocess.run(words, check=False).returncode  # noqa: S603  # ssh with a script of ours
        if code == _CUT:
            self.run("true")  # raises the reason, such as another host key, if it persists
            raise StokerError("STK701", host=self.name, reason=f"ssh: exit {code}")
        return code

    def tunnel(self, port: int) -> int:
        """Forward a port of the box's loopback, until Ctrl-C."""
        words = [*self._forwarding(port, port, "-N"), self._destination]
        return subprocess.run(words, check=False).returncode  # noqa: S603  # ssh, no shell

    def tied_tunnel(self, here: int, there: int) -> list[str]:
        """`ssh` that shows a port of the box's loopback at one of this machine's, until its stdin is closed."""
        return [*self._forwarding(here, there, "-T"), self._destination, "cat >/dev/null"]

    def _forwarding(self, here: int, there: int, option: str) -> list[str]:
        forward = f"127.0.0.1:{here}:127.0.0.1:{there}"
        return self.command(option, "-L", forward, ExitOnForwardFailure="yes", ClearAllForwardings="no")

    def send(self, files: Mapping[str, Path], target: str) -> None:
        """By rsync; where either side has none, by SFTP; where sshd has no SFTP, by tar."""
        if not files:
            return
        self.run(f"mkdir -p {shlex.quote(target)}")
        if self._has_rsync():
            self._rsync_to(files, target)
            return
        try:
            self._sftp_to(files, target)
        except Fault as fault:
            if "SFTP" not in str(fault) and "subsystem" not in str(fault):
                raise StokerError("STK701", host=self.name, reason=fault) from fault
            self._tar_to(files, target)

    def fetch(self, source: str, target: Path) -> None:
        """By rsync, or by tar."""
        target.mkdir(parents=True, exist_ok=True)
        if self._has_rsync():
            self._rsync(f"{self._remote(source)}/", f"{target}/")
            return
        words = [*self._kept(), "-T", self._destination, f"tar -cf - -C {shlex.quote(source)} ."]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:  # noqa: S603  # ssh
            assert process.stdout is not None
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                archive.extractall(target, filter="data")
        if process.returncode:
            raise self._broken(f"tar: exit {process.returncode}")

    # ---- connections

    def _shell(self) -> list[str]:
        return [*self._kept(), "-T", self._destination, "bash -l -s"]

    def _kept(self) -> list[str]:
        """`ssh` over one connection that is kept for a while; Windows' ssh cannot do that."""
        path = _control_path(self.host)
        if path is None:
            return self.command()
        over = str(path)
        if not self._opened:
            self._opened = True
            check = [*self.command("-O", "check", ControlPath=over), self._destination]
            if subprocess.run(check, capture_output=True, check=False).returncode:  # noqa: S603  # ssh, no shell
                path.unlink(missing_ok=True)  # left by a killed process: ssh would try to use it
                kept = {"ControlPath": over, "ControlMaster": "yes", "ControlPersist": str(_KEPT_SECONDS)}
                self._open([*self.command("-N", "-f", **kept), self._destination])
        return self.command(ControlPath=over)

    def _open(self, words: list[str]) -> None:
        """Start the connection that is kept; a machine that does not respond is not tried twice."""
        # A file, not a pipe: it keeps what it is given open for as long as it lives.
        with tempfile.TemporaryFile() as said, contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(  # noqa: S603  # ssh, no shell
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                timeout=_OPEN_SECONDS,
                check=False,
            )
            said.seek(0)
            reason = self._explained(said.read().decode("utf-8", "replace")) if done.returncode else None
            if reason is not None and reason.code in UNREACHABLE:
                self._opened = False
                raise reason

    def close(self) -> None:
        """Close the kept connection."""
        path = _control_path(self.host)
        if path is not None:
            ssh = self.command("-O", "exit", ControlPath=str(path))
            subprocess.run([*ssh, self._destination], capture_output=True, check=False)  # noqa: S603  # ssh
        self._opened = False

    def _broken(self, words: str) -> StokerError:
        return self._explained(words) or self._explained(self._refusal()) or super()._broken(words)

    def _explained(self, words: str) -> StokerError | None:
        """Why there is no connection, by what ssh said; None where it does not say."""
        if "Host key verification failed" in words or "IDENTIFICATION HAS CHANGED" in words:
            return StokerError("STK703", host=self.name)
        reason, platform = _last(words, 1), platforms.find(self.host.platform)
        if re.search(r"Permission denied \([a-z]", words):
            return StokerError("STK705", host=self.name, reason=reason)
        if _REFUSED.search(words) and platform is not None:
            return StokerError("STK716", host=self.name, platform=platform.title, reason=reason)
        if _REFUSED.search(words) or _NO_NETWORK.search(words):
            return StokerError("STK723", host=self.name, reason=reason)
        return None

    def _refusal(self) -> str:
        """What a new connection fails with, after one broke; empty where there is none, or it works."""
        words = [*self.command(), "-n", "-T", self._destination, "true"]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_OPEN_SECONDS, check=False)  # noqa: S603  # ssh
        except (subprocess.TimeoutExpired, OSError):
            return ""
        return done.stderr.decode("utf-8", "replace") if done.returncode == _CUT else ""

    # ---- files

    def _has_rsync(self) -> bool:
        return (
            os.name != "nt"
            and shutil.which("rsync") is not None
            and "yes" in self.run("command -v rsync >/dev/null && echo yes || true")
        )

    def _rsync_to(self, files: Mapping[str, Path], target: str) -> None:
        """Copy a folder of links with the layout of the other side."""
        with tempfile.TemporaryDirectory(prefix="stoker-") as stage:
            for name, path in files.items():
                link = Path(stage) / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
            self._rsync(f"{stage}/", f"{self._remote(target)}/", "--copy-links")

    def _rsync(self, source: str, target: str, *options: str) -> None:
        """Partial files are kept, so that the next attempt sends the rest only."""
        words = ["rsync", "--recursive", "--times", "--partial-dir=.stoker-part", "--timeout=60", *options]
        done = subprocess.run(  # noqa: S603  # rsync over ssh, no shell here
            [*words, "--rsh", shlex.join(self._kept()), source, target],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode in _RSYNC_FILES:
            raise StokerError("STK702", host=self.name, reason=_last(done.stderr))
        if done.returncode:
            raise self._broken(_last(done.stderr))

    def _remote(self, path: str) -> str:
        return f"{self._destination}:{path}"

    def _sftp_to(self, files: Mapping[str, Path], target: str) -> None:
        address = Address("ssh", f"ssh://{self.name}{target}", target, host=self._destination)
        store = SshStore(address, Patience(), Bandwidth(), self._kept())
        for name, path in files.items():
            store.upload(path, name, sha256(path))

    def _tar_to(self, files: Mapping[str, Path], target: str) -> None:
        words = [*self._kept(), "-T", self._destination, f"tar -xf - -C {shlex.quote(target)}"]
        with subprocess.Popen(words, stdin=subprocess.PIPE) as process:  # noqa: S603  # ssh
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), tarfile.open(fileobj=process.stdin, mode="w|") as archive:
                for name, path in files.items():
                    archive.add(path.resolve(), name)
        if process.returncode:
            raise self._broken(f"tar: exit {process.returncode}")


def _control_path(host: Host) -> Path | None:
    """The socket of a kept connection; one per host, as it was opened with that host's pinned key.

    Its path is limited to about 100 characters, of which ssh needs 17: TMPDIR of a Mac is too long.
    """
    if os.name == "nt":
        return None
    folder = Path("/tmp") / f"stoker-{os.getuid()}"  # noqa: S108  # owner and mode are checked below
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return None  # another user made it and could put a socket there
    told = [host.name, *known.destination(host), *known.options(host).values()]
    return folder / hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]


def _nonce() -> str:
    return secrets.token_hex(8)


def _last(text: str, lines: int = _LAST_WORDS) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])
