"""Before a run of several machines starts: the head waits for the others to join, then runs the preflight."""

import time
from contextlib import closing
from typing import Any

from stoker import env
from stoker.cluster import preflight, slurm_nodes
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.launch import nodes
from stoker.launch.nodes import Node, Nodes
from stoker.messages import MessageCallback
from stoker.rundir.layout import RunDir
from stoker.supervise.wire import Head

JOIN_SECONDS = 600.0
"""For machines to join: one may have to prepare its data first."""
PREPARE_SECONDS = 24 * 3600.0
_LOOK_SECONDS = 0.2


def check(run: Run) -> None:
    """Refuse a run of several machines that was started on one alone."""
    if env.read(env.NODE):
        return
    if run.where.hosts:
        raise StokerError("STK772", place=run.where.place)
    if run.where.nodes > 1:
        raise StokerError("STK746", asked=run.where.nodes, count=1)


def gathered(run_dir: RunDir, run: Run, tell: MessageCallback, seconds: float = JOIN_SECONDS) -> Nodes | None:
    """The machines of a run that this one is the head of; None for a run of one machine.

    Args:
        run_dir: The run directory, with its data prepared.
        run: Says how many machines a queue's job has, and whether to start with those that joined.
        tell: Shows a sentence of the catalogue.
        seconds: How long to wait for the others.
    """
    here = env.read(env.NODE)
    if not here:
        run_dir.nodes_file.unlink(missing_ok=True)  # of an earlier attempt, with other machines
        return None
    if env.read(env.MEETING):
        slurm_nodes.record_nodes(run_dir, run)
    record = nodes.read(run_dir.nodes_file)
    if record is None:
        raise StokerError("STK774", folder=run_dir.path)
    preflight.own(record, here)
    with closing(_opened(record)) as head:
        joined = _waited(head, record, tell, seconds)
        if missing := [node for node in record.nodes if node.name not in joined]:
            _not_joined(missing, record, head, seconds, tell, elastic=run.where.elastic)
        record = record.only(joined)
        preflight.check(head, run_dir, record, tell)
    nodes.write(run_dir.nodes_file, record)
    return record


def _opened(record: Nodes) -> Head:
    """The head's listening socket."""
    try:
        return Head(record.model_dump()).open()
    except OSError as error:
        raise StokerError("STK776", **_head(record), reason=error.strerror) from error


def _not_joined(
    missing: list[Node], record: Nodes, head: Head, seconds: float, tell: MessageCallback, *, elastic: bool
) -> None:
    """A machine did not join: it has another key, or it did not connect at all."""
    for node in missing:
        if node.address in head.strangers():
            raise preflight.stranger(record, node.name)
    names = [node.name for node in missing]
    if not elastic:
        raise StokerError("STK775", nodes=names, seconds=round(seconds), **_head(record))
    tell("nodes.without", nodes=names)


def _waited(head: Head, record: Nodes, tell: MessageCallback, seconds: float) -> set[str]:
    """Names of those that joined in time."""
    wanted, told = {node.name for node in record.nodes}, False
    until = time.monotonic() + seconds
    while (here := head.joined() | {record.head.name}) != wanted and time.monotonic() < until:
        if not told:
            tell("nodes.waiting", nodes=sorted(wanted - here))
            told = True
        time.sleep(_LOOK_SECONDS)
    return here


def _head(record: Nodes) -> dict[str, Any]:
    return {"head": record.head.name, "address": record.head.address, "port": record.port}


def awaited(run_dir: RunDir, seconds: float = PREPARE_SECONDS) -> None:
    """Wait until the head has prepared the data and written this job's record of nodes to the shared folder."""
    wanted, until = env.read(env.MEETING), time.monotonic() + seconds
    while (record := nodes.read(run_dir.nodes_file)) is None or record.meeting != wanted:
        if time.monotonic() > until:
            raise StokerError("STK774", folder=run_dir.path)
        time.sleep(_LOOK_SECONDS)
