"""`--on`: commands about a run on another machine. What is said about it is said there, by the very same Stoker."""

import contextlib
import sys
from collections.abc import Sequence

from stoker import messages
from stoker.api.figures import size
from stoker.api.planning import require_possible
from stoker.api.run_progress import RunProgress
from stoker.cli import sky_command
from stoker.cli.prepare_command import ensure_prepared
from stoker.config import load
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import EXIT_USER, StokerError
from stoker.facts import platforms
from stoker.hosts import autodl, known, probe
from stoker.hosts.shell import Ssh
from stoker.launch import plan_inputs, programs
from stoker.places import package, place
from stoker.places.kernels import Kernel
from stoker.places.package import Package
from stoker.places.place import Place
from stoker.plan import clocks
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import layout
from stoker.rundir.layout import RunDir
from stoker.store import copies
from stoker.terminal import console, kaggle_chain, plan_pages


def train(run_file: RunFile, name: str, overrides: list[str], on: str | None, *, detach: bool, yes: bool) -> None:
    """Send a run to its place and start it there, or say that it is under way; this machine may then be closed."""
    with run_file.located():
        if on and run_file.run.where.hosts:
            raise StokerError("STK772", place=f"--on {on}")
        there = place.find(run_file.run, on)
        if there.name == place.SKY:
            sky_command.emit(run_file, name, overrides)
            return
        run_dir = layout.create(run_file, overrides)
        with there.awake(console.talk):
            sent = _sent(there, run_file, run_dir, name, overrides, yes=yes)
            if sent is not None:
                console.talk("remote.starting", host=there.label)
                there.start(sent)
                console.talk("remote.started", name=run_dir.name, host=there.label)
                for host in there.left_on:
                    console.talk("remote.left_on", host=host)
        if isinstance(there, Kernel) and not detach:
            sys.exit(kaggle_chain.follow(there, run_dir.name))


def _sent(  # what the user gave
    there: Place, run_file: RunFile, run_dir: RunDir, name: str, overrides: list[str], *, yes: bool
) -> Package | None:
    """All that comes before the first paid second of a card; None where there is nothing to start."""
    if _is_under_way(there, run_dir):
        place.record(run_dir, there.name)
        return None
    _prepare(run_dir, there)
    run_file, overrides = _priced(there, run_file, name, overrides)
    _agree(there, run_file, run_dir, yes=yes)
    sent = package.make(name, run_file, overrides)
    place.record(run_dir, there.name)
    with console.status() as status:
        status.show(messages.text("remote.sending", size=size(sent.total_bytes), host=there.label))
        there.put(sent)
    return sent


def _priced(there: Place, run_file: RunFile, name: str, overrides: list[str]) -> tuple[RunFile, list[str]]:
    """The run with the price its provider bills, where that is known and the run file states none."""
    offer = there.price()
    if offer is None or run_file.run.where.price:
        return run_file, overrides
    overrides = [*overrides, f"where.price={offer.price_per_hour:g} {offer.currency}/h"]
    return load.load(name, overrides), overrides


def _is_under_way(there: Place, run_dir: RunDir) -> bool:
    """Whether there is nothing to start: it runs there, or is done."""
    with console.status() as status:
        status.show(messages.text("remote.looking", host=there.label))
        found = there.status(run_dir.name)
    if found is None or found["state"] not in ("queued", "running", "done"):
        return False
    key = "remote.done" if found["state"] == "done" else "remote.already"
    console.talk(key, name=run_dir.name, host=there.label, step=found["step"])
    if found["state"] == "done":
        there.settle(run_dir.name)
    return True


def _prepare(run_dir: RunDir, there: Place) -> None:
    """Tokenised before the meter runs, where this machine can."""
    try:
        programs.check_engine()
    except StokerError:
        console.talk("remote.not_prepared", host=there.label)
        return
    ensure_prepared(run_dir)


def _agree(there: Place, run_file: RunFile, run_dir: RunDir, *, yes: bool) -> None:
    """Show the plan for that machine, what it costs and which clocks run; then ask."""
    if (facts := there.facts()) is not None:
        machine = probe.to_machine(facts).model_copy(update={"nodes": there.machines})
        plan = make_plan(plan_inputs.inputs(run_file, run_dir, machine, there.surroundings()))
        plan_pages.show(plan)
        # A tier is refused there, if at all: what decides it comes with Stoker.
        require_possible(run_file.run, plan.model_copy(update={"resume": None}))
        _tell_balance(there, plan)
        _tell_clocks(facts.platform)
    if yes:
        return
    console.talk("remote.ask")
    if console.ask().strip().lower() not in ("y", "yes", "是"):
        console.talk("remote.not_started")
        sys.exit(EXIT_USER)


def _tell_balance(there: Place, plan: Plan) -> None:
    """What is left in the account, where its provider says so, beside what the run costs."""
    left = there.balance()
    if left is None:
        return
    console.talk("autodl.balance", balance=f"{left:.2f}")
    if plan.cost and plan.cost.currency == autodl.CURRENCY and left < plan.cost.amount:
        console.talk("autodl.balance_low", cost=f"{plan.cost.amount:.2f}")


def _tell_clocks(name: str) -> None:
    """What a platform deletes or ends by itself."""
    platform = platforms.find(name)
    for danger in clocks.dangers(platform) if platform else ():
        console.talk("remote.clock", clock=messages.text(danger.key, **danger.fields))


def elsewhere(name: str, on: str | None) -> tuple[Place, str] | None:
    """The place a run is at, and its name there; None where it is here, or nowhere that is known."""
    try:
        run_dir = layout.find(name)
    except StokerError:
        if on is None:
            return None
        if not copies.is_run_name(name):
            raise
        return place.find(_any_run(), on), name
    word = on or place.recorded(run_dir)
    return (place.find(run_dir.run(), word), run_dir.name) if word else None


def forward(name: str, on: str | None, words: Sequence[str]) -> None:
    """Where the run is elsewhere, say the command there and end with its code."""
    found = elsewhere(name, on)
    if found is None:
        return
    there, run = found
    words = [words[0], run, *words[2:]]
    if isinstance(there, Kernel) and words[0] == "watch":
        sys.exit(kaggle_chain.watch(there, run, words))
    sys.exit(there.follow(words))


def pull(there: Place, name: str) -> None:
    """Bring a run from the machine it is on."""
    with console.status() as status:
        status.show(messages.text("remote.looking", host=there.label))
        run_dir = there.get(name)
    progress = RunProgress(run_dir)
    progress.skim()
    if progress.state == "done":
        run_dir.place_file.unlink(missing_ok=True)  # from now on it is here
    else:
        place.record(run_dir, there.name)
    console.talk("remote.pulled", name=name, path=run_dir.final if run_dir.final.is_dir() else run_dir.path)


def runs(on: str) -> None:
    """The runs of another machine."""
    sys.exit(place.find(_any_run(), on).follow(["runs"]))


def tunnel(name: str, port: int) -> None:
    """A port of a machine's loopback here, until Ctrl-C."""
    line = Ssh(known.find(name))
    console.talk("remote.tunnel", host=name, port=port)
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(line.tunnel(port))


def _any_run() -> Run:
    """A run that names no place, for commands that name one."""
    return load.load("scratch_tiny").run
