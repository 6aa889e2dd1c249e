"""Real trainings for campaigns: tiny runs in forked children of a process that has torch imported, so a start takes a
second and a signal hits a real process. Several ranks are several children in one process group.
"""

import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import tiny_run
from tiny_run import RunDir

from stoker.rundir import checkpoints, events, files

STEPS = 40
_KEPT = ("run.yaml", "manifest.json", "plan.json", "data")


def text(base: Path, *, method: str = "lora", ranks: int = 1, **words: str) -> str:
    """A run file; `words` replace a line's words by section. By the method `scratch` a model begins from nothing."""
    new = f"model: {{shape: llama, layers: 2, width: 64, heads: 2}}\ntokenizer: {base}\n"
    model, method = (new, "full") if method == "scratch" else (f"model: {base}\n", method)
    adapter = ", rank: 4, dropout: 0.1" if method != "full" else ""
    sections = {
        "data": "{train: rows.jsonl, eval: rows.jsonl, length: 64, pack: true}",
        "tune": f"{{method: {method}{adapter}}}",
        "train": f"{{batch: 4, steps: {STEPS}, learning_rate: 1e-3, warmup: 5, eval_every: 7 steps}}",
        "save": "{every: 2 steps, keep: 2, best: eval_loss}",
        "where": f"{{micro: 2, processes: {ranks}}}" if ranks > 1 else "{micro: 2}",
        "native": "{trainer: {report_to: []}}",
    } | words
    return model + "\n".join(f"{key}: {value}" for key, value in sections.items())


def make(folder: Path, words: str, rows: int = 23, longest: int = 64, eval_rows: int = 3) -> RunDir:
    made = tiny_run.random_rows(rows, seed=5, longest=longest, segments=3)
    return tiny_run.make_run(folder, words, made, made[:eval_rows])


def again(run_dir: RunDir, folder: Path) -> RunDir:
    """The same run from its beginning in another folder."""
    copy = folder / "runs" / run_dir.name
    shutil.rmtree(folder, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in _KEPT:
        source = run_dir.path / name
        shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy / name)
    return RunDir(copy)


@dataclass
class Attempt:
    """One start of the training program in children of this process."""

    run_dir: RunDir
    pids: list[int]
    meeting: str
    codes: dict[int, int] = field(default_factory=dict)

    @property
    def group(self) -> int:
        return self.pids[0]

    def running(self) -> bool:
        """Whether any rank lives; a rank that ended leaves its code."""
        for pid in self.pids:
            if pid not in self.codes:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self.codes) < len(self.pids)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def wait(self, seconds: float = 300) -> int:
        """The worst exit code; a rank that is not back in time is ended and counted as a hang."""
        deadline = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > deadline or any(code not in (0, 75) for code in self.codes.values()):
                hung = time.monotonic() > deadline
                time.sleep(0 if hung else 1)
                self.signal(signal.SIGKILL)
                for pid in self.pids:
                    if pid not in self.codes:
                        self.codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if hung:
                    self.codes[self.pids[0]] = HUNG
            time.sleep(0.002)
        shutil.rmtree(self.meeting, ignore_errors=True)
        return next((code for code in self.codes.values() if code), 0)

    def kill(self) -> None:
        """SIGKILL to the whole group at once."""
        self.signal(signal.SIGKILL)
        for pid in self.pids:
            if pid not in self.codes:
                self.codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        shutil.rmtree(self.meeting, ignore_errors=True)


HUNG = 99


def start(run_dir: RunDir, before: Callable[[], None] | None = None) -> Attempt:
    """Start the training program; `before` runs in each child first."""
    gc.collect()
    gc.freeze()  # children need not look through what is imported already
    plan = files.read_json(run_dir.plan_file)
    count, meeting = plan["batch"]["devices"], tempfile.mkdtemp(prefix="meeting-")
    attempt = Attempt(run_dir, [], meeting)
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            train_rank(run_dir, rank, count, meeting, before, attempt.pids[0] if attempt.pids else 0)
        os.setpgid(pid, attempt.pids[0] if attempt.pids else pid)
        attempt.pids.append(pid)
    return attempt


def train_rank(
    run_dir: RunDir, rank: int, count: int, meeting: str, before: Callable[[], None] | None, group: int
) -> None:
    """Be one rank of a training, in a child that joins a process group (0: has its own), to the end of the process."""
    code = 70
    try:
        os.setpgid(0, group)
        log = os.open(run_dir.path / f"child{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        logging.disable(logging.WARNING)
        if files.read_json(run_dir.plan_file)["strategy"] != "single":
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            os.environ |= {key: str(value) for key, value in ranks.items()}
            os.environ |= {"STOKER_RENDEZVOUS": meeting, "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
        from stoker.engine import program, train

        sys.argv = ["train", str(run_dir.path)]
        if before:
            before()
        code = program.run(train.main)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@dataclass(frozen=True)
class Outcome:
    """What a finished training left: every loss and eval loss in hex, the chosen weights, and the last step's state."""

    losses: dict[int, str]
    evals: dict[int, str]
    sha: str
    last: dict[str, str]
    """Digests of the last checkpoint's weights and of its training state."""


def outcome(run_dir: RunDir) -> Outcome:
    evals = {e["step"]: e["eval_loss"].hex() for e in events.read(run_dir.events_file) if e["event"] == "eval"}
    newest = checkpoints.committed(run_dir.checkpoints)[-1].path
    last = {path.name: files.sha256(path) for path in sorted(newest.glob("*.safetensors"))}
    return Outcome(tiny_run.losses(run_dir), evals, tiny_run.weights_sha(run_dir.final), last)


def difference(found: Outcome, wanted: Outcome) -> str:
    """What differs, or nothing."""
    steps = [step for step in wanted.losses if found.losses.get(step) != wanted.losses[step]]
    if steps or len(found.losses) != len(wanted.losses):
        return f"losses differ from step {steps[:1]} on ({len(steps)} of {len(wanted.losses)})"
    if found.evals != wanted.evals:
        return f"eval losses differ: {sorted(set(wanted.evals.items()) ^ set(found.evals.items()))[:2]}"
    if found.sha != wanted.sha:
        return "final weights differ"
    if "state.safetensors" not in wanted.last or found.last != wanted.last:
        return f"the last checkpoint differs: {sorted(set(wanted.last.items()) ^ set(found.last.items()))[:2]}"
    return ""


def log_of(run_dir: RunDir) -> str:
    return "".join(path.read_text()[-1500:] for path in sorted(run_dir.path.glob("child*.log")))
