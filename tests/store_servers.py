"""Real servers for tests of the store, on this machine only: two S3-compatible ones with opposite gaps, and an sshd.

`rclone serve s3` checks keys and ignores conditional writes; `moto` honours conditional writes and takes any key.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stoker import tools

KEY, SECRET = "stokertestkey", "canary-3f1d9e7b5a"  # the server's own, for the length of a test
BUCKET = "stoker-tests"


@dataclass(frozen=True)
class Server:
    """Something that listens on 127.0.0.1."""

    port: int
    settings: dict[str, str]
    """What the environment must say to reach it."""


def executable(tool: str, name: str) -> Path | None:
    """A program of a tool's own environment, or of the PATH."""
    path = tools.folder() / tool / "bin" / name
    if path.exists():
        return path
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def has_rclone() -> bool:
    return executable("rclone", "rclone") is not None


def has_moto() -> bool:
    return executable("moto", "moto_server") is not None


def has_sshd() -> bool:
    return sshd_path() is not None and shutil.which("ssh") is not None


def sshd_path() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def versions() -> dict[str, str]:
    """What the servers and clients call themselves."""
    said = subprocess.run([str(executable("rclone", "rclone")), "version"], capture_output=True, text=True, check=False)
    ssh = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False)
    return {
        "rclone": said.stdout.split("\n")[0].removeprefix("rclone "),
        "openssh": ssh.stderr.split(",")[0],
        "boto3": metadata.version("boto3"),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def reached(settings: dict[str, str]) -> Iterator[None]:
    """With these variables, for this process and those that it forks."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def rclone(folder: Path, *, secret: str = SECRET, address: str = "127.0.0.1") -> Iterator[Server]:
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    port = free_port()
    binary = executable("rclone", "rclone")
    command = [str(binary), "serve", "s3", "--auth-key", f"{KEY},{secret}", "--addr", f"{address}:{port}"]
    # Listings are read anew soon: tests change files in the folder themselves. With `0s` rclone turns in circles.
    # A stalled upload holds up the whole of rclone's server; it must not do so for the hour that is its default.
    command += ["--server-read-timeout", "5s", "--server-write-timeout", "20s"]
    command += ["--config", os.devnull, "--vfs-cache-mode", "off", "--dir-cache-time", "1s", str(folder)]
    with _serving(command, port, folder.parent / "rclone.log", address=address):
        yield Server(port, s3_settings(port, address))


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[Server]:
    port = free_port()
    command = [str(executable("moto", "moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    # Tests do with parts that are smaller than Amazon's smallest.
    with _serving(command, port, folder / "moto.log", {"S3_UPLOAD_PART_MIN_SIZE": "1024"}):
        yield Server(port, s3_settings(port))


def s3_settings(port: int, address: str = "127.0.0.1") -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://{address}:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


@contextlib.contextmanager
def sshd(folder: Path) -> Iterator[Server]:
    """An sshd with keys of its own; `STOKER_SSH_CONFIG` names a client's configuration that knows it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "authorized_keys").chmod(0o600)
    port = free_port()
    server = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": folder / "sshd.pid",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "StrictModes": "no",
        "PermitRootLogin": "prohibit-password",
        "MaxStartups": "100",
        "UsePAM": "no",
        "Subsystem": "sftp internal-sftp",
    }
    _configure(folder / "sshd_config", server)
    write_client_config(folder, port)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    command = [str(sshd_path()), "-D", "-e", "-f", str(folder / "sshd_config")]
    with _serving(command, port, folder / "sshd.log"):
        yield Server(port, {"STOKER_SSH_CONFIG": str(folder / "ssh_config")})


def write_client_config(folder: Path, host_key_port: int, hosts: str = "known_hosts") -> None:
    """Keys and known hosts of the test; under an alias, so that a proxy's port shows the same host."""
    public = (folder / "host_key.pub").read_text(encoding="utf-8")
    (folder / hosts).write_text(f"stoker-test {public}", encoding="utf-8")
    client = {
        "HostKeyAlias": "stoker-test",
        "IdentityFile": folder / "user_key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / hosts,
        "GlobalKnownHostsFile": os.devnull,
        "StrictHostKeyChecking": "yes",
        "User": getpass.getuser(),
    }
    _configure(folder / "ssh_config", client)


def _configure(path: Path, words: dict[str, object]) -> None:
    path.write_text("".join(f"{key} {value}\n" for key, value in words.items()), encoding="utf-8")


@contextlib.contextmanager
def _serving(
    command: list[str], port: int, log: Path, settings: dict[str, str] | None = None, address: str = "127.0.0.1"
) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(settings or {})},
        )
    try:
        _wait_for((address, port), process, log)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(address: tuple[str, int], process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(address, 1):
            return
        time.sleep(0.05)
    raise RuntimeError(log.read_text(encoding="utf-8", errors="replace")[-2000:])
