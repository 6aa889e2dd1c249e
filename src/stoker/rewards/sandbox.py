"""A process without network, without the user's files and with limits: bubblewrap's namespaces, util-linux' limits.

What it holds is tried before it is trusted (`trial`). What it does not hold: the kernel is the machine's own and no
system call is filtered, so a hole in the kernel is a way out; GPUs are not there; memory is limited per process.
"""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stoker import messages
from stoker.errors import StokerError

PROCESSES = 64
"""Processes and threads in one sandbox."""
SCRATCH_BYTES = 256_000_000
"""What may be written: to `/tmp`, in memory, and into any one file."""
_SHARED_BYTES = 64_000_000
_TRIAL_SECONDS = 60.0
_PROBE = Path(__file__).with_name("sandbox_probe.py")
_USERS = range(61184, 65520)
"""Ids that systemd gives to users of a service that exist only while it runs, and nobody else uses."""
_started = itertools.count()
"""Each sandbox of root's has an id of its own, by which its processes are counted."""
_SCRATCH = "/tmp"  # noqa: S108  # of its own, inside
_CLOSED = ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _SCRATCH]
"""Nothing is made there any more; the program begins in its scratch folder."""
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "HOME": _SCRATCH,
    "USER": "reward",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class ProcessLimits:
    """What each process may use."""

    memory_bytes: int
    file_bytes: int = SCRATCH_BYTES

    def command(self, program: str, processes: int | None) -> list[str]:
        """The beginning of a command line that sets them."""
        nproc = [f"--nproc={processes}"] if processes else []
        return [program, f"--as={self.memory_bytes}", f"--fsize={self.file_bytes}", "--core=0", *nproc, "--"]


def variables() -> dict[str, str]:
    """The environment of a process in the sandbox: nothing of the user's."""
    return dict(_VARIABLES)


def command(words: list[str], limits: ProcessLimits, files: tuple[Path, ...] = ()) -> list[str]:
    """The command line that runs `words` in a sandbox.

    Args:
        words: A program in this Python's environment, or in `/usr`.
        limits: Of each of its processes.
        files: What else it may read.
    """
    tool = shutil.which("bwrap")
    if tool is None:
        raise StokerError("STK460", reason=messages.text("sandbox.no_bubblewrap"))
    inside = [*_system(), *_writable(tool), *_visible(files), *_CLOSED]
    return [tool, *_namespaces(), *inside, "--", *_user(), *_limited(limits), *words]


def plain_command(words: list[str], limits: ProcessLimits) -> list[str]:
    """The same without a sandbox: limits of each process where this system can set them."""
    program = shutil.which("prlimit")
    return [*limits.command(program, None), *words] if program else words


def trial() -> str:
    """Try the sandbox on this machine; what is missing, in words, or nothing."""
    if sys.platform != "linux":
        return messages.text("sandbox.not_linux")
    with tempfile.NamedTemporaryFile(prefix="stoker-probe-") as outside:
        words = [sys.executable, "-I", str(_PROBE), outside.name, str(PROCESSES)]
        try:
            line = command(words, ProcessLimits(memory_bytes=2**31), (_PROBE,))
            done = subprocess.run(  # noqa: S603  # our own program, no shell
                line, capture_output=True, text=True, timeout=_TRIAL_SECONDS, env=variables(), check=False
            )
        except StokerError as error:
            return str(error.fields["reason"])
        except subprocess.TimeoutExpired:
            return messages.text("sandbox.silent")
    return _verdict(done.stdout, done.stderr)


def _verdict(output: str, errors: str) -> str:
    try:
        open_doors = json.loads(output)
    except ValueError:
        said = errors.strip().splitlines()
        return messages.text("sandbox.failed", said=said[-1][:300] if said else messages.text("sandbox.silent"))
    doors = [messages.text(f"sandbox.open.{door}") for door in open_doors]
    return messages.text("sandbox.open", doors=doors) if doors else ""


# ---- parts of bubblewrap's command line


def _namespaces() -> list[str]:
    """Of its own: network, processes, host name, shared memory; without a user namespace where root needs none.

    The process limit does not hold for root, in no user namespace. So root's sandbox gets a user id of its own
    (`_user`), which takes three capabilities until it has it.
    """
    ours = ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if not _is_root():
        return ["--unshare-all", *ours]
    kept = [word for name in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{name}")]
    spaces = [f"--unshare-{name}" for name in ("ipc", "pid", "net", "uts", "cgroup-try")]
    return [*spaces, *ours, *kept]


def _user() -> list[str]:
    if not _is_root():
        return []
    user = str(_USERS[(os.getpid() + next(_started)) % len(_USERS)])
    ids = ["--reuid", user, "--regid", user, "--clear-groups"]
    return ["/usr/bin/setpriv", *ids, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]


def _system() -> list[str]:
    """The system's programs, read-only."""
    words = ["--dir", "/etc", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        top = Path("/", name)
        if top.is_symlink():
            words += ["--symlink", f"usr/{name}", str(top)]
        elif top.is_dir():
            words += ["--ro-bind", str(top), str(top)]
    for name in ("alternatives", "ld.so.cache", "localtime"):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return words


def _writable(tool: str) -> list[str]:
    """`/tmp` and shared memory, of limited size where this bubblewrap can limit it; nothing else."""
    has_size = _version(tool) >= (0, 7)
    words = ["--proc", "/proc", "--dev", "/dev"]
    for folder, size in (("/dev/shm", _SHARED_BYTES), (_SCRATCH, SCRATCH_BYTES)):  # noqa: S108  # inside
        words += ["--perms", "1777", *(["--size", str(size)] if has_size else []), "--tmpfs", folder]
    return words


def _visible(files: tuple[Path, ...]) -> list[str]:
    """This Python and its packages, and `files`, read-only; also where they are below the machine's own `/tmp`."""
    prefixes = {Path(prefix) for one in (sys.prefix, sys.base_prefix) for prefix in (one, os.path.realpath(one))}
    shown = sorted(one for one in {*prefixes, *files} if not one.is_relative_to("/usr"))
    private = [folder for home in (Path.home(), Path.home().resolve()) for folder in (home, home / ".local")]
    for one in shown:
        if any(folder.is_relative_to(one) for folder in private):
            raise StokerError("STK460", reason=messages.text("sandbox.home", folder=one))
    parents = sorted({parent for one in shown for parent in one.parents} - {Path("/"), Path(_SCRATCH)})
    # bubblewrap makes folders that are missing for their owner only, and the user inside may be another one.
    words = [word for folder in parents for word in ("--dir", str(folder))]
    for one in shown:
        link = one.is_symlink() and not one.is_dir()
        words += ["--symlink", str(one.readlink()), str(one)] if link else ["--ro-bind", str(one), str(one)]
    return words


def _limited(limits: ProcessLimits) -> list[str]:
    return limits.command("/usr/bin/prlimit", PROCESSES)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


@functools.cache
def _version(tool: str) -> tuple[int, ...]:
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    return tuple(int(number) for number in re.findall(r"\d+", said)[:2])
