"""Small real trainings on this machine: made like any run, supervised like any run, each in a folder of its own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker import env
from stoker.config import load
from stoker.errors import EXIT_DONE, StokerError
from stoker.facts.machine import Machine
from stoker.launch import plan_inputs, programs, training
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import events, files, layout, prepared
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

SMALL = """
model: {shape: llama, layers: 2, width: 128, heads: 2, tied: false}
tokenizer: {train: bpe, vocab: 1024}
data: {train: recipe:text/shakespeare.txt, length: 128}
train: {objective: pretrain, epochs: 20, steps: 20, batch: 16, exact: true, learning_rate: 3e-3, eval_every: never}
save: {every: 5 steps}
where: {micro: 2, after: stay}
"""
"""From scratch on text that ships with Stoker, so that nothing is downloaded; eight micro batches a step."""

_LOOK_SECONDS = 0.02
_LONGEST_SECONDS = 900.0
"""For one training with its restarts."""
_TRIES = 3

Killer = Callable[[RunDir], bool]
"""Looks at a run and kills a process of it when it is time; whether it did."""


class Trials:
    """Trainings below one folder; prepared data is made once for each length.

    Args:
        folder: Where they are; its disk is the one that is tried.
        machine: This machine.
    """

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder = folder
        self.machine = machine
        self._prepared: dict[str, RunDir] = {}
        self._trained: dict[str, RunDir] = {}

    def make(self, name: str, text: str, *words: str) -> RunDir:
        """A run directory ready to train, with its data and its plan.

        Args:
            name: Its folder.
            text: The run file.
            words: Overrides, `key=value`.
        """
        run_file = load.again(text, "prove.yaml", self.folder, [*self._devices(words), *words], name)
        run_dir = RunDir(self.folder / name)
        with run_file.located():
            layout.write(run_dir, run_file)
            self._prepare(run_dir)
            machine = plan_inputs.machine(None, run_file.run, run_dir)
            plan = make_plan(plan_inputs.inputs(run_file, run_dir, machine))
        files.write_json(run_dir.plan_file, plan.model_dump())
        return run_dir

    def trained(self, name: str, *words: str, text: str = SMALL) -> RunDir:
        """A run that nobody disturbed; made once for each name."""
        if name not in self._trained:
            run_dir = self.make(name, text, *words)
            supervise(run_dir)
            self._trained[name] = run_dir
        return self._trained[name]

    def killed(self, name: str, kill: Killer, *words: str) -> RunDir:
        """A run that lost a process by SIGKILL and that its supervisor brought to its end; made once for each name."""
        for attempt in range(_TRIES):
            if name in self._trained:
                break
            run_dir = self.make(f"{name}-{attempt}", SMALL, *words)
            if supervise(run_dir, kill):
                self._trained[name] = run_dir
        if name not in self._trained:
            raise StokerError("STK516", name=name)
        return self._trained[name]

    def log_digests(self) -> dict[str, str]:
        """SHA-256 of every log, by run and file."""
        logs = sorted(path for path in self.folder.glob("*/logs/*.log") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): files.sha256(path) for path in logs}

    def _prepare(self, run_dir: RunDir) -> None:
        """By the program once, then by links to what it made."""
        wanted = prepared.words(run_dir.run())
        if wanted in self._prepared:
            shutil.copytree(self._prepared[wanted].data, run_dir.data, copy_function=files.link)
        else:
            programs.run_engine("prepare", run_dir, lambda _: None)
            self._prepared[wanted] = run_dir

    def _devices(self, words: tuple[str, ...]) -> list[str]:
        """One device, unless the words say otherwise."""
        stated = any(word.startswith(("where.gpus=", "where.processes=")) for word in words)
        return [] if stated else [f"where.gpus={'0' if self.machine.kind == 'cpu' else '1'}"]


def supervise(run_dir: RunDir, kill: Killer | None = None) -> bool:
    """Train to the end under a supervisor; whether `kill` found something to kill."""
    done = False

    def look(_: int) -> None:
        nonlocal done
        done = done or (kill is not None and kill(run_dir))

    start = events.end(run_dir.events_file)
    _await(training.start(run_dir), run_dir, "train", start, look)
    return done


def run_program(run_dir: RunDir, program: str, look: Callable[[int], None] = lambda _: None) -> None:
    """Run a program of the engine as the run's trainer, without a supervisor, calling `look` with its pid meanwhile."""
    plan = {**files.read_object(run_dir.plan_file), "argv": ["-m", f"stoker.engine.{program}"]}
    start = events.end(run_dir.events_file)
    _await(processes.start_trainer(run_dir.path.resolve(), plan, 1, None), run_dir, program, start, look)


def _await(
    process: "subprocess.Popen[bytes]", run_dir: RunDir, program: str, since_byte: int, look: Callable[[int], None]
) -> None:
    """Wait for a process, calling `look` with its pid meanwhile; a failure, or taking too long, is an error.

    What it says of a failure is among the events from `since_byte` on, where they ended before it was started.
    """
    until = time.monotonic() + _LONGEST_SECONDS
    try:
        while process.poll() is None:
            look(process.pid)
            if time.monotonic() > until:
                raise StokerError("STK517", name=run_dir.name, seconds=round(_LONGEST_SECONDS))
            time.sleep(_LOOK_SECONDS)
    finally:
        _end(process, run_dir)
    if process.returncode != EXIT_DONE:
        programs.raise_engine_error(program, run_dir, process.returncode, since_byte)


def _end(process: "subprocess.Popen[bytes]", run_dir: RunDir) -> None:
    """Leave nothing behind, also after Ctrl-C: the supervisor first, or it would start the trainer again."""
    if process.poll() is None:
        processes.terminate(process.pid)
        process.wait()
        if left := processes.known_trainer(run_dir.path.resolve()):
            processes.terminate(left)


def plan_of(run_dir: RunDir) -> Plan:
    """The plan a run was trained by."""
    return files.read_record(run_dir.plan_file, Plan)


def noted(run_dir: RunDir, kind: str) -> list[dict[str, Any]]:
    """The events of a kind."""
    return [event for event in events.read(run_dir.events_file) if event["event"] == kind]


def kill_trainer(run_dir: RunDir) -> bool:
    """SIGKILL to the trainer once a checkpoint is committed and steps are left."""
    pid = processes.known_trainer(run_dir.path.resolve()) if _is_time(run_dir) else 0
    return bool(pid) and _kill(pid)


def kill_rank(run_dir: RunDir) -> bool:
    """SIGKILL to the last of several ranks, at the same moment."""
    starter = processes.known_trainer(run_dir.path.resolve()) if _is_time(run_dir) else 0
    meeting = processes.environment(starter).get(env.RENDEZVOUS.name) if starter else None
    ranks = {int(one["rank"]): int(one["pid"]) for one in processes.read_pulses(meeting, run_dir.path.resolve())}
    return bool(ranks) and _kill(ranks[max(ranks)])


def _is_time(run_dir: RunDir) -> bool:
    return run_dir.events_file.exists() and bool(noted(run_dir, "checkpoint"))


def _kill(pid: int) -> bool:
    if sys.platform == "win32":
        os.kill(pid, signal.SIGTERM)  # Windows ends the process at once
        return True
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
