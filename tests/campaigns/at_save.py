"""A real training, taken to the save of one step; there copies of the process save into copies of the folder, again and
again, each traced by strace with another fault. The state is real, the commit code is real, and a try takes a blink.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trainings

from stoker.engine.saving import SaveJob, Saver
from stoker.rundir import checkpoints
from stoker.rundir.layout import RunDir

CALLS = (
    "open,openat,creat,read,pread64,write,pwrite64,writev,ftruncate,fallocate,fsync,fdatasync,sync_file_range,"
    "rename,renameat,renameat2,mkdir,mkdirat,rmdir,unlink,unlinkat,link,linkat,symlink,symlinkat,copy_file_range,"
    "sendfile,close,fstat,newfstatat,stat,lstat,statx,statfs,getdents64,lseek,fadvise64,chmod,fchmod"
)
"""Every system call that touches a file or a folder: a kill between any two others leaves the same on the disk."""


class Inline:
    """Stands for the pool of threads: the same work in the same order, in one thread, so that calls can be counted."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> Any:
        value = work(*args)
        return type("Done", (), {"result": staticmethod(lambda: value)})


def reach(run_dir: RunDir, step: int, work: Callable[[Saver, SaveJob], None]) -> None:
    """Train until the save of `step`; there the first rank does `work` in its place, and all ranks end."""

    def before() -> None:
        from stoker.engine import saving

        plain = saving.Saver.begin

        def begin(self: Saver, job: SaveJob) -> None:
            if job.step != step:
                plain(self, job)
                self.wait()
                return
            code = 0
            try:
                work(self, job)
            except BaseException:
                import traceback

                traceback.print_exc()
                code = 71
            finally:
                sys.stderr.flush()
                os._exit(code)

        saving.Saver.begin = begin  # type: ignore[method-assign]

    attempt = trainings.start(run_dir, before)
    while attempt.pids[0] not in attempt.codes:
        attempt.running()
        time.sleep(0.01)
    attempt.kill()
    if attempt.codes[attempt.pids[0]] != 0:
        raise RuntimeError(trainings.log_of(run_dir))


@contextmanager
def copy_of(folder: Path, into: Path) -> Iterator[Path]:
    """The folder of checkpoints as it stands before the save."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(folder, into, symlinks=True)
    yield into
    shutil.rmtree(into, ignore_errors=True)


def traced(save: Callable[[], int], trace: Path, *inject: str) -> int:
    """Run `save` in a copy of this process under strace; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 72
        try:
            checkpoints.ThreadPoolExecutor = Inline  # type: ignore[misc, assignment]
            os.kill(os.getpid(), signal.SIGSTOP)
            code = save()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.waitpid(pid, os.WUNTRACED)
    words = ["strace", "-f", "-qq", "-y", "-o", str(trace), "-e", f"trace={CALLS}", *inject, "-p", str(pid)]
    tracer = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
        time.sleep(0.001)
    os.kill(pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tracer.wait()
    return code


def digests(folder: Path, step: int) -> dict[str, str]:
    """Digests of what a checkpoint holds."""
    found = next(one for one in checkpoints.committed(folder) if one.step == step)
    return {name: entry.sha256 for name, entry in found.commit.files.items()}


def injected(trace: Path) -> bool:
    """Whether the fault was met."""
    return "(INJECTED)" in trace.read_text(errors="replace")


def calls(trace: Path, *, writing: bool = False, below: str = "") -> list[tuple[str, int]]:
    """Calls of a traced save, all, only those that write, only those below a folder: the name, and its how-manieth."""
    seen: dict[str, int] = {}
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        name = line.split(maxsplit=1)[1].split("(")[0] if "(" in line else ""
        if name.isidentifier():
            seen[name] = seen.get(name, 0) + 1
            reads = name == "openat" and "O_WRONLY" not in line and "O_RDWR" not in line
            if below in line and not (writing and reads):
                found.append((name, seen[name]))
    return found
