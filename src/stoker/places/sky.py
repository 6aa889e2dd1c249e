"""SkyPilot: writes `runs/<name>/sky.yaml`, a task with our own resume inside, and the command that starts it.

Nothing of SkyPilot is imported or run here: the user runs `sky`. SkyPilot replaces a preempted machine, and the same
`stoker train` resumes there from the store; so a run without a remote store is refused. SkyPilot releases a machine
without asking: the task ends only after the copy in the store was verified.
"""

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml

from stoker import env, messages
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import EXIT_STOPPED, StokerError
from stoker.facts import cards
from stoker.hosts import wheel
from stoker.hosts.box_facts import BoxFacts
from stoker.launch import plan_inputs
from stoker.launch.sky_catalogue import accelerators
from stoker.places import box_setup
from stoker.places import package as packages
from stoker.places.package import Package
from stoker.places.place import Place, Terminal
from stoker.plan import checks
from stoker.rent import compare
from stoker.rent.compare import Row
from stoker.rundir import files
from stoker.rundir.layout import RunDir
from stoker.store import address
from stoker.tools import Tool

TOOL = Tool("sky", "sky", "skypilot")
FILE = "sky.yaml"

_USUAL_DISK_GB = 256
"""What SkyPilot gives a machine by itself."""
_SYSTEM_DISK_GB = 60
_IDLE_MINUTES = 5
_TRIES = 60
"""A minute each, for the copy in the store to verify; then the machine may be stopped, which keeps its disk."""
_STORES = ("s3", "hf")
"""Stores a machine reaches with credentials from its environment."""
_MACHINE = ("accelerators", "instance_type", "any_of", "ordered")
"""Options of SkyPilot that say which machine."""

_BEFORE = """\
set -e
mkdir -p ~/stoker
cp -Ru ~/sky_workdir/. ~/stoker/
python=$(command -v python3 || command -v python)
"""
_RUN = """\
export {runs}="$HOME/stoker/runs"
cd ~/stoker/{folder} || exit 2
stoker() {{ ~/stoker/env/bin/python -X utf8 -m stoker "$@"; }}
run=~/stoker/runs/{name}
code=0
stoker {words} || code=$?

# SkyPilot gives the machine back when this has ended. So it waits until the store has a verified copy of everything.
made() {{ for one in checkpoints artifacts; do [ ! -e "$run/$one" ] || ls "$run/$one" > /dev/null || return 0; done
  [ "$(ls -d "$run"/checkpoints/step-* "$run"/artifacts/final 2>/dev/null)" ]; }}
tries=0
until ! made || {{ stoker push {name} && stoker verify {name} --from {store}; }}; do
  echo {waiting} >&2
  tries=$((tries + 1))
  [ "$tries" != {most} ] || exit 1
  sleep 60
done
exit "$code"
"""


class Task(Place):
    """The place `sky`: writes a task for SkyPilot, which has commands of its own for everything after that."""

    name = "sky"
    started_by_user = True

    def check(self, run_file: RunFile) -> None:
        """Refuse a run that could not resume after its machine is gone."""
        store = run_file.run.save.store
        if store is None or address.parse(store, run_file.folder).kind not in _STORES:
            raise StokerError("STK768", store=store or "-")

    def hand_over(self, run_file: RunFile, package: Package, run_dir: RunDir, terminal: Terminal) -> None:
        """Choose a card, write the task, and print the command that starts it."""
        run = run_file.run
        row = machine(run_file, run_dir)
        if row is not None:
            terminal.talk("sky.card", card=row.card, count=row.devices)
        path = write(run_file, package, run_dir, row)
        if run.where.after == "release" and not run.where.spot:
            verify, down = release(run_dir.name, str(run.save.store))
            terminal.talk("sky.release", verify=verify, down=down)
        terminal.talk("sky.written", path=path)
        terminal.data(shlex.join(command(run, path)))

    def facts(self) -> BoxFacts | None:
        """SkyPilot finds a machine later."""
        return None

    def status(self, run: str) -> dict[str, Any] | None:
        """Only SkyPilot knows."""
        del run
        return None

    def put(self, package: Package) -> None:
        """See `hand_over`."""
        raise StokerError("STK769", words=_words("launch", package.name, FILE))

    def start(self, package: Package) -> None:
        """See `hand_over`."""
        raise StokerError("STK769", words=_words("launch", package.name, FILE))

    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:  # noqa: ARG002  # the protocol's
        """SkyPilot follows its machines."""
        raise StokerError("STK769", words=_words("logs", run))

    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:  # noqa: ARG002  # the protocol's
        """SkyPilot follows its machines."""
        raise StokerError("STK769", words=_words("logs", run))

    def runs(self, *, as_json: bool = False) -> int:  # noqa: ARG002  # the protocol's
        """SkyPilot lists its machines."""
        raise StokerError("STK769", words="sky status")

    def stop(self, run: str) -> int:
        """SkyPilot stops its machines."""
        raise StokerError("STK769", words=_words("cancel", run))

    def get(self, run: str) -> RunDir:
        """The run's store has what it made."""
        store = self._run.save.store if self._run else None
        raise StokerError("STK769", words=f"stoker pull {run} --from {store or 'ADDRESS'}")

    def stop_meter(self) -> None:
        """SkyPilot stops its machines."""
        raise StokerError("STK769", words="sky stop")


def machine(run_file: RunFile, run_dir: RunDir) -> Row | None:
    """The card that carries the run for the least money, of those SkyPilot knows; None where the run file names one."""
    run = run_file.run
    if any(name in run.native.sky for name in _MACHINE):
        return None
    inputs = plan_inputs.inputs(run_file, run_dir, plan_inputs.machine(_first_card(), run))
    counts = (run.where.gpus,) if isinstance(run.where.gpus, int) and run.where.gpus else compare.COUNTS
    known = [card for card in cards.cards() if card.name in accelerators()]
    row = compare.recommend(compare.ranked(compare.compare(inputs, known, counts), "money"), compare.Terms.of(run))
    if row is None:
        raise StokerError("STK770", name=run_file.name)
    return row


def write(run_file: RunFile, package: Package, run_dir: RunDir, row: Row | None) -> Path:
    """Write the task, and beside it the folder that SkyPilot uploads."""
    run = run_file.run
    stage = run_dir.path / "sky"
    _lay_out(package, stage)
    path = run_dir.path / FILE
    task = {
        "name": task_name(package.name),
        "workdir": str(stage.resolve()),
        "resources": resources(run, row),
        "envs": {env.LANG.name: messages.language()},
        "secrets": dict.fromkeys(packages.secrets(run)),
        "setup": _setup(stage, run),
        "run": _script(run, package),
    }
    head = messages.text("sky.header", command=shlex.join(command(run, path)))
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    files.write_text(path, comment + _yaml({key: value for key, value in task.items() if value}))
    return path


def resources(run: Run, row: Row | None) -> dict[str, Any]:
    """What SkyPilot is asked for: by the plan, overridden by `native.sky`."""
    found: dict[str, Any] = {}
    if row is not None:
        found["accelerators"] = f"{accelerators()[row.card]}:{row.devices}"
        needed = _SYSTEM_DISK_GB + -(-sum(row.found.disk.values()) // 10**9) if row.found else 0
        if needed > _USUAL_DISK_GB:
            found["disk_size"] = needed
    if run.where.spot:
        found |= {"use_spot": True, "job_recovery": {"recover_on_exit_codes": [EXIT_STOPPED]}}
    elif run.where.after != "stay":
        # Never `down`: SkyPilot deletes the disk whatever the copy is like, also after a task that was killed.
        found["autostop"] = {"idle_minutes": _IDLE_MINUTES, "down": False}
    return {**found, **run.native.sky}


def release(name: str, store: str) -> tuple[str, str]:
    """For `where.after: release`: the command that reads the copy back, and the one that then deletes the cluster."""
    return shlex.join(["stoker", "verify", name, "--from", store]), _words("down", name)


def command(run: Run, path: Path) -> list[str]:
    """What the user types. A spot machine needs a managed job: SkyPilot then finds another one."""
    secrets = [word for name in packages.secrets(run) for word in ("--secret", name)]
    name = task_name(path.parent.name)
    if run.where.spot:
        return ["sky", "jobs", "launch", "-n", name, *secrets, str(path)]
    return ["sky", "launch", "-c", name, *secrets, str(path)]


def task_name(run: str) -> str:
    """A name SkyPilot and every cloud take."""
    return "stoker-" + re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")


def _first_card() -> str:
    return next(iter(accelerators()))


def _script(run: Run, package: Package) -> str:
    is_deleted = run.where.spot or '"down": true' in json.dumps(run.native.sky)
    return _RUN.format(
        runs=env.RUNS.name,
        folder=shlex.quote(package.folder),
        name=shlex.quote(package.name),
        words=_called(package),
        store=shlex.quote(str(run.save.store)),
        waiting=shlex.quote(messages.text("sky.waiting", name=package.name)),
        most=0 if is_deleted else _TRIES,
    )


def _called(package: Package) -> str:
    """In the foreground, so that the job ends with the training; SkyPilot stops the machine, not we."""
    words = [word for word in package.words if word != "--detach"]
    return shlex.join([*words, "--set", "where.after=stay"])


def _lay_out(package: Package, stage: Path) -> None:
    """Lay out the package's files under their names there, hard-linked where the disk allows."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    wheel.build(stage / "wheels")
    for name, path in package.files.items():
        target = stage / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), target)
        except OSError:
            shutil.copyfile(path, target)


def _setup(stage: Path, run: Run) -> str:
    """The same environment as on a box: around the image's own torch."""
    (made,) = (stage / "wheels").glob("*.whl")
    name = shlex.quote(made.relative_to(stage).as_posix())
    script = box_setup.AROUND_IMAGE.format(
        base="~/stoker",
        mark=files.sha256(made)[:16],
        python='"$python"',
        wheel=name,
        extras=f"'[{','.join(box_setup.extras_for(run))}]'",
        more=shlex.join(checks.extra_packages(run)),
    )
    return _BEFORE + script.lstrip()


def _words(verb: str, run: str, *more: str) -> str:
    return shlex.join(["sky", verb, *([] if more else [task_name(run)]), *more])


class _Dumper(yaml.SafeDumper):
    """Writes scripts as block text."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(task: dict[str, Any]) -> str:
    return yaml.dump(task, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=200)
