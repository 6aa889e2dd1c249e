"""Trains with two ranks whose connections go through a proxy: `python meeting.py FOLDER`, started by `ranks.py`.

Makes a run once, then reads one training a line and answers with a line. The supervisor and the training program are
the real ones; ranks are forked from a process that has torch, by a parent that behaves as torchrun does.
"""

import datetime
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import tiny_run  # noqa: E402
import trainings  # noqa: E402
from forked_trainer import Forked  # noqa: E402

from stoker.engine import parallel  # noqa: E402
from stoker.rundir import events  # noqa: E402
from stoker.rundir.layout import RunDir  # noqa: E402
from stoker.supervise import processes  # noqa: E402
from stoker.supervise.settings import SupervisorSettings  # noqa: E402
from stoker.supervise.supervisor import Supervisor  # noqa: E402

RANKS = 2


def main(folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries talk
    base = tiny_run.make_base_model(folder / "base", dropout=0.1)
    words = {
        "train": "{batch: 4, steps: 12, learning_rate: 1e-3, warmup: 2, eval_every: 5 steps}",
        "save": "{every: 3 steps, keep: 2}",
    }
    template = trainings.make(folder / "template", trainings.text(base, ranks=RANKS, **words))
    for number, line in enumerate(sys.stdin):
        run_dir = trainings.again(template, folder / f"{number}")
        answers.write(json.dumps(train(run_dir, **json.loads(line))) + "\n")
        answers.flush()
        shutil.rmtree(folder / f"{number}")


def train(run_dir: RunDir, *, port: int, targets: str, give_up_seconds: float, hang_seconds: float,
          forgets: bool = False) -> dict[str, Any]:  # fmt: skip
    """One supervised training to its end; how often and why it was started again, and what it ended with."""

    def start(watching: Supervisor) -> Forked:
        if forgets:
            shutil.rmtree(run_dir.checkpoints, ignore_errors=True)
        pid = os.fork()
        if pid:
            return Forked(pid)
        code = 70
        try:
            os.environ |= {"REDIRECT_PORT": str(port), "REDIRECT_FOLDER": targets}
            parallel._TIMEOUT = datetime.timedelta(seconds=give_up_seconds)
            parallel._MEETING_SECONDS = 2 * give_up_seconds
            code = _as_torchrun(run_dir, watching.status.attempt)
        finally:
            os._exit(code)

    run_dir.logs.mkdir()
    settings = SupervisorSettings(
        look_seconds=0.1, hang_floor_seconds=hang_seconds, hang_steps=0, first_wait_seconds=0.1
    )
    started = time.monotonic()
    code = Supervisor(run_dir.path, settings, start).run()
    said = {"code": code, "seconds": time.monotonic() - started, **_history(run_dir)}
    if code:
        return said | {"log": "".join(path.read_text()[-1500:] for path in sorted(run_dir.path.rglob("*.log")))}
    ended = trainings.outcome(run_dir)
    return said | {"losses": ended.losses, "evals": ended.evals, "sha": ended.sha}


def _history(run_dir: RunDir) -> dict[str, Any]:
    """Why it was started again, the errors that were named, and whether it ever went on from less than it had."""
    said: dict[str, Any] = {"restarts": [], "errors": [], "attempts": 0, "went_back": False}
    committed = 0
    for event in events.read(run_dir.events_file):
        if event["event"] == "restart":
            said["restarts"].append(event["reason"])
        elif event["event"] == "error":
            said["errors"].append(event["error"]["code"])
        elif event["event"] == "checkpoint":
            committed = event["step"]
        elif event["event"] == "attempt":
            said["attempts"] += 1
            said["went_back"] |= event["resumed_step"] < committed
    return said


def _as_torchrun(run_dir: RunDir, attempt: int) -> int:
    """Start the ranks; when one fails, ask the others to end, and end with 1 when they have."""
    os.setsid()
    with processes.log_file(run_dir.path, attempt).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["STOKER_ATTEMPT"] = str(attempt)
    meeting, leader, left = tempfile.mkdtemp(dir=run_dir.path), os.getpid(), set()
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            trainings.train_rank(run_dir, rank, RANKS, meeting, None, leader)
        left.add(pid)
    code = 0
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if failed := os.waitstatus_to_exitcode(status):
            os.write(2, f"  exitcode  : {failed} (pid: {pid})\n".encode())
            code = 1
            for other in left:
                os.kill(other, signal.SIGTERM)
    return code


if __name__ == "__main__":
    main(Path(sys.argv[1]))
