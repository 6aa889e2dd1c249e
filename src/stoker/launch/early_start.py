"""A supervisor started before its plan, so that the trainer imports its libraries while the data is prepared.

Only where a processor and memory would be idle meanwhile: several processors, one process that trains, and sources that
one process prepares. Only for a run that was never started: what it left would name processes that are not these.
"""

import contextlib
import json
import os
import subprocess

from stoker import env
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.facts import setup_times
from stoker.facts.machine import Machine
from stoker.hosts import mirror_probe
from stoker.launch import plan_inputs, training
from stoker.plan import make
from stoker.rundir import inputs, prepared
from stoker.rundir.layout import RunDir
from stoker.supervise import early_trainer

_LEAST_MEMORY_BYTES = 4 << 30
"""The imports hold 0.6 GB of it."""
_END_SECONDS = 10.0


class EarlyStart:
    """A supervisor that waits for a plan."""

    def __init__(self, run_dir: RunDir, machine: Machine, argv: list[str], variables: dict[str, str]) -> None:
        """Start it; raises OSError where the system refuses.

        Args:
            run_dir: The run directory.
            machine: What was found here before: imports may hold a little of a card.
            argv: What the plan will probably start.
            variables: With which variables.
        """
        self.machine = machine
        self._environment = env.child_environment({})
        self._supervisor = training.start_supervisor(run_dir, early=True)
        self._is_told = False
        try:
            early_trainer.tell(self._supervisor, json.dumps({"argv": argv, "env": variables}))
        except BaseException:
            self.close()
            raise

    def go_on(self) -> subprocess.Popen[bytes] | None:
        """Tell it that there is a plan; None where it has ended, or was started with other variables than by now."""
        if self._supervisor.poll() is None and self._environment == env.child_environment({}):
            with contextlib.suppress(OSError):
                early_trainer.go_on(self._supervisor)
                self._is_told = True
                return self._supervisor
        self.close()
        return None

    def close(self) -> None:
        """End it, unless it was told to go on."""
        if self._is_told:
            return
        early_trainer.hang_up(self._supervisor)
        try:
            self._supervisor.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # another process holds the pipe: a child that this one has forked
            self._supervisor.kill()
            self._supervisor.wait()


def begin(run_file: RunFile, run_dir: RunDir) -> EarlyStart | None:
    """Start one where it helps. What is wrong with a run is left to those who say it."""
    with contextlib.suppress(StokerError, OSError):
        return _begun(run_file, run_dir)
    return None


def _begun(run_file: RunFile, run_dir: RunDir) -> EarlyStart | None:
    run = run_file.run
    if os.name == "nt" or run_dir.supervisor_file.exists() or run_dir.process_file.exists():
        return None
    if not _is_small(run_file) or prepared.current_report(run_dir, run, run_file.folder):
        return None
    machine = plan_inputs.machine(None, run, run_dir)
    if not _has_room(machine, run) or (found := make.single_program(run, machine, mirror_probe.inherited())) is None:
        return None
    return EarlyStart(run_dir, machine, *found)


def _is_small(run_file: RunFile) -> bool:
    """Whether one process prepares it, from files that are here."""
    run, named = run_file.run, inputs.named(run_file.run)
    if run.data.set is not None or run.data.pipeline or any(inputs.is_remote(path) for path, _ in named):
        return False
    sources = [file for path, kinds in named for file in inputs.expand(path, run_file.folder, kinds)]
    return sum(file.stat().st_size for file in sources) < setup_times.SEVERAL_BYTES


def _has_room(machine: Machine, run: Run) -> bool:
    alone = run.where.nodes == 1 and not run.where.hosts
    return alone and machine.cpu_count > 1 and machine.memory_bytes >= _LEAST_MEMORY_BYTES
