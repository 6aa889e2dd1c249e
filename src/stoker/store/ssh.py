"""A store on a machine reached by SSH: a laptop, a NAS, another box. Needs OpenSSH's client here and sshd there.

Nothing is installed on the other side. Where it has `sha256sum`, digests are computed there; else files are read back.
"""

import hashlib
import secrets
import shlex
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from stoker import env
from stoker.errors import StokerError
from stoker.store import sftp
from stoker.store.address import Address
from stoker.store.sftp import Connection
from stoker.store.store_protocol import Bandwidth, ByteRange, Fault, Patience, require_small

T = TypeVar("T")
_REFUSALS = ("Permission denied", "Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")


class SshStore:
    """Files below a folder of another machine. Each is written under a temporary name, synced, checked, renamed."""

    beats = True

    def __init__(
        self, address: Address, patience: Patience, bandwidth: Bandwidth, ssh: list[str] | None = None
    ) -> None:
        """Open none yet.

        Args:
            address: Where it is.
            patience: How long it may take.
            bandwidth: What the line may carry.
            ssh: The command to connect with, where it is another than ours.
        """
        self._command = ssh
        self._root = PurePosixPath(address.root)
        self._address = address
        self._patience = patience
        self._bandwidth = bandwidth
        self._connection: Connection | None = None

    def names(self, folder: str) -> dict[str, int]:
        """Every file below a folder; names of partial files begin with a dot."""
        return self._do(lambda line: dict(self._walk(line, folder)))

    def read(self, name: str) -> bytes:
        """A small file."""

        def content(line: Connection) -> bytes:
            size = line.size(self._path(name))
            if size is None:
                raise FileNotFoundError(name)
            require_small(name, size)
            return b"".join(line.read(self._path(name), 0, size))

        return self._do(content)

    def write(self, name: str, content: bytes) -> None:
        """Written under a temporary name, synced, renamed."""

        def put(line: Connection) -> None:
            line.rename(self._put_aside(line, name, content), self._path(name))

        self._do(put)

    def create(self, name: str, content: bytes) -> bool:
        """A link is made only where there is no such name."""

        def created(line: Connection) -> bool:
            if line.size(self._path(name)) is not None:
                return False
            aside = self._put_aside(line, name, content)
            try:
                line.link(aside, self._path(name))
            except sftp.SftpRefused:
                if line.size(self._path(name)) is None:
                    raise
                return False
            finally:
                line.remove(aside)
            return True

        return self._do(created)

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """SFTP cannot compare and replace in one; the moment between the two is short."""
        if self.read(name) != before:
            return False
        self.write(name, after)
        return self.read(name) == after

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """Go on behind what is there of it, check the whole, rename."""
        self._do(lambda line: self._upload(line, source, name, sha256))

    def download(self, name: str, target: Path, size_bytes: int) -> None:
        """From where the target ends."""
        begun = done = target.stat().st_size if target.exists() else 0

        def fetch(line: Connection) -> None:
            nonlocal done
            with target.open("ab") as file:
                for chunk in line.read(self._path(name), begun, size_bytes):
                    file.write(chunk)
                    file.flush()
                    done += len(chunk)
                    self._bandwidth.spend(len(chunk))

        try:
            self._do(fetch)
        except Fault as fault:
            raise Fault(fault, gained_bytes=done - begun) from fault

    def ranges(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """File by file over one connection, the ranges of a file on their way at once."""
        by_name: dict[str, list[int]] = {}
        for number, one in enumerate(wanted):
            by_name.setdefault(one.name, []).append(number)
        for name, numbers in by_name.items():
            parts = [(wanted[number].begin, wanted[number].end) for number in numbers]
            path = self._path(name)
            content = self._do(lambda line, path=path, parts=parts: line.ranges(path, parts))  # type: ignore[misc]
            yield from zip(numbers, content, strict=True)

    def sha256(self, name: str, size_bytes: int) -> str:
        """All of it read back."""
        return self._do(lambda line: self._read_back(line, self._path(name), size_bytes))

    def remove(self, names: list[str]) -> None:
        """Delete files; `sweep` takes their folders."""

        def removed(line: Connection) -> None:
            for name in names:
                line.remove(self._path(name))

        self._do(removed)

    def sweep(self, folder: str, current: str) -> None:
        """Parts of files, and folders that hold nothing."""
        self._do(lambda line: self._sweep(line, self._root / folder, self._root / current))

    # ---- inside one connection

    def _upload(self, line: Connection, source: Path, name: str, sha256: str) -> None:
        final = PurePosixPath(self._path(name))
        # The name holds the digest: a partial file of other content is never continued.
        aside = str(final.with_name(f".{final.name}.{sha256[:16]}.part"))
        self._make_folders(line, final.parent)
        size, begun = source.stat().st_size, line.size(aside) or 0
        if line.size(str(final)) == size and self._digest_there(str(final), size) == sha256:
            return  # an earlier attempt came as far as this file
        if begun > size:
            line.remove(aside)
            begun = 0
        gained = 0

        def wrote(count: int) -> None:
            nonlocal gained
            gained += count

        try:
            line.write(aside, begun, self._chunks(source, begun), wrote)
        except Fault as fault:
            raise Fault(fault, gained_bytes=gained) from fault
        if (self._digest_there(aside, size) or self._read_back(line, aside, size)) != sha256:
            line.remove(aside)
            raise Fault(f"{name}: what was sent reads back otherwise")
        line.rename(aside, str(final))

    def _chunks(self, source: Path, begin: int) -> Iterator[bytes]:
        with source.open("rb") as file:
            file.seek(begin)
            while chunk := file.read(self._patience.part_bytes):
                self._bandwidth.spend(len(chunk))
                yield chunk

    def _put_aside(self, line: Connection, name: str, content: bytes) -> str:
        final = PurePosixPath(self._path(name))
        self._make_folders(line, final.parent)
        aside = str(final.with_name(f".{final.name}.{secrets.token_hex(6)}.part"))
        line.write(aside, 0, iter([content]), lambda _: None)
        return aside

    def _make_folders(self, line: Connection, folder: PurePosixPath) -> None:
        """Of the store's own path only the last part is made: a disk that is not mounted is not made up for."""
        below = [folder, *folder.parents]
        for one in reversed(below[: below.index(self._root) + 1]):
            line.make_folder(str(one))

    def _sweep(self, line: Connection, folder: PurePosixPath, current: PurePosixPath) -> bool:
        """Whether the folder is empty afterwards."""
        if folder == current:
            return False
        empty = True
        for one in line.entries(str(folder)):
            if one.is_folder and self._sweep(line, folder / one.name, current):
                line.remove_folder(str(folder / one.name))
            elif not one.is_folder and one.name.startswith(".") and one.name.endswith(".part"):
                line.remove(str(folder / one.name))
            else:
                empty = False
        return empty

    def _walk(self, line: Connection, folder: str) -> Iterator[tuple[str, int]]:
        for entry in line.entries(self._path(folder)):
            name = f"{folder}/{entry.name}".strip("/")
            if entry.name.startswith("."):
                continue
            if entry.is_folder:
                yield from self._walk(line, name)
            else:
                yield name, entry.size_bytes

    def _read_back(self, line: Connection, path: str, size_bytes: int) -> str:
        digest = hashlib.sha256()
        for chunk in line.read(path, 0, size_bytes):
            digest.update(chunk)
            self._bandwidth.spend(len(chunk))
        return digest.hexdigest()

    def _digest_there(self, path: str, size_bytes: int) -> str:
        """What the other machine computes; empty where it cannot."""
        command = [*self._ssh(), self._destination(), "--", "sha256sum", "--", shlex.quote(path)]
        try:
            done = subprocess.run(  # noqa: S603  # the system's ssh; the path is quoted for the other shell
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=self._patience.seconds_for(size_bytes),
            )
        except (subprocess.TimeoutExpired, OSError):
            return ""
        word = done.stdout.lstrip("\\").split(" ")[0]
        return word if done.returncode == 0 and len(word) == 64 else ""

    # ---- connections

    def _do(self, operation: Callable[[Connection], T]) -> T:
        """Use the open connection, or a new one; after a fault it is not used again."""
        try:
            if self._connection is None:
                self._connection = Connection([*self._ssh(), "-s", self._destination(), "sftp"], self._patience)
            return operation(self._connection)
        except sftp.SftpRefused as refused:
            if refused.code == sftp.NOT_PERMITTED:
                raise StokerError("STK653", store=self._address.text, reason=refused) from refused
            raise Fault(refused) from refused
        except struct.error as error:
            self._drop()
            raise Fault("the server does not speak SFTP") from error
        except Fault as fault:
            self._drop()
            if any(refusal in str(fault) for refusal in _REFUSALS):
                raise StokerError("STK653", store=self._address.text, reason=fault) from fault
            raise
        except (FileNotFoundError, StokerError):
            raise
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ssh(self) -> list[str]:
        """Never asks, never forwards, never takes an unknown host's key, and notices a dead line."""
        if self._command:
            return self._command
        alive = max(1, round(self._patience.stall_seconds / 3))
        options = {
            "BatchMode": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ClearAllForwardings": "yes",
            "ConnectTimeout": max(1, round(self._patience.stall_seconds)),
            "ServerAliveInterval": alive,
            "ServerAliveCountMax": 3,
        }
        command = ["ssh", "-T", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
        if self._address.port:
            command += ["-p", str(self._address.port)]
        if self._address.user:
            command += ["-l", self._address.user]
        if config := env.read(env.SSH_CONFIG):
            command += ["-F", config]
        return command

    def _destination(self) -> str:
        return self._address.host

    def _path(self, name: str) -> str:
        return str(self._root / name)
