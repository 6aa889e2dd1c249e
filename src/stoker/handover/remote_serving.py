"""`stoker serve --on HOST`: the server runs there, and a tunnel shows it at 127.0.0.1 here.

Both ends are on loopback only. Ctrl-C ends the tunnel and the server. A line that breaks ends neither: the tunnel is
opened again for as long as the command runs, and the same command finds a server that is still running.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker import env, messages
from stoker.artifacts import ports
from stoker.errors import EXIT_DONE, StokerError
from stoker.handover import writing_models
from stoker.hosts.shell import Ssh
from stoker.places import registry
from stoker.places.box import Box
from stoker.rundir import in_place, layout
from stoker.store import copies
from stoker.terminal import console

_START_SECONDS = 2 * 3600.0
"""Large weights are loaded from a slow disk, and the answers are compared."""
_OPEN_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 5.0
_ENDS = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
_RUNNING = """
if [ -d {run}/artifacts/final ]; then echo finished; fi
said() {{ sed -n "s/^ *\\"$1\\": \\([0-9]*\\).*/\\1/p" {run}/serving.json 2>/dev/null; }}
if ps -o command= -p "$(said pid)" 2>/dev/null | grep -q -- "$(said port)"; then tr '\\n' ' ' < {run}/serving.json; fi
"""


@dataclass(frozen=True)
class RemoteServer:
    """A server on another machine."""

    port: int
    """There, on its loopback."""
    model: str
    """The name clients ask for."""
    parity: dict[str, Any] | None
    """None: it was running before, or is not compared."""


def serve(name: str, on: str, port: int, overrides: list[str], *, stop: bool, as_json: bool) -> None:
    """Start or find the server there, open the tunnel, and stay until Ctrl-C."""
    run, box = _run_name(name), _box(on)
    if stop:
        _stop(box, run, as_json=as_json)
        return
    ports.require_free(port)
    with _ending():
        try:
            server = _server(box, run, port, overrides)
            token = _keep_token(box, run)
            with _tunnel(box, port, server.port) as line:
                _say(box, run, port, server, token, as_json=as_json)
                _stay(box, line, port, server.port)
        except KeyboardInterrupt:
            _talk("serve.ending", name=run, host=box.name)
            _stop(box, run, as_json=False)
    sys.exit(EXIT_DONE)


def _run_name(name: str) -> str:
    """The run's name there: a run of this machine, or one that is only there."""
    try:
        run_dir = layout.find(name)
    except StokerError:
        if not copies.is_run_name(name):
            raise
        return name
    return writing_models.require(run_dir, "stoker serve").name


def _box(on: str) -> Box:
    place = registry.by_name(on)
    if not isinstance(place, Box) or not isinstance(place.shell, Ssh):
        raise StokerError("STK540", place=on)
    return place


# ---- the server there


def _server(box: Box, run: str, port: int, overrides: list[str]) -> RemoteServer:
    said = box.shell.run(_RUNNING.format(run=shlex.quote(box.run_folder(run))))
    finished, _, record = said.partition("\n")
    if finished != "finished":
        raise StokerError("STK541", name=run, host=box.name, folder=box.run_folder(run))
    if record.strip():
        running = json.loads(record)
        console.talk("serve.found", name=run, host=box.name, port=running["port"])
        return RemoteServer(int(running["port"]), str(running["model"]), None)
    sets = [word for override in overrides for word in ("--set", override)]
    with console.status() as status:
        status.show(messages.text("serve.starting_there", host=box.name))
        answer = box.say("serve", run, "--port", str(port), *sets, "--json", seconds=_START_SECONDS)
    made = json.loads(answer)
    return RemoteServer(int(made["port"]), str(made["model"]), made["parity"])


def _stop(box: Box, run: str, *, as_json: bool) -> None:
    ended = json.loads(box.say("serve", run, "--stop", "--json"))["stopped"]
    if as_json:
        console.data_json({"stopped": ended})
    else:
        _talk("serve.stopped_there" if ended else "serve.idle", name=run, host=box.name)


def _talk(key: str, **fields: Any) -> None:
    """Talk to a terminal that may be closed: the server there is stopped all the same."""
    with contextlib.suppress(OSError):
        console.talk(key, **fields)


def _keep_token(box: Box, run: str) -> str:
    """How a shell here finds the server's token: in a copy of its file that only this user can read."""
    secret = box.shell.run(f"cat {shlex.quote(box.run_folder(run))}/serve.token 2>/dev/null || true").strip()
    if not secret:  # it was given to the server by the environment there
        return f"${env.API_TOKEN.name}"
    path = env.home() / "tokens" / f"{box.name}-{run}"
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(in_place.descriptor(path, os.O_WRONLY, mode=0o600), "w", encoding="utf-8") as file:
        file.write(f"{secret}\n")
    return f"$(cat {path})"


# ---- the tunnel


@contextlib.contextmanager
def _tunnel(box: Box, here: int, there: int) -> Iterator["subprocess.Popen[bytes]"]:
    """`ssh -L`, until the block ends; raises where it cannot be opened."""
    assert isinstance(box.shell, Ssh)
    process = subprocess.Popen(  # noqa: S603  # ssh, no shell
        box.shell.tied_tunnel(here, there),
        stdin=subprocess.PIPE,  # it ends when this closes, so also when this program is killed
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches this program, which ends it
    )
    try:
        _await_open(box, process, here)
        yield process
    finally:
        process.terminate()
        process.wait()


def _await_open(box: Box, process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + _OPEN_SECONDS
    while not ports.is_open(port):
        if process.poll() is not None or time.monotonic() > until:
            raise StokerError("STK542", host=box.name, port=port)
        time.sleep(_LOOK_SECONDS)


def _stay(box: Box, line: "subprocess.Popen[bytes]", here: int, there: int) -> None:
    """Wait for Ctrl-C; a line that breaks is opened again."""
    line.wait()
    while True:
        console.talk("serve.line_lost", host=box.name)
        with contextlib.suppress(StokerError), _tunnel(box, here, there) as again:
            console.talk("serve.line_back", port=here)
            again.wait()
        time.sleep(_AGAIN_SECONDS)


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """A closed terminal and a termination end it as Ctrl-C does."""

    def interrupt(number: int, _: Any) -> None:
        # A closing terminal is told by its shell and by the kernel: the second must not end the ending,
        # nor the ssh that stops the server, which inherits this.
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(box: Box, run: str, port: int, server: RemoteServer, token: str, *, as_json: bool) -> None:
    url = f"http://{ports.LOOPBACK}:{port}/v1"
    if as_json:
        shown = {"url": url, "host": box.name, "model": server.model, "token": token}
        console.data_json({**shown, "parity": server.parity})
        return
    console.talk("serve.ready_there", name=run, host=box.name, url=url)
    console.talk("serve.ask", token=token, url=url, model=server.model, name=f"{run} --on {box.name}")
    console.data(url)
