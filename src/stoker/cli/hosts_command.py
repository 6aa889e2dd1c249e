"""`stoker hosts`: machines reached by ssh. Adds one with its key pinned, and shows its facts."""

import contextlib
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from stoker import messages, plugins
from stoker.errors import StokerError
from stoker.facts import platforms
from stoker.facts.platforms import Platform
from stoker.hosts import box_environment, keys, known, power, probe
from stoker.hosts.box_environment import BoxEnvironment
from stoker.hosts.box_facts import BoxFacts, FoundCard
from stoker.hosts.known import Host
from stoker.hosts.shell import Ssh
from stoker.rundir import last_known, layout
from stoker.terminal import console

_COLUMNS = 80
_YES = ("y", "yes", "是")
_SHOWN_DISKS = 4


def add(name: str, address: str, base: str | None, python: str | None, *, yes: bool, as_json: bool) -> None:
    """Pin the host's key, make sure that it lets us log in, probe it, and keep its record."""
    if base is not None and not base.startswith("/"):
        raise typer.BadParameter(base, param_hint="--base")
    host = known.parse(name, address)
    keys.require_files(host)
    before = _known(name)
    host = _pinned(host, before, yes=yes)
    host = keys.opening(host) or _with_key(host)
    facts = _probed(host, python or "")
    if python and not any(one.path == python for one in facts.pythons):
        raise StokerError("STK706", host=name)
    kept = before or host  # the same machine, perhaps at another address: keep its settings
    chosen = {"base": (base or kept.base).rstrip("/"), "python": python or kept.python, "facts": kept.facts}
    _keep(host.model_copy(update=chosen), facts, as_json=as_json)


def check(name: str, *, as_json: bool) -> None:
    """Probe a host again."""
    host = known.find(name)
    _keep(host, _probed(host, host.python), as_json=as_json)


def show(*, as_json: bool) -> None:
    """List the hosts."""
    hosts = known.every()
    if as_json:
        console.data_json([_facts(host) for host in hosts])
    elif hosts:
        console.table(_table(hosts))
    else:
        console.talk("hosts.none")
    if not as_json and (offered := plugins.offered(plugins.PLACES)):
        console.talk("hosts.packages", names=[one.title for one in offered.values()])


def remove(name: str, *, as_json: bool) -> None:
    """Delete a host's record and its pinned key; the machine is not touched."""
    with contextlib.suppress(OSError):
        Ssh(known.find(name)).close()
    known.remove(name)
    console.talk("hosts.removed", name=name)
    if as_json:
        console.data_json({"name": name, "removed": True})


def switch_on(name: str, *, card: bool, as_json: bool) -> None:
    """Switch a host on by its provider's API."""
    host = power.on(known.find(name), card=card, tell=console.talk)
    console.talk("hosts.on", name=name, address=host.url)
    if as_json:
        console.data_json({"name": name, "on": True, "address": host.url})


def switch_off(name: str, *, yes: bool, as_json: bool) -> None:
    """Switch a host off by the command that can be undone; shows what ends or is lost with it, also with `--yes`."""
    host = known.find(name)
    if not power.has_api(host):
        power.verb_of(host)
    runs = power.running(host)
    if runs is None:
        console.talk("hosts.off.unknown", name=name)
    elif runs:
        console.talk("hosts.off.running", names=list(runs))
    kept = power.lost(host)
    if kept and yes:
        console.talk("hosts.off.lost", folder=host.base, kept=messages.text(f"hosts.kept.{kept}"))
    elif not kept and not yes and not _agreed("hosts.off.ask", name=name):
        console.declined()
    power.off(host, lossy=yes)
    for run_dir in layout.all_runs():
        last_known.unanswered(run_dir, name, is_off=True)
    console.talk("hosts.off", name=name)
    if as_json:
        console.data_json({"name": name, "on": False, "runs": list(runs or ())})


# ---- adding


def _pinned(host: Host, before: Host | None, *, yes: bool) -> Host:
    """Show the host's key and pin it; a key that differs from the pinned one is refused."""
    offered = keys.offered(host)
    shown = keys.fingerprint(offered[0])
    if before and before.fingerprint != shown:
        raise StokerError("STK729", name=host.name, before=before.fingerprint, now=shown)
    if not before:
        console.talk("hosts.key", address=host.url, fingerprint=shown)
        if not yes and not _agreed("hosts.key.ask"):
            console.declined()
    known.pin(host.name, offered)
    return host.model_copy(update={"fingerprint": shown})


def _known(name: str) -> Host | None:
    try:
        return known.find(name)
    except StokerError:
        return None


def _with_key(host: Host) -> Host:
    console.talk("hosts.password", name=host.name)
    return keys.installed(host)


def _agreed(key: str, **fields: Any) -> bool:
    console.talk(key, **fields)
    return console.ask().strip().lower() in _YES


def _probed(host: Host, python: str) -> BoxFacts:
    shell = Ssh(host)
    try:
        with console.status() as status:
            status.show(messages.text("hosts.looking", name=host.name))
            return probe.look(shell, python)
    finally:
        shell.close()


def _keep(host: Host, facts: BoxFacts, *, as_json: bool) -> None:
    """Keep and show the facts. Folder and Python of the record are kept where they still exist."""
    platform = platforms.find(facts.platform)
    if host.facts and not facts.devices and platform and platform.runs_without_card:
        console.talk("hosts.without_card", name=host.name)
        facts = facts.model_copy(update={"devices": host.facts.devices, "driver": host.facts.driver})
    there = [one.path for one in facts.pythons]
    decided = box_environment.decide(facts, host.python if host.python in there else "")
    found = {
        "base": host.base or probe.base(facts),
        "python": decided.python or (host.python if host.python in there else next(iter(there), "")),
        "platform": facts.platform,
        "instance": host.instance or facts.instance,
        "facts": facts,
    }
    host = host.model_copy(update=found)
    known.save(host)
    shown = {**_facts(host), "setup": decided.model_dump(mode="json")}
    if not as_json:
        _show(host, facts, decided)
        console.talk("hosts.added", name=host.name)
    try:
        decided.require(host.name)
    except StokerError as error:
        error.result = shown  # it is kept all the same
        raise
    if as_json:
        console.data_json(shown)


# ---- output


def _facts(host: Host) -> dict[str, Any]:
    return {"address": host.url, **host.model_dump(mode="json")}


def _table(hosts: list[Host]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("hosts.name", "hosts.address", "hosts.platform", "hosts.cards"):
        table.add_column(messages.text(heading), overflow="fold")
    for host in hosts:
        cards = _counted(host.facts.devices) if host.facts else []
        shown = messages.text("list.comma").join(f"{count} x {name}" for name, count in cards)
        table.add_row(host.name, host.url, _title(host), shown or "-")
    return table


def _counted(devices: tuple[FoundCard, ...]) -> list[tuple[str, int]]:
    return list(Counter(device.card or device.name for device in devices).items())


def _title(host: Host) -> str:
    platform = platforms.find(host.platform)
    return platform.title if platform else "-"


def _show(host: Host, facts: BoxFacts, decided: BoxEnvironment) -> None:
    """One line per subject, at most 80 columns wide."""
    platform = platforms.find(host.platform)
    lines = [
        ("hosts.key.label", host.fingerprint),
        ("hosts.platform", platform.title if platform else messages.text("hosts.own")),
        *(("hosts.cards", text) for text in _cards(facts)),
        ("hosts.machine", _machine(facts)),
        ("hosts.python", _python(host, facts)),
        ("hosts.environment", decided.text),
        ("hosts.base", _base(host, facts)),
        *(("hosts.disk", text) for text in _disks(host, facts)),
        ("hosts.network", _network(facts)),
        ("hosts.meter", _meter(platform)),
        *(("hosts.trap", messages.text(trap)) for trap in (platform.traps if platform else ())),
    ]
    width = max(cell_len(messages.text(key)) for key, _ in lines)
    said = ""
    for key, text in lines:
        label = Text("" if key == said else messages.text(key))
        label.pad_right(width + 2 - label.cell_len)
        said = key
        for index, part in enumerate(Text(text).wrap(console.stdout, _COLUMNS - width - 2, no_wrap=False)):
            part.rstrip()
            console.page(Text.assemble(label if index == 0 else " " * (width + 2), part))


def _cards(facts: BoxFacts) -> list[str]:
    if not facts.devices:
        return [messages.text("hosts.cards.none")]
    kinds = Counter(
        (one.card, one.name, one.memory_bytes, one.compute_capability, one.sm_count) for one in facts.devices
    )
    return [
        messages.text(
            "hosts.cards.known" if card else "hosts.cards.unknown",
            count=count,
            card=card,
            name=name,
            memory=f"{memory / 2**30:.0f}",
            capability=capability,
            processors=processors or "?",
            driver=facts.driver or "?",
        )
        for (card, name, memory, capability, processors), count in kinds.items()
    ]


def _machine(facts: BoxFacts) -> str:
    key = "hosts.machine.part" if facts.cpu_count < facts.host_cpu_count else "hosts.machine.whole"
    memory = f"{facts.memory_bytes / 2**30:.0f}"
    return messages.text(key, cpus=facts.cpu_count, host=facts.host_cpu_count, memory=memory)


def _python(host: Host, facts: BoxFacts) -> str:
    python = next((one for one in facts.pythons if one.path == host.python), None)
    if python is None:
        others = [f"{one.path} {one.version}" for one in facts.pythons]
        return messages.text("hosts.python.old" if others else "hosts.python.none", others=others)
    kind = {True: "computes", False: "unusable", None: "cuda" if python.cuda else "torch"}[python.usable]
    fields = {"path": python.path, "version": python.version, "torch": python.torch, "cuda": python.cuda}
    return messages.text(f"hosts.python.{kind}" if python.torch else "hosts.python.bare", driver=facts.driver, **fields)


def _base(host: Host, facts: BoxFacts) -> str:
    disks = [disk for disk in facts.disks if f"{host.base}/".startswith(f"{disk.path.rstrip('/')}/")]
    disk = max(disks, key=lambda one: len(one.path), default=None)
    if disk is None:
        return host.base
    kept = messages.text(f"hosts.kept.{disk.survives}")
    return messages.text("hosts.base.at", folder=host.base, free=f"{disk.free_bytes / 1e9:.0f}", kept=kept)


def _disks(host: Host, facts: BoxFacts) -> list[str]:
    """The other disks, the emptiest first."""
    others = [disk for disk in facts.disks if not host.base.startswith(f"{disk.path.rstrip('/')}/")]
    others.sort(key=lambda disk: -disk.free_bytes)
    return [
        messages.text(
            "hosts.base.at",
            folder=disk.path,
            free=f"{disk.free_bytes / 1e9:.0f}",
            kept=messages.text(f"hosts.kept.{disk.survives}"),
        )
        for disk in others[:_SHOWN_DISKS]
    ]


def _network(facts: BoxFacts) -> str:
    if not facts.reachable:
        return messages.text("hosts.network.none")
    near = sorted(facts.reachable.items(), key=lambda item: item[1])
    shown = (f"{urlsplit(address).netloc or address} {milliseconds} ms" for address, milliseconds in near)
    return messages.text("list.comma").join(shown)


def _meter(platform: Platform | None) -> str:
    if platform is None:
        return messages.text("hosts.meter.own")
    stop, release = platform.meter.reversible, platform.meter.irreversible
    fields = {
        "stop": " ".join(stop.words) if stop else "",
        "release": " ".join(release.words) if release else "",
    }
    if stop:
        return messages.text("hosts.meter.bills" if platform.meter.stopped_bills else "hosts.meter.stop", **fields)
    return messages.text("hosts.meter.release" if release else "hosts.meter.console", **fields)
