"""The nodes of a Slurm job: listed by its first node, which writes the record for the others."""

import subprocess
import sys

from stoker import env
from stoker.cluster import interfaces
from stoker.cluster.interfaces import Interface
from stoker.config.run import Run
from stoker.errors import StokerError
from stoker.launch import nodes
from stoker.launch.nodes import Node
from stoker.rundir.layout import RunDir
from stoker.supervise import processes

_ANSWER_SECONDS = 120.0
"""For a command of Slurm."""


def record_nodes(run_dir: RunDir, run: Run) -> None:
    """Write the record of this job's nodes: an interface of each, and a port of this one."""
    count = int(env.read(env.SLURM_JOB_NUM_NODES, "1"))
    if count != run.where.nodes:
        raise StokerError("STK746", asked=run.where.nodes, count=count)
    names = sorted(_output("scontrol", "show", "hostnames").split(), key=lambda name: name != env.read(env.NODE))
    chosen = interfaces.common({name: _interfaces(name) for name in names}, run.where.interface)
    found = [Node(name=name, address=one.address, interface=one.name) for name, one in chosen.items()]
    port = processes.free_port(found[0].address)
    nodes.write(run_dir.nodes_file, nodes.of(found, port, env.read(env.MEETING)))


def _interfaces(node: str) -> list[Interface]:
    """Interfaces of a node of this job. One node at a time: srun interleaves the output of several."""
    options = ["--overlap", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--export=ALL"]
    return interfaces.parse(_output("srun", *options, "sh", "-c", interfaces.SCRIPT))


def _output(*command: str) -> str:
    """Output of a command of Slurm."""
    try:
        done = subprocess.run(  # noqa: S603  # fixed words, and names Slurm gave
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_ANSWER_SECONDS,
            env=env.child_environment({"PYTHON": sys.executable}),
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise StokerError("STK747", command=command[0], reason=str(reason).strip()) from error
    return done.stdout
