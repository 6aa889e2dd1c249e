"""One segment of a chain: `python -m stoker.places.segment JSON`, on a machine whose session ends after some hours.

Resumes from the newest valid checkpoint in the output of an earlier segment (or in the store), trains until shortly
before the session ends, and writes a report beside the run. It always exits with 0: a notebook that fails may lose its
output. Knows folders and clocks, not the platform.
"""

import datetime
import hashlib
import json
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from stoker import env, messages
from stoker.config import load
from stoker.config.run import Run
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER, StokerError
from stoker.rundir import checkpoints, events, files, layout, pulled
from stoker.rundir.checkpoints import Checkpoint
from stoker.rundir.layout import RunDir
from stoker.rundir.pulled import Pulled
from stoker.store import fetch, opening
from stoker.store.store_protocol import Fault
from stoker.supervise import starting

REPORT = "stoker-segment.json"
MARGIN_SECONDS = 120.0
"""Of a session, reserved for what is not training: start of the machine before `began`, saving of the output."""
_RECORDS = ("run.yaml", "manifest.json", "plan.json", "events.jsonl", "supervisor.json")
_DEPTHS = ("", "*/", "*/*/", "*/*/*/", "*/*/*/*/")
"""How deep in the inputs an earlier output may be; the platform decides that and has changed it."""


class SegmentRequest(BaseModel):
    """What a segment has to do."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    """Of the run."""
    chain: str
    """Id of the chain: outputs of other chains are ignored."""
    number: int
    source: int | None
    """The segment it resumes from; None for the first."""
    session_seconds: float
    began: float
    """When the session's clock started, in seconds since 1970: before anything was unpacked or installed."""
    runs: str
    inputs: str
    """Folder with the output of the earlier segment."""
    words: list[str]
    """Arguments of `stoker` that train."""


class SegmentReport(BaseModel):
    """What a segment did, for the next one."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    chain: str
    number: int
    source: int | None = None
    state: str
    """done, stopped or failed."""
    exit_code: int = 0
    step: int = 0
    """Of the newest checkpoint that verifies."""
    resumed_step: int = 0
    total_steps: int = 0
    standing: Pulled | None = None
    rejected: list[dict[str, str]] = []
    """Checkpoints of the segment before that did not verify, and why."""
    error: dict[str, Any] | None = None
    seconds: float = 0.0

    def sealed(self) -> dict[str, Any]:
        """As it is written: with a digest of its own, so that half of it, or another page, is not taken for it."""
        content = self.model_dump()
        return {**content, "digest": _digest(content)}

    @classmethod
    def read(cls, path: Path) -> "SegmentReport":
        """What `sealed` wrote.

        Raises:
            FileNotFoundError: Where there is none.
            ValueError: Where it is not what was written.
        """
        content = files.read_json(path)
        if not isinstance(content, dict) or content.pop("digest", "") != _digest(content):
            raise ValueError(path.name)
        return cls.model_validate(content)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def main(text: str) -> int:
    """Run one segment and write its report, also after an unexpected error: without one its checkpoints are lost."""
    request = SegmentRequest.model_validate_json(text)
    run_dir = RunDir(Path(request.runs) / request.name)
    rejected: list[dict[str, str]] = []
    step, code, error = 0, EXIT_USER, None
    stands: dict[str, Any] = {}
    try:
        step = bring(request, run_dir, rejected)
        code = _train(request)
        error = _last_error(run_dir) if code not in (EXIT_DONE, EXIT_STOPPED) else None
    except Exception as problem:  # noqa: BLE001  # see above
        error = _error_record(problem)
    try:
        stands = _standing(run_dir)
    except Exception as problem:  # noqa: BLE001  # the next segment verifies the checkpoints itself
        code, error = EXIT_STOPPED if code == EXIT_DONE else code, error or _error_record(problem)
    report = SegmentReport(
        chain=request.chain,
        number=request.number,
        source=request.source,
        state={EXIT_DONE: "done", EXIT_STOPPED: "stopped"}.get(code, "failed"),
        exit_code=code,
        resumed_step=step,
        rejected=rejected,
        error=error,
        seconds=time.time() - request.began,
        **stands,
    )
    # The bundle has the prepared data; it is not needed in the output.
    shutil.rmtree(run_dir.data, ignore_errors=True)
    files.write_json(Path(request.runs).parent / REPORT, report.sealed())
    return 0


def _error_record(problem: Exception) -> dict[str, Any]:
    if isinstance(problem, files.Unreadable):
        return problem.named().to_json()
    if not isinstance(problem, StokerError):
        traceback.print_exception(problem)
        problem = StokerError("STK900", reason=f"{type(problem).__name__}: {problem}")
    return problem.to_json()


# ---- the output of an earlier segment


def bring(request: SegmentRequest, run_dir: RunDir, rejected: list[dict[str, str]]) -> int:
    """Copy the newest checkpoint of an earlier segment, and the best; the step training resumes from.

    Raises:
        StokerError: STK751 where its output is missing, STK752 where it has no valid checkpoint. A chain never starts
            over by itself.
    """
    if request.source is None:
        return 0
    report, before = _before(request)
    _take_records(before, run_dir)
    newest, wrong = checkpoints.newest_verified(before.checkpoints)
    rejected += [{"path": one.path.name, "reason": one.reason} for one in wrong]
    if newest is not None:
        for one in checkpoints.with_best(before.checkpoints, newest, verified=True):
            _adopt(one, run_dir)
        return newest.step
    if not report.step and not wrong:
        return 0
    return _from_store(request, run_dir, report.step, _listed(wrong))


def _before(request: SegmentRequest) -> tuple[SegmentReport, RunDir]:
    for depth in _DEPTHS:
        for path in sorted(Path(request.inputs).glob(depth + REPORT)):
            try:
                report = SegmentReport.read(path)
            except (OSError, ValueError):
                continue
            if (report.chain, report.number) == (request.chain, request.source):
                return report, RunDir(path.parent / Path(request.runs).name / request.name)
    raise StokerError("STK751", number=request.source, folder=request.inputs)


def _take_records(before: RunDir, run_dir: RunDir) -> None:
    run_dir.path.mkdir(parents=True, exist_ok=True)
    for name in _RECORDS:
        if (before.path / name).is_file() and not (run_dir.path / name).exists():
            copy = events.copy_recent if name == "events.jsonl" else shutil.copyfile
            copy(before.path / name, run_dir.path / name)


def _adopt(one: Checkpoint, run_dir: RunDir) -> None:
    """Copy it aside, verify it, then rename it."""
    aside = run_dir.checkpoints / f".{one.path.name}.taken.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(one.path, aside, copy_function=shutil.copyfile)
    layout.adopt(run_dir, aside)


def _listed(wrong: list[checkpoints.Rejected]) -> str:
    return messages.text("list.semicolon").join(f"{one.path.name}: {one.reason}" for one in wrong)


def _from_store(request: SegmentRequest, run_dir: RunDir, step: int, reason: str) -> int:
    run_file = load.load(request.words[1], _overrides(request.words))
    found = _stored(run_file.run, run_file.folder, run_dir) if run_file.run.save.store else None
    if found is None:
        raise StokerError("STK752", number=request.source, step=step, reason=reason or "-")
    return found.step


def _stored(run: Run, folder: Path, run_dir: RunDir) -> Checkpoint | None:
    try:
        store = opening.of_run(run, folder)
        return fetch.newer_checkpoint(store, run_dir, lambda _: None)[0]
    except Fault as fault:
        raise StokerError("STK652", store=run.save.store, reason=fault) from fault


def _overrides(words: list[str]) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == "--set"]


# ---- train


def _train(request: SegmentRequest) -> int:
    end = datetime.datetime.fromtimestamp(
        request.began + request.session_seconds - MARGIN_SECONDS, datetime.timezone.utc
    )
    environment = env.child_environment({env.DEADLINE.name: end.isoformat(timespec="seconds")})
    command = starting.command("stoker", *request.words)
    return subprocess.call(command, env=environment)  # noqa: S603  # our own program, no shell


def _standing(run_dir: RunDir) -> dict[str, Any]:
    standing = pulled.standing(run_dir)
    attempts = [event for event in events.skim(run_dir.events_file) if event["event"] == "attempt"]
    total = int(attempts[-1]["total_steps"]) if attempts else 0
    return {"standing": standing, "step": standing.step or 0, "total_steps": total}


def _last_error(run_dir: RunDir) -> dict[str, Any] | None:
    found = [event["error"] for event in events.skim(run_dir.events_file) if event["event"] == "error"]
    return dict(found[-1]) if found else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
