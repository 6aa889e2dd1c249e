"""`stoker serve | head`: whoever closes the pipe before the address was said leaves no server behind.

The server is a stand-in, a process with its arguments; what is around it is the real command in a process of its own.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.artifacts import model_server
from stoker.rundir.layout import RunDir

COMMAND = """
import subprocess, sys
from pathlib import Path
from stoker.artifacts import model_server, ports
from stoker.artifacts.model_server import Server
from stoker.artifacts.serving_choices import Serving
from stoker.handover import parity_lines, serve_commands
from stoker.plan.plan import Reason
from stoker.rundir import files, layout
from stoker.terminal import console

def start(run_dir, port, overrides, on_wait):
    words = [sys.executable, "-c", "import time; time.sleep(300)", "/the/model", str(port)]
    process = subprocess.Popen(words, stdin=-3, stdout=-3, stderr=-3, start_new_session=True)
    server = Server(process.pid, port, "vllm", "export", "/the/model", "night", "serve.log", "2026-11-15")
    files.write_json(run_dir.serving_file, vars(server))
    reason = Reason(about="dtype", key="why.serve.dtype", fields={"dtype": "float32"})
    return server, Serving(
        engine="vllm", device="cpu", tensor_parallel=1, gpus=[], dtype="float32", max_model_len=128, weights_bytes=1,
        cache_bytes=1, options={}, reasons=[reason],
    )

model_server.start = start
model_server.find_engine = lambda: ("vllm", Path("python"))
ports.require_free = lambda port: None
parity_lines.make_reference = lambda run_dir: None
parity_lines.compare = lambda *words: {"agree": 1}
sys.exit(console.guarded(lambda: serve_commands.serve("night", 8123, [], stop=False, as_json="--json" in sys.argv)))
"""


def leaves_server(runs: Path, closed: str, *flags: str) -> bool:
    """Whether a server runs after the command wrote into streams of which some were closed; it is ended here."""
    (runs / "night" / "artifacts" / "final").mkdir(parents=True)
    (runs / "night" / "manifest.json").write_text("{}", encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    streams = {name: writing if name in closed.split("+") else subprocess.DEVNULL for name in ("stdout", "stderr")}
    settings = {**os.environ, "STOKER_RUNS": str(runs), "STOKER_LANG": "en"}
    subprocess.run([sys.executable, "-c", COMMAND, *flags], env=settings, check=False, timeout=60, **streams)
    os.close(writing)
    server = model_server.find(RunDir(runs / "night"))
    if server:
        os.kill(server.pid, signal.SIGKILL)
    return server is not None


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize("closed", ["stdout", "stdout+stderr"])
def test_a_server_that_nobody_was_told_of_is_ended(tmp_path: Path, closed: str, flags: tuple[str, ...]) -> None:
    assert not leaves_server(tmp_path, closed, *flags)


def test_a_server_whose_address_was_said_stays(tmp_path: Path) -> None:
    assert leaves_server(tmp_path, "")
