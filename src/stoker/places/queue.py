"""A Slurm queue: its login node is a box; a run is a job, followed by further jobs until it is done.

The job script is readable: options, the lines of this run, then `queue.sh`, which is the same for every run. A job at
its time limit commits and is requeued; where that is not allowed it submits its successor. In a job of several nodes
the script runs `stoker train` on the first one, which gets Slurm's signals, and `stoker join` on the others.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from shlex import quote
from typing import Any

from stoker.config import values
from stoker.config.run import Run
from stoker.errors import EXIT_DONE, StokerError
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.known import Host
from stoker.hosts.shell import LocalShell, Shell
from stoker.places import package as packages
from stoker.places.box import Box
from stoker.places.package import Package
from stoker.places.place import Terminal

_LEAST_NOTICE_SECONDS, _MOST_NOTICE_SECONDS = 120, 600
_NOTICE_SHARE = 0.05
"""Of a job's time, reserved for the last checkpoint and its copy."""
_FRUITLESS_MOST = 3
"""Jobs in a row without a newer checkpoint."""
_GPU_OPTIONS = {"gres", "gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket", "tres_per_task"}
_FIELDS = "%i|%T|%r|%S|%e|%N"
"""Number, state, reason, start, end, nodes."""
_PENDING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SUSPENDED"}


class Queue(Box):
    """A Slurm cluster, used through its login node."""

    first_state = "queued"

    def __init__(self, shell: Shell, host: Host, run: Run | None, notice_seconds: int | None = None) -> None:
        """Take a login node.

        Args:
            shell: Runs commands there.
            host: Its record.
            run: Decides how long a job is and which resources it takes.
            notice_seconds: How long before the time limit a job is signalled. Default: a share of its time.
        """
        super().__init__(shell, host, run)
        self.notice_seconds = notice_seconds or (_notice_seconds(run) if run else _MOST_NOTICE_SECONDS)

    @classmethod
    def here(cls, run: Run | None) -> "Queue":
        """The cluster whose login node this is."""
        shell, base = LocalShell(), (Path.home() / "stoker").as_posix()
        return cls(shell, Host(name=shell.name, host=shell.name, base=base, python=sys.executable), run)

    def facts(self) -> BoxFacts | None:
        """Not known before the job has a node: the plan is made there."""
        return None

    # ---- a job

    def start(self, package: Package) -> None:
        """Write the job's script and submit it."""
        if waiting := self._jobs(package.name):
            raise StokerError("STK742", name=package.name, host=self.name, job=waiting[0]["id"])
        folder = f"{self.run_folder(package.name)}/slurm"
        text = self.script(package, packages.secrets(self._run))
        self.shell.run(
            f"mkdir -p {quote(folder)} {quote(self.run_folder(package.name))}/logs "
            f"{quote(self.base)}/{quote(package.folder)}\n"
            f"rm -f {quote(folder)}/end {quote(folder)}/fruitless\n"
            f"cat > {quote(folder)}/job.sh <<'END_OF_JOB'\n{text}END_OF_JOB\n"
        )
        try:
            self.shell.run(f"sbatch --parsable {quote(folder)}/job.sh", secrets=packages.secrets(self._run))
        except StokerError as error:
            if error.code != "STK702":
                raise
            raise StokerError("STK741", host=self.name, reason=error.fields["reason"]) from error

    def script(self, package: Package, exported: Iterable[str]) -> str:
        """The job's script.

        Args:
            package: The run.
            exported: Names of variables whose values Slurm takes from the environment of `sbatch`.
        """
        folder = self.run_folder(package.name)
        words = [word for word in package.words if word != "--detach"]
        options = [*self._options(package.name), ("export", ",".join(exported) or "NONE")]
        lines = [
            "#!/bin/bash -l",
            f"# The run `{package.name}`, as Stoker submits it. By hand: sbatch {folder}/slurm/job.sh",
            *(f"#SBATCH --{name}" + (f"={value}" if value else "") for name, value in options),
            "",
            *(f"export {name}={quote(value)}" for name, value in self.environment().items()),
            *self.network().exports().splitlines(),
            f"run={quote(folder)}",
            f"fruitless_most={_FRUITLESS_MOST}",
            f"cd {quote(f'{self.base}/{package.folder}')} || exit 2",
            self._command("train", words),
            *([self._command("join", package.joining)] if self.run.where.nodes > 1 else []),
            "",
        ]
        common = resources.files("stoker.places").joinpath("queue.sh").read_text(encoding="utf-8")
        return "\n".join(lines) + common.partition("\n")[2]  # the first line is for shellcheck

    def _command(self, name: str, words: Sequence[str]) -> str:
        return f"{name}=({' '.join(map(quote, self._python('-m', 'stoker', *words)))})"

    def _options(self, name: str) -> Iterator[tuple[str, str]]:
        """Options of sbatch: ours, then the run file's `native.slurm`."""
        where, native = self.run.where, self.run.native.slurm
        yield "job-name", _job_name(name)
        yield "output", quote(f"{self.run_folder(name)}/logs/slurm-%j.log")
        yield "open-mode", "append"
        yield "nodes", str(where.nodes)
        yield "ntasks-per-node", "1"
        if where.elastic:
            yield "no-kill", ""  # else a lost node ends the job of all, and Slurm requeues it
        yield "signal", f"B:USR1@{self.notice_seconds}"
        yield "requeue", ""
        if where.session:
            yield "time", str(max(1, math.ceil(values.duration_seconds(where.session) / 60)))
        if not _GPU_OPTIONS & native.keys() and (cards := _cards(where.gpus)):
            yield "gres", f"gpu:{cards}"
        for option, value in native.items():
            if value is not False:
                yield option.replace("_", "-"), "" if value is True else _value(option, value)

    # ---- while it is pending or runs

    def status(self, run: str) -> dict[str, Any] | None:
        """State of the run from its job and its run directory; None where there is neither."""
        jobs, known = self._jobs(run), super().status(run)
        if known is None and not jobs:
            return None
        state = (known or {}).get("state", "new")
        if jobs:
            state = "queued" if jobs[0]["state"] in _PENDING else "running"
        return {"name": run, "step": 0, **(known or {}), "state": state, "jobs": jobs, "last": self._last_note(run)}

    def _last_note(self, run: str) -> list[str]:
        """Last line of the record of jobs: number, restarts, time, step before, step after, outcome."""
        return self.shell.run(f"tail -n 1 {quote(self.run_folder(run))}/slurm/jobs 2>/dev/null || true").split()

    def _jobs(self, run: str) -> list[dict[str, str]]:
        """The run's jobs in the queue."""
        said = self.shell.run(
            "command -v squeue >/dev/null || { echo none; exit 0; }\n"
            f'squeue --noheader --user="$(id -un)" --name={quote(_job_name(run))} --format={quote(_FIELDS)}'
        )
        if said.strip() == "none":
            raise StokerError("STK740", host=self.name)
        names = ("id", "state", "reason", "starts", "ends", "nodes")
        return [dict(zip(names, line.split("|"), strict=True)) for line in said.splitlines() if line.count("|") == 5]

    def stop(self, run: str) -> int:
        """Ask the run to commit and end without a further job; a pending job is cancelled."""
        folder, name = quote(self.run_folder(run)), quote(_job_name(run))
        self.shell.run(
            f"mkdir -p {folder}/slurm; touch {folder}/slurm/end {folder}/stop\n"
            f'scancel --state=PENDING --user="$(id -un)" --name={name}'
        )
        return super().stop(run) if self._has_begun(run) else EXIT_DONE

    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:
        """`stoker watch` there, once a job has started."""
        self._require_begun(run)
        return super().watch(run, terminal, once=once, as_json=as_json)

    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:
        """`stoker logs` there, once a job has started."""
        self._require_begun(run)
        return super().logs(run, follow=follow, lines=lines)

    def _require_begun(self, run: str) -> None:
        """A pending job has nothing to show yet."""
        if not self._has_begun(run):
            for job in self._jobs(run):
                raise StokerError("STK745", name=run, host=self.name, **job)

    def _has_begun(self, run: str) -> bool:
        """Whether any job of the run has started."""
        return "yes" in self.shell.run(f"test -e {quote(self.run_folder(run))}/manifest.json && echo yes || true")

    @property
    def rented(self) -> Sequence[Host]:
        """None: a queue bills jobs."""
        return ()

    def stop_meter(self) -> None:
        """Nothing to stop: a queue bills jobs, and none is left when a run has ended."""


# ---- options


def _job_name(run: str) -> str:
    return f"stoker-{run}"


def _notice_seconds(run: Run) -> int:
    """How long before its time limit a job is signalled."""
    if not run.where.session:
        return _MOST_NOTICE_SECONDS // 2
    share = round(_NOTICE_SHARE * values.duration_seconds(run.where.session))
    return min(_MOST_NOTICE_SECONDS, max(_LEAST_NOTICE_SECONDS, share))


def _cards(gpus: int | str) -> int:
    """Cards of a job: `all` means those it is given, so one unless `native.slurm` asks for more."""
    if isinstance(gpus, int):
        return gpus
    return 1 if gpus == "all" else 1 + max(int(number) for number in gpus.split(","))


def _value(option: str, value: Any) -> str:
    """An option's value on an `#SBATCH` line; nothing in it may start another line."""
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, dict) or value is None or not re.fullmatch(r"[ -~]+", text):
        raise StokerError("STK743", option=option, value=text, flag=option.replace("_", "-"))
    return quote(text)
