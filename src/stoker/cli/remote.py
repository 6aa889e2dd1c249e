"""`--on`: commands about a run at another place. They run there, by the same Stoker, or as the place says."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stoker import messages
from stoker.api import last_place, last_seen
from stoker.api.figures import size
from stoker.api.last_place import Move, Records
from stoker.api.planning import require_possible
from stoker.api.run_progress import RunProgress
from stoker.cli import report_command, store_commands, watch_command
from stoker.cli.prepare_command import ensure_prepared, say_changes
from stoker.config.load import RunFile
from stoker.config.run import Run
from stoker.errors import EXIT_DONE, StokerError
from stoker.facts import platforms
from stoker.hosts import autodl, known, probe
from stoker.hosts.box_facts import BoxFacts
from stoker.hosts.shell import UNREACHABLE, Ssh
from stoker.launch import plan_inputs, programs, training
from stoker.places import package, registry
from stoker.places.package import Package
from stoker.places.place import Place
from stoker.plan import choices, clocks
from stoker.plan.make import make_plan
from stoker.plan.plan import Plan
from stoker.rundir import checkpoints, last_known, layout, lock, training_words
from stoker.rundir.layout import RunDir
from stoker.store import copies
from stoker.terminal import console, plan_pages, recipe_table
from stoker.terminal.billing_words import how_off, price

_ENDED_AT_ONCE = "STK708"
"""A launch that refused and ended there: nothing of it runs."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How a training is started."""

    on: str | None
    """Another place than the run file's."""
    detach: bool
    """Return once it has started."""
    yes: bool
    """Ask nothing."""
    why: bool = False
    """Print the plan's reasons."""
    as_json: bool = False


def train(run_file: RunFile, name: str, overrides: list[str], options: TrainOptions) -> None:
    """Send a run to its place and start it there, or say that it is running; this machine may then be closed."""
    on, as_json = options.on, options.as_json
    with run_file.located():
        if on and run_file.run.where.hosts:
            raise StokerError("STK772", place=f"--on {on}")
        there = registry.find(run_file.run, on)
        if there.package:
            console.talk("remote.package", name=there.name, package=there.package)
        there.check(run_file)
        run_dir = layout.named(str(run_file.run.name))
        with training.claimed(run_dir):
            run_dir.stop_file.unlink(missing_ok=True)  # of an earlier launch
            move = Move(run_dir, run_file, console.talk, lambda: options.yes or says_yes())
            last_place.bring(move, there.name)
            if there.started_by_user:
                with last_place.unless_refused(run_dir):
                    _hand_over(there, move, name, overrides, as_json=as_json)
                return
            with there.powered_on(console.talk):
                with last_place.unless_refused(run_dir) as before:
                    agree = functools.partial(_agree, there, run_dir=run_dir, yes=options.yes, why=options.why)
                    sent = _sent(there, move, name, overrides, agree)
                if sent is not None:
                    _require_wanted(run_dir)
                    _begin(there, sent, before)
                    last_known.seen(run_dir, there.name, {"state": there.first_state})
        code = None if options.detach else there.attend(run_dir.name, console)
        if as_json:
            console.data_json(_facts(run_dir, there))
        if code is not None:
            sys.exit(code)


def _facts(run_dir: RunDir, there: Place) -> dict[str, Any]:
    """What is known of a run at another place, under the names of `watch --json`."""
    progress = RunProgress(run_dir)
    progress.update()
    return {**progress.figures(), "on": there.name, "folder": str(run_dir.path)}


@dataclass(frozen=True)
class _Collected:
    """A terminal whose answers are kept for one JSON value."""

    answers: list[Any] = field(default_factory=list)
    talk = staticmethod(console.talk)
    status = staticmethod(console.status)

    def data(self, text: str) -> None:
        self.answers.append(text)

    def data_json(self, value: Any) -> None:
        self.answers.append(value)


def _hand_over(there: Place, move: Move, name: str, overrides: list[str], *, as_json: bool) -> None:
    """Write what the user starts the run with."""
    last_place.require_carried(move, there, None)
    layout.create(move.run_file)
    _prepare(move.run_dir, there)
    packed = package.make(name, move.run_file, overrides, moving=there.takes_checkpoint)
    if not as_json:
        there.hand_over(move.run_file, packed, move.run_dir, console)
        return
    collected = _Collected()
    there.hand_over(move.run_file, packed, move.run_dir, collected)
    console.data_json({**_facts(move.run_dir, there), "started": False, "commands": collected.answers})


def _require_wanted(run_dir: RunDir) -> None:
    """`stoker stop` may have asked meanwhile."""
    if run_dir.stop_file.exists():
        run_dir.stop_file.unlink()
        console.talk("remote.not_started")
        console.declined("STK556")


def _begin(there: Place, sent: Package, before: Records) -> None:
    console.talk("remote.starting", host=there.label)
    try:
        there.start(sent)
    except StokerError as error:
        if error.code == _ENDED_AT_ONCE:  # its last place still has it, as it was started, and may train it
            before.restore()
        raise
    console.talk("remote.started", name=sent.name, host=there.label)
    for host in there.left_on:
        console.talk("remote.left_on", host=host)


def _sent(
    there: Place, move: Move, name: str, overrides: list[str], agree: Callable[[RunFile], Plan | None]
) -> Package | None:
    """Do all that can be done before the card is paid for, if the user agrees; None where there is nothing to start."""
    run_dir, run_file = move.run_dir, move.run_file
    found = _status(there, run_dir)
    if found is not None and found["state"] in ("queued", "running", "done"):
        _require_same_training(there, run_dir, run_file.run)
        _say_running(there, run_dir, found)
        if not run_dir.manifest_file.exists():
            layout.create(run_file)
        return None
    last_place.require_there(move, there, found)
    last_place.require_carried(move, there, found)
    layout.create(run_file)  # only now: a run that trains there stays as it was started
    _prepare(run_dir, there)
    run_file, overrides = _priced(there, run_file, name, overrides)
    plan = agree(run_file)
    sent = package.make(name, run_file, overrides, moving=there.takes_checkpoint)
    if plan is not None:
        one = plan.disk_parts["checkpoints"] // choices.checkpoints_at_once(run_file.run)
        sent = dataclasses.replace(sent, checkpoint_bytes=one)
    with console.status() as status:
        status.show(messages.text("remote.sending", size=size(sent.total_bytes), host=there.label))
        there.put(sent)
    _record(run_dir, there, plan, run_file.run.save.store)  # only now: until then its last place is asked about it
    if there.kept_data:
        console.talk("remote.kept_data", name=run_dir.name, host=there.label)
    return sent


def _require_same_training(there: Place, run_dir: RunDir, run: Run) -> None:
    """Refuse a run file that asks for another training than the one of its name there, as the command does here."""
    words = there.words(run_dir.name)
    if words is None and run_dir.manifest_file.exists() and registry.recorded(run_dir) == there.name:
        words = run_dir.words()  # as it was sent
    if words is None:
        return
    # A fork that was started from another machine stays the fork that it is.
    asked = (
        run_dir.words(run) if run_dir.manifest_file.exists() else training_words.of(run, training_words.origin(words))
    )
    if changes := training_words.differing(words, asked):
        raise StokerError("STK401", name=run_dir.name, folder=f"{there.label}:runs/{run_dir.name}", changes=changes)


def _record(run_dir: RunDir, there: Place, plan: Plan | None, store: str | None) -> None:
    """Note where the run is, and what is billed there by its plan."""
    cost = plan.cost if plan else None
    price = (cost.price_per_hour * cost.billed_devices, cost.currency) if cost else None
    last_known.sent(run_dir, there.name, {host.name: host.platform for host in there.rented}, price, store)


def _priced(there: Place, run_file: RunFile, name: str, overrides: list[str]) -> tuple[RunFile, list[str]]:
    """The run with its provider's price, where that is known and the run file has none."""
    offer = there.price()
    if offer is None or run_file.run.where.price:
        return run_file, overrides
    overrides = [*overrides, f"where.price={offer.price_per_hour:g} {offer.currency}/h"]
    return recipe_table.named(name, overrides), overrides


def _status(there: Place, run_dir: RunDir) -> dict[str, Any] | None:
    with console.status() as status:
        status.show(messages.text("remote.looking", host=there.label))
        return there.status(run_dir.name)


def _say_running(there: Place, run_dir: RunDir, found: dict[str, Any]) -> None:
    """There is nothing to start: it runs there, or is done."""
    key = "remote.done" if found["state"] == "done" else "remote.already"
    console.talk(key, name=run_dir.name, host=there.label, step=found["step"])
    if registry.recorded(run_dir) != there.name:
        _record(run_dir, there, None, None)
    last_known.seen(run_dir, there.name, found)
    if found["state"] == "done":
        there.settle(run_dir.name)


def _prepare(run_dir: RunDir, there: Place) -> None:
    """Tokenise before the meter runs, if this machine can."""
    try:
        programs.check_engine()
    except StokerError:
        console.talk("remote.not_prepared", host=there.label)
        return
    say_changes(run_dir, ensure_prepared(run_dir))


def _agree(there: Place, run_file: RunFile, *, run_dir: RunDir, yes: bool, why: bool) -> Plan | None:
    """Show the plan for that machine, its cost and time limits of the platform; then ask. None without a plan."""
    plan = None
    if (facts := there.facts()) is not None:
        with console.busy("train.planning"):
            plan = _plan_for(there, facts, run_file, run_dir)
        plan_pages.show_outlook(run_file.run, plan, run_dir, why=why)
        # Whether a resume is exact enough is decided there.
        require_possible(run_file.run, plan.model_copy(update={"resume": None}))
        _tell_balance(there, plan)
        _tell_clocks(facts.platform)
    if not yes and not says_yes():
        console.talk("remote.not_started")
        console.declined()
    return plan


def _plan_for(there: Place, facts: BoxFacts, run_file: RunFile, run_dir: RunDir | None) -> Plan:
    machine = probe.to_machine(facts).model_copy(update={"nodes": there.machines})
    return make_plan(plan_inputs.inputs(run_file, run_dir, machine, there.surroundings()))


def planned(run_file: RunFile, on: str) -> Plan:
    """The plan for a host, as it is now; nothing is sent there or switched on."""
    there = registry.find(run_file.run, on)
    facts = there.facts()
    if facts is None:
        raise StokerError("STK557", place=there.label)
    return _plan_for(there, facts, run_file, None)


def says_yes() -> bool:
    """Ask whether to start."""
    console.talk("remote.ask")
    return console.ask().strip().lower() in ("y", "yes", "是")


def _tell_balance(there: Place, plan: Plan) -> None:
    """Show what is left in the account, where its provider says so, and whether it covers the run."""
    left = there.balance()
    if left is None:
        return
    console.talk("autodl.balance", balance=f"{left:.2f}")
    if plan.cost and plan.cost.currency == autodl.CURRENCY and left < plan.cost.amount:
        console.talk("autodl.balance_low", cost=f"{plan.cost.amount:.2f}")


def _tell_clocks(name: str) -> None:
    """Show what a platform deletes or ends by itself."""
    platform = platforms.find(name)
    for danger in clocks.dangers(platform) if platform else ():
        console.talk("remote.clock", clock=messages.text(danger.key, **danger.fields))


def elsewhere(name: str, on: str | None) -> tuple[Place, str] | None:
    """The place of a run, and its name there; None where it is here or unknown."""
    try:
        run_dir = layout.find(name)
    except StokerError:
        if on is None:
            return None
        if not copies.is_run_name(name):
            raise
        return registry.by_name(on), name
    word = on or registry.recorded(run_dir)
    return (registry.by_name(word, run_dir.run()), run_dir.name) if word else None


def watch(name: str, on: str | None, *, once: bool, as_json: bool) -> None:
    """Where the run is elsewhere, follow it there and exit."""
    if (found := elsewhere(name, on)) is None:
        return
    there, run = found
    run_dir = layout.named(run)
    try:
        with _reached(there, run_dir):
            code = there.watch(run, console, once=once, as_json=as_json)
    except StokerError as error:
        if error.code in UNREACHABLE and _show_last_known(run_dir, there, as_json=as_json):
            sys.exit(EXIT_DONE)
        raise
    _note(there, run_dir)
    sys.exit(code)


def logs(name: str, on: str | None, *, follow: bool, lines: int | None, as_json: bool = False) -> None:
    """Where the run is elsewhere, print its log from there and exit."""
    if (found := elsewhere(name, on)) is None:
        return
    there, run = found
    with _reached(there, layout.named(run)):
        if not as_json:
            sys.exit(there.logs(run, follow=follow, lines=lines))
        with console.captured() as printed:
            code = there.logs(run, follow=False, lines=lines)
    console.data_json({"name": run, "on": there.name, "lines": printed})
    sys.exit(code)


def stop(name: str, on: str | None, *, as_json: bool = False) -> None:
    """Where the run is elsewhere, stop it there, say what is billed, and exit."""
    if (found := elsewhere(name, on)) is None:
        return
    there, run = found
    run_dir = layout.named(run)
    if lock.is_held(run_dir.launch_lock):  # it is being sent there
        training.ask_to_stop(run_dir)
    with _reached(there, run_dir), console.captured() if as_json else contextlib.nullcontext():
        code = there.stop(run)
    _note(there, run_dir)
    _say_billed(there, run_dir)
    if as_json:
        console.data_json(_facts(run_dir, there))
    sys.exit(code)


@contextlib.contextmanager
def _reached(there: Place, run_dir: RunDir) -> Iterator[None]:
    """A place that does not respond is recorded as such."""
    try:
        yield
    except StokerError as error:
        if error.code in UNREACHABLE:
            last_known.unanswered(run_dir, there.name)
        raise


def _note(there: Place, run_dir: RunDir) -> None:
    with contextlib.suppress(StokerError):  # the command itself is done
        last_seen.note(there, run_dir)


def _show_last_known(run_dir: RunDir, there: Place, *, as_json: bool) -> bool:
    """What was last known of a run whose place does not respond, or its store knows; whether it has ended."""
    if last_known.read(run_dir) is None:
        return False
    return watch_command.last_known_page(run_dir, stored=last_seen.ask_store(run_dir, there.name), as_json=as_json)


def _say_billed(there: Place, run_dir: RunDir) -> None:
    """A run that its owner stopped leaves its machines on."""
    for host in there.rented:
        fields = {"price": price(last_known.read(run_dir)), "how": how_off(host.name, host.platform)}
        console.talk("stop.billed", host=host.name, **fields)


def pull(there: Place, name: str, *, as_json: bool = False) -> None:
    """Copy a run here from its place, or from its store where the place does not respond."""
    run_dir = layout.named(name)
    try:
        with console.status() as status:
            status.show(messages.text("remote.looking", host=there.label))
            last_seen.note(there, run_dir)
            there.get(name)
    except StokerError as error:
        if error.code not in UNREACHABLE:
            raise
        last_known.unanswered(run_dir, there.name)
        _pull_from_store(run_dir, there, error)
    progress = RunProgress(run_dir)
    progress.skim()
    if (last := progress.elsewhere) and last_seen.stays_on(last):
        _say_billed(there, run_dir)
    if progress.own_state == "done":
        if progress.not_best:
            console.talk("train.not_best", **progress.not_best)
        run_dir.place_file.unlink(missing_ok=True)  # from now on it is here
    elif registry.recorded(run_dir) is None:  # what is recorded keeps two trainings apart
        _record(run_dir, there, None, None)
    console.talk("remote.pulled", name=name, path=run_dir.final if run_dir.final.is_dir() else run_dir.path)
    if progress.own_state == "done":
        report_command.keep(run_dir)
    if as_json:
        newest = checkpoints.next_found(run_dir.checkpoints)
        step, final = newest.step if newest else None, run_dir.final.is_dir()
        brought: dict[str, Any] = {"name": name, "step": step, "final": final, "passed": []}
        console.data_json({**brought, "on": there.name, "folder": str(run_dir.path)})


def _pull_from_store(run_dir: RunDir, there: Place, error: StokerError) -> None:
    """What the store has of a run whose place does not respond."""
    if not run_dir.manifest_file.exists():
        raise error
    store = run_dir.run().save.store
    newest = checkpoints.next_found(run_dir.checkpoints)
    fields = {"name": run_dir.name, "host": there.label, "reason": error.fields["reason"]}
    here = {"here": messages.text("pull.checkpoint", step=newest.step) if newest else messages.text("pull.none_here")}
    if store is None:
        raise StokerError("STK717", **fields, **here, store=messages.text("pull.no_store")) from error
    console.talk("pull.from_store", host=there.label, reason=error.fields["reason"], store=store)
    try:
        last_seen.ask_store(run_dir, there.name)
        store_commands.pull(run_dir.name, None, as_json=False)
    except StokerError as nothing:
        why = messages.text("pull.nothing", reason=nothing.what)
        raise StokerError("STK717", **fields, **here, store=why) from nothing


def runs(on: str, *, as_json: bool = False) -> None:
    """The runs of another machine."""
    there = registry.by_name(on)
    sys.exit(there.runs(as_json=True) if as_json else there.runs())


def tunnel(name: str, port: int, *, as_json: bool) -> None:
    """Forward a port of a machine's loopback, until Ctrl-C."""
    shell = Ssh(known.find(name))
    console.talk("remote.tunnel", host=name, port=port)
    if as_json:
        console.data_json({"host": name, "port": port, "url": f"http://127.0.0.1:{port}"})
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(shell.tunnel(port))
