"""Starts a training on this machine: checks, data, plan, then a detached supervisor."""

import contextlib
import datetime
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from stoker import env
from stoker.api import last_place, loading, preparation, store_return
from stoker.api.handle import RunHandle
from stoker.api.last_place import Move
from stoker.api.loading import RunSource
from stoker.api.planning import require_possible
from stoker.api.run_progress import RunProgress
from stoker.api.sentences import listed, to_log
from stoker.cluster import assemble
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.launch import answer_needs, early_start, plan_inputs, trackers, training
from stoker.launch.early_start import EarlyStart
from stoker.messages import MessageCallback
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import events, files, layout
from stoker.rundir.layout import RunDir
from stoker.rundir.prepared import Report


def train(run: RunSource, overrides: Mapping[str, Any] | None = None) -> RunHandle:
    """Train on this machine, or go on where training stopped; returns as soon as the supervisor has started.

    The training belongs to processes of its own: it goes on when this one ends.

    Args:
        run: A run file's path, a recipe's name, or what `load` returned.
        overrides: Values by key, such as `{"train.epochs": 1}`.
    """
    run_file = loading.load(run, overrides)
    if run_file.run.where.place != "local":
        raise StokerError("STK514", place=run_file.run.where.place)
    started = begin(run_file, Listener())
    return RunHandle(started.run_dir, started.process, started.progress.read_bytes)


@dataclass(frozen=True)
class Listener:
    """What is done beside a start, such as showing it in a terminal."""

    tell: MessageCallback = to_log
    prepare: Callable[[RunDir], Report] = preparation.ensure
    planned: Callable[[Plan], None] = lambda _: None
    """Called with the plan before training starts."""
    agree: Callable[[], bool] = lambda: False
    """Asked where the run's last place does not answer: go on from what is here?"""
    during: Callable[[str], AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    """Entered with the key of a sentence for as long as something takes that may take seconds."""


@dataclass(frozen=True)
class Started:
    """A supervisor that was just started, and a view of what happens from then on."""

    run_dir: RunDir
    process: subprocess.Popen[bytes] | None
    """None where the run is finished and nothing is left to do."""
    progress: RunProgress


def begin(run_file: RunFile, listener: Listener) -> Started:
    """Everything up to the supervisor's start; a trainer that lost its supervisor gets a new one."""
    run, run_dir = run_file.run, layout.named(str(run_file.run.name))
    if left := training.orphan(run_dir):
        listener.tell("train.adopted", pid=left)
        return _start(run_dir)
    with run_file.located(), training.launching(run_dir, run):
        _forget_request(run_dir)
        assemble.check(run)
        trackers.check(run)
        if not run_dir.final.is_dir():  # a finished run needs none of it
            answer_needs.check(run, run_file.folder)
        last_place.bring(Move(run_dir, run_file, listener.tell, listener.agree), "local")
        with last_place.unless_refused(run_dir), store_return.leased(layout.create(run_file), run, listener.tell):
            return _prepared_and_started(run_dir, run_file, listener)


def _prepared_and_started(run_dir: RunDir, run_file: RunFile, listener: Listener) -> Started:
    with listener.during("train.planning"):
        early = early_start.begin(run_file, run_dir)
    with contextlib.closing(early) if early else contextlib.nullcontext():
        plan = _ready(run_dir, run_file, listener, early)
        if _is_finished(run_dir, run_file.run, plan):
            return Started(run_dir, None, _past(run_dir))
        listener.planned(plan)
        run_dir.place_file.unlink(missing_ok=True)  # only now: until then its last place is asked about it
        with listener.during("train.launching"):
            return _start(run_dir, early)


def _forget_request(run_dir: RunDir) -> None:
    """A request to stop that is older than this launch was for an earlier one."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        asked, launched = run_dir.stop_file.stat().st_mtime, env.read(env.LAUNCHED)
        if launched and datetime.datetime.fromisoformat(launched).timestamp() <= asked:
            return
    run_dir.stop_file.unlink(missing_ok=True)


def _ready(run_dir: RunDir, run_file: RunFile, listener: Listener, early: EarlyStart | None) -> Plan:
    """Prepare the data, bring what the store has, and write the plan for this machine."""
    _say_changes(run_dir, listener.prepare(run_dir), listener)
    store_return.bring(run_dir, run_file.run, listener.tell)
    assemble.gathered(run_dir, run_file.run, listener.tell)
    with listener.during("train.planning"):
        machine = early.machine if early else plan_inputs.machine(None, run_file.run, run_dir)
        plan = make_plan(plan_inputs.inputs(run_file, run_dir, machine))
    require_possible(run_file.run, plan)
    files.write_json(run_dir.plan_file, plan.model_dump())
    plan_inputs.record(run_dir, run_file, machine, plan.data.digest)
    return plan


def _say_changes(run_dir: RunDir, report: Report, listener: Listener) -> None:
    """A run that was trained goes on with its prepared data; that its sources differ by now is said and recorded."""
    if layout.was_trained(run_dir):
        changed = preparation.changed_sources(run_dir, report)
        events.append(run_dir.events_file, "sources", changed=changed)
        if changed:
            listener.tell("prepare.sources_changed", files=listed(changed))


def _is_finished(run_dir: RunDir, run: Run, plan: Plan) -> bool:
    """Whether the run was trained to its end here, its model is there, and no copy or machine is to be looked after."""
    if training.supervision(run_dir).get("state") != "done" or not run_dir.final.is_dir() or run.save.store:
        return False
    end = _past(run_dir).end
    done = (end.get("status"), end.get("step")) == ("done", plan.steps.total)
    return done and plan.after == "stay" and not plan.nodes and not env.read(env.LAUNCHED)


def _start(run_dir: RunDir, early: EarlyStart | None = None) -> Started:
    progress = _past(run_dir)
    process = training.start(run_dir, early.go_on) if early else training.start(run_dir)
    training.keep_lease(run_dir)
    return Started(run_dir, process, progress)


def _past(run_dir: RunDir) -> RunProgress:
    """What happened so far; what was said in earlier attempts is not said again."""
    progress = RunProgress(run_dir)
    progress.update()
    progress.rejected.clear()
    progress.interventions.clear()
    return progress
