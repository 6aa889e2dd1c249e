"""The laptop of a test: a home, folders and processes of its own, all of which can be gone from one moment to the next.

Its commands are the `stoker` of this tree, in a process namespace that `kill` ends at once: also the ssh connections
that it keeps open.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import boxes

RUN = """\
model: {{shape: llama, layers: 1, width: 32, heads: 2, ffn: 64, vocab: 300}}
tokenizer: {{train: bpe, vocab: 300}}
data: {{train: words.txt, length: 32}}
tune: {{method: full}}
train: {{objective: pretrain, steps: {steps}, epochs: 999, batch: 4, learning_rate: 1e-3, schedule: constant}}
save: {{every: {every}, keep: 2{store}}}
where: {{micro: 4, arrange: rows}}
native: {{trainer: {{report_to: none}}}}
"""
"""As short as a training can be; `where` keeps its arithmetic the same on every machine."""


def words(count: int = 4000) -> str:
    """Text with something to learn in it, the same everywhere."""
    return "".join(f"w{i * i % 89} " + ("\n" if i % 9 == 8 else "") for i in range(count))


class Laptop:
    """A user's own machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="laptop-", dir=folder))
        self.home, self.runs = self.folder / "home", self.folder / "runs"
        self.home.mkdir()
        self._short = Path(tempfile.mkdtemp(prefix="lap-"))  # a socket's name may not be long
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self._short),
            "STOKER_HOME": str(self.home / ".stoker"),
            "STOKER_RUNS": str(self.runs),
            "STOKER_LANG": "en",
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "STOKER_METADATA": "off",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        self._first: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def powered(self) -> Iterator["Laptop"]:
        self.switch_on()
        try:
            yield self
        finally:
            self.kill()
            shutil.rmtree(self._short, ignore_errors=True)

    def switch_on(self) -> None:
        self._first = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        self._pid = boxes._until(self._first_pid, "the laptop does not start")

    def kill(self) -> None:
        """All its processes end at once."""
        if self._first is not None:
            boxes._gone(self._first)
            self._first = None
            for socket in self._short.glob("stoker-*/*"):
                socket.unlink()  # a reboot empties the system's folder for such things

    def start(self, *words: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        """`stoker WORDS`, going on by itself."""
        enter = ["nsenter", "--target", str(self._pid), "--pid", "--mount"]
        # nsenter changes to a folder of the other namespace only when told.
        return subprocess.Popen(
            [*enter, f"--wd={self.folder}", sys.executable, "-m", "stoker", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.env, **(env or {})},
        )

    def stoker(
        self, *words: str, env: dict[str, str] | None = None, timeout: float = 300, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """`stoker WORDS` to its end."""
        started = self.start(*words, env=env)
        try:
            output, errors = started.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            started.kill()
            output, errors = started.communicate()
            raise AssertionError(f"stoker {' '.join(words)} did not end\n{output}\n{errors}") from None
        if check:
            assert started.returncode == 0, f"stoker {' '.join(words)}: {started.returncode}\n{output}\n{errors}"
        return subprocess.CompletedProcess(list(words), started.returncode, output, errors)

    def knows(self, box: boxes.Box, name: str = "box") -> None:
        """`stoker hosts add`, with the key in the user's own ssh folder."""
        own = self.home / ".ssh"
        own.mkdir(mode=0o700, exist_ok=True)
        config = own / "config"
        with config.open("a", encoding="utf-8") as file:
            file.write(f"Host {box.address}\n  IdentityFile {box.key}\n  IdentitiesOnly yes\n")
        config.chmod(0o600)
        # OpenSSH finds its files by the user's entry in the system's list, not by HOME.
        self.env["STOKER_SSH_CONFIG"] = str(config)
        self.stoker("hosts", "add", name, f"ssh://root@{box.address}:{box.port}", "--yes")

    def writes(self, name: str = "tiny", *, steps: int = 8, every: str = "2 steps", store: str = "") -> Path:
        """A run file and its text."""
        path = self.folder / f"{name}.yaml"
        text = RUN.format(steps=steps, every=every, store=f', store: "{store}"' if store else "")
        path.write_text(text, encoding="utf-8")
        (self.folder / "words.txt").write_text(globals()["words"](), encoding="utf-8")
        return path

    def _first_pid(self) -> int:
        assert self._first is not None
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return int(children[0]) if children else 0


@contextlib.contextmanager
def laptop(folder: Path) -> Iterator[Laptop]:
    with Laptop(folder).powered() as one:
        yield one
