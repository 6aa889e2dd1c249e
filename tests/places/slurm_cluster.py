"""A real Slurm of two nodes on this machine, for as long as a `with` lasts: munge, slurmctld, two slurmd.

Each node has a host name of its own. Everything listens on 127.0.0.1 and keeps its state below one folder. Needs root
and Debian's `slurm-wlm` and `munge`.
A requeued job may start again after 5 s (`cred_expire`, 120 s by default); nothing else is made quicker than it is.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
NODES = ("n1", "n2")
_AS_NODE = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
"""A slurmd listens on the address of the host's name."""
_ENV = {"PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}"}


def is_possible() -> bool:
    """Whether a Slurm can be started here."""
    if os.geteuid() != 0 or not all(shutil.which(name, path=_ENV["PATH"]) for name in NEEDED):
        return False
    return subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Slurm:
    """A running cluster."""

    folder: Path
    environment: dict[str, str]
    """What its commands need to find it."""

    def say(self, *command: str) -> str:
        """What a command of Slurm's answers."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """`scontrol show job`, word by word."""
        words = self.say("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Start it, wait until both nodes are idle, and end it with all its jobs."""
    assert is_possible()
    with contextlib.ExitStack() as stack:
        here = _munge(stack, folder)
        configuration = _configure(here, folder)
        environment, hosts = {"SLURM_CONF": str(configuration)}, str(_name_hosts(folder))
        _daemon(stack, folder, "slurmctld", "-D", "-f", str(configuration))
        for node in NODES:
            slurmd = ("slurmd", "-D", "-N", node, "-f", str(configuration))
            _daemon(stack, folder, "unshare", "--uts", "--mount", "sh", "-c", _AS_NODE, node, hosts, *slurmd, name=node)
        slurm = Slurm(folder, environment)
        _until(lambda: slurm.say("sinfo", "-h", "-p", "short", "-o", "%D %T") == "2 idle")
        stack.callback(_end_jobs, slurm)
        yield slurm


def _munge(stack: contextlib.ExitStack, folder: Path) -> Path:
    """munge insists on folders that others cannot write to, up to the root: its own is made in /run."""
    here = Path("/run") / f"stoker-slurm-{os.getpid()}-{time.monotonic_ns()}"
    here.mkdir(mode=0o755)
    stack.callback(shutil.rmtree, here, ignore_errors=True)
    key = here / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {"key-file": key, "socket": here / "socket", "pid-file": here / "pid", "seed-file": here / "seed"}
    words = [f"--{word}={path}" for word, path in files.items()]
    _daemon(stack, folder, "munged", "--foreground", f"--log-file={here / 'log'}", *words)
    _until((here / "socket").exists)
    return here


def _configure(here: Path, folder: Path) -> Path:
    host, ports = socket.gethostname(), _free_ports(3)
    for name in ("state", *NODES):
        (folder / name).mkdir(parents=True)
    nodes = "".join(
        f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    configuration = folder / "slurm.conf"
    configuration.write_text(f"""
ClusterName=stoker
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={here / "socket"},cred_expire=5
StateSaveLocation={folder / "state"}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder / "slurmctld.pid"}
SlurmdPidFile={folder}/%n.pid
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
EnforcePartLimits=ALL
SchedulerParameters=batch_sched_delay=0,sched_interval=2
{nodes}PartitionName=short Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
PartitionName=single Nodes={NODES[0]} MaxTime=INFINITE State=UP
""")
    return configuration


def _name_hosts(folder: Path) -> Path:
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()} {' '.join(NODES)}\n")
    return hosts


def _daemon(stack: contextlib.ExitStack, folder: Path, *command: str, name: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name or command[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **_ENV},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stack.callback(_end, process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_jobs(slurm: Slurm) -> None:
    slurm.say("scancel", "--user=root")
    with contextlib.suppress(AssertionError):
        _until(lambda: not slurm.say("squeue", "-h"), seconds=15)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _until(ready, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(AssertionError):
            if ready():
                return
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s")
