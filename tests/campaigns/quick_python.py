"""Stoker's programs without the seconds that their imports take: a fork server, and a `python` that asks it.

A machine of a campaign gets `quick_python.c` as its Python. `python -m stoker...` there becomes a forked child of one
server outside, which joins the machine's namespaces and root first: the processes, their files, signals and ends are
real, and belong to that machine. What differs from an interpreter of its own: all machines run this tree's package,
whichever wheel was installed there, and clocks are shorter (`shorten`).
A machine's `~/.quick.json` names changes to make in each of its programs before they run.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

HERE = Path(__file__).parent
CHANGES = ".quick.json"
_NAMESPACES = ("ipc", "uts", "net", "mnt", "pid")
_SET_NAME = 15
_ROOM = "-" * 4000
"""In the server's command line, for those of its children."""
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """A server; yields the folder of its socket, to be seen from every machine."""
    short = Path(tempfile.mkdtemp(prefix="quick-"))
    (folder / "quick").mkdir()
    subprocess.run(["cc", "-O1", "-o", str(folder / "quick/python"), str(HERE / "quick_python.c")], check=True)
    with (folder / "quick/server.log").open("ab") as log:
        server = subprocess.Popen(
            [sys.executable, "-X", "utf8", str(HERE / "quick_python.py"), str(short / "socket"), _ROOM],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "STOKER_METADATA": "off"},
        )
    try:
        while not (short / "socket").exists():
            assert server.poll() is None, (folder / "quick/server.log").read_text()[-2000:]
            time.sleep(0.05)
        yield short
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(short, ignore_errors=True)


def install(program: Path, target: Path, real: str, socket_seen: str) -> None:
    """Make `target` the quick Python, with the real one beside it."""
    beside = target.with_name(f"{target.name}.real")
    if not beside.exists():
        if target.exists():
            target.rename(beside)
        else:
            beside.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
            beside.chmod(0o755)
    shutil.copy2(program, target)
    target.with_name(f"{target.name}.socket").write_text(socket_seen)


# ---- the server


def serve(path: str) -> None:
    """Fork a child for each request, until standard input ends."""
    import tiny_run  # noqa: F401  # imports what a trainer needs, and sets the lock of progress bars

    import stoker

    for name in ("deepspeed", "boto3", "botocore.session"):  # the first is asked for in every start
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for module in pkgutil.walk_packages(stoker.__path__, "stoker."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    shorten()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(f"{path}.new")
        listening.listen(64)
        Path(f"{path}.new").rename(path)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        while True:
            line, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _attend(line)
            line.close()


def shorten() -> None:
    """Clocks for a campaign: leases, pauses and looks of seconds instead of minutes."""
    from stoker.hosts import wheel
    from stoker.hosts.shell import Ssh
    from stoker.places import box
    from stoker.settle.meter import SettleSettings
    from stoker.store.lease import Lease
    from stoker.store.store_protocol import Patience
    from stoker.supervise.settings import SupervisorSettings

    Lease.__init__.__defaults__ = (LEASE_SECONDS,)
    for kind, shorter in ((SupervisorSettings, SUPERVISING), (SettleSettings, SETTLING), (Patience, WAITING)):
        fields = kind.__dataclass_fields__
        kind.__init__.__defaults__ = tuple(shorter.get(name, fields[name].default) for name in fields)
    box.LOOK_SECONDS = 0.1
    _remember(box.Box, wheel)
    plain = Ssh.command

    def command(self: Ssh, *words: str, **settings: str) -> list[str]:
        return plain(self, *words, **{"ConnectTimeout": "3", "ServerAliveInterval": "1", **settings})

    Ssh.command = command  # type: ignore[method-assign]


def _remember(kind: Any, wheel: ModuleType) -> None:
    """What takes seconds and is the same every time: the wheel, and the probe of a box since it was added."""
    plain_look, plain_build, built = kind.probed, wheel.build, Path(tempfile.mkdtemp(prefix="wheel-"))
    made = plain_build(built)

    def probed(self: Any) -> Any:
        self._probed = self._probed or self.host.facts
        return plain_look(self)

    def build(folder: Path) -> Path:
        return Path(shutil.copy2(made, folder)) if made.exists() else plain_build(folder)

    kind.probed, wheel.build = probed, build


LEASE_SECONDS = 4.0
SUPERVISING = {
    "look_seconds": 0.1,
    "beat_seconds": 0.5,
    "first_wait_seconds": 0.3,
    "longest_wait_seconds": 2.0,
    "copy_seconds": 20.0,
}
WAITING = {"stall_seconds": 20.0, "tries": 3, "first_pause_seconds": 0.2, "longest_pause_seconds": 1.0}
SETTLING = {"look_seconds": 0.3, "first_wait_seconds": 0.5, "longest_wait_seconds": 2.0, "gone_seconds": 5.0}


def _attend(line: socket.socket) -> NoReturn:
    """Between a client and its child: signals one way, the exit status the other."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        peer = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        folder, words, settings, descriptors = _asked(line)
        there = [os.open(f"/proc/{peer}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
        root = os.open(f"/proc/{peer}/root", os.O_RDONLY)
        for one in there:
            if _LIBC.setns(one, 0):
                raise OSError(ctypes.get_errno(), "setns")
            os.close(one)
        os.fchdir(root)
        os.chroot(".")
        os.chdir(folder)
        child = os.fork()
        if child == 0:
            line.close()
            os.close(root)
            _become(peer, words, settings, descriptors)
        for one in (root, *descriptors):
            os.close(one)
        _pass_signals(line, child)
    except BaseException:  # the server's log is the only place for it
        traceback.print_exc()
    finally:
        os._exit(0)


def _asked(line: socket.socket) -> tuple[str, list[str], dict[str, str], list[int]]:
    first, control, _, _ = line.recvmsg(8, socket.CMSG_SPACE(12))
    descriptors = array.array("i", control[0][2]).tolist()
    arguments, variables = struct.unpack("2I", first)
    with line.makefile("rb") as file:
        text = b""
        while text.count(b"\0") < 1 + arguments + variables:
            text += file.read1(1 << 16)
    folder, *rest = text.decode("utf-8", "surrogateescape").split("\0")[:-1]
    settings = dict(one.split("=", 1) for one in rest[arguments:] if "=" in one)
    return folder, rest[:arguments], settings, descriptors


def _pass_signals(line: socket.socket, child: int) -> None:
    """No thread: one cannot be made where children have another process namespace."""
    watched = os.pidfd_open(child)
    while watched not in select.select([line, watched], [], [])[0]:
        said = line.recv(1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, said[0] if said else signal.SIGKILL)
        if not said:
            break
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        line.send(struct.pack("i", os.waitstatus_to_exitcode(status)))


def _become(client: int, words: list[str], settings: dict[str, str], descriptors: list[int]) -> NoReturn:
    """Be `python -m MODULE ...` in the child."""
    code: Any = 70
    os.setsid()
    for number, one in enumerate(descriptors):
        os.dup2(one, number)
        os.close(one)
    _named(client, words)
    os.environ.clear()
    os.environ.update(settings)
    tempfile.tempdir = None
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    at = words.index("-m") + 1
    sys.executable = words[0] if "/" in words[0] else shutil.which(words[0]) or words[0]
    sys.argv = [words[at], *words[at + 1 :]]
    try:
        _changed(settings.get("HOME", "/"))
        runpy.run_module(words[at], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # as an interpreter would
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _named(client: int, words: list[str]) -> None:
    """The command line that others see, over the server's own; and a name by which the campaign finds the child."""
    _LIBC.prctl(_SET_NAME, name_of(client).encode(), 0, 0, 0)
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    text = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
    ctypes.memmove(start, text.ljust(end - start, b"\0")[: end - start], end - start)


def name_of(client: int) -> str:
    """The name of a client's child, by the client's pid outside of all machines."""
    return f"quick{client}"


def _changed(home: str) -> None:
    """Changes by the names of functions of `life_changes`, with their arguments."""
    try:
        asked = json.loads(Path(home, CHANGES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    module: ModuleType = importlib.import_module("life_changes")
    for name, value in asked.items():
        with contextlib.suppress(ImportError):  # an older Stoker has no such thing
            getattr(module, name)(value)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    serve(sys.argv[1])
