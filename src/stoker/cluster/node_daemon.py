"""The daemon on a node of a run that another machine, the head, controls: starts and ends ranks on its orders.

It answers the head's requests, reports every second on its ranks, and how they ended. Without a connection to the head
nothing trains here: ranks are ended, and it reconnects. It restarts nothing by itself, and touches no process of
another node, as several may share a machine and a folder.
"""

import contextlib
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import env
from stoker.cluster import preflight
from stoker.errors import EXIT_DONE, EXIT_STOPPED, EXIT_USER, StokerError
from stoker.launch import nodes
from stoker.launch.nodes import Nodes
from stoker.rundir import events, files
from stoker.rundir.layout import RunDir
from stoker.supervise import judge, processes, wire
from stoker.supervise.wire import Said, WireLine, WireRefused

_LOOK_SECONDS = 0.25
_RETRY_SECONDS = 1.0
_PATIENCE_SECONDS = 1800.0
"""How long it tries to reach the head."""
_STACKS_SECONDS = 1.0
"""For ranks to dump their stacks, before they are ended."""
_TAIL_BYTES = 1 << 17
"""Of the logs of all ranks here, sent after a failure."""
_END_SECONDS = 10.0
_CODES = {"done": EXIT_DONE, "stopped": EXIT_STOPPED, "failed": EXIT_USER}


def serve(run_dir: Path) -> int:
    """Follow the head's orders until the run is over; the run's exit code."""
    agent = Agent(RunDir(run_dir.resolve()), env.read(env.NODE))
    with _asked_to_end():
        try:
            return agent.serve()
        finally:
            if agent.is_in:  # a signal came while it ended its ranks
                agent.end()


@contextlib.contextmanager
def _asked_to_end() -> Iterator[None]:
    """End cleanly on the first signal; signals that the parent ignores stay ignored: a queue sends them to all."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]

    def end(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(EXIT_STOPPED)

    for number in numbers:
        signal.signal(number, end)
    yield


@dataclass
class Attempt:
    """The ranks that train here."""

    number: int
    first_rank: int
    trainer: "subprocess.Popen[bytes]"
    meeting: str | None
    events_offset: int
    """Offset of its first event."""
    oom_kills: int


class Agent:
    """A node, for as long as it takes part."""

    def __init__(self, run_dir: RunDir, name: str) -> None:
        """Take part.

        Args:
            run_dir: The run directory here; other nodes may see the same one.
            name: Of this machine in the record of nodes.
        """
        self.run_dir = run_dir
        self.name = name
        self.is_in = False
        """Whether the head has accepted it: until then ranks here may be another agent's."""
        self._attempt: Attempt | None = None
        self._beats = 0

    def serve(self) -> int:
        """Connect to the head, follow its orders, and reconnect when the connection is lost."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            record = self._record()
            try:
                with contextlib.closing(wire.connect(record.model_dump(), self.name)) as line:
                    state = self._obey(line, record)
                if state:
                    return _CODES.get(state, EXIT_USER)
                until = time.monotonic() + _PATIENCE_SECONDS
            except (WireRefused, ValueError, LookupError) as error:
                trouble = preflight.stranger(record, self.name, str(error))
            except OSError as error:
                trouble = preflight.unreachable(record, self.name, error)
            if time.monotonic() > until:
                raise trouble
            time.sleep(_RETRY_SECONDS)

    def _record(self) -> Nodes:
        """The record as it is now: a requeued job writes a new one."""
        record = nodes.read(self.run_dir.nodes_file)
        if record is None:
            raise StokerError("STK774", folder=self.run_dir.path)
        return record

    def _obey(self, line: WireLine, record: Nodes) -> str:
        """The state in which the run is over; nothing where the line is lost. What trains here ends with the line."""
        orders: queue.SimpleQueue[Said] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(line, orders), daemon=True).start()
        beat_at = 0.0
        self.is_in = True
        try:
            self.end()
            while True:
                if time.monotonic() - beat_at >= wire.BEAT_SECONDS:
                    beat_at = time.monotonic()
                    self._beat(line)
                self._look(line)
                with contextlib.suppress(queue.Empty):
                    order = orders.get(timeout=_LOOK_SECONDS)
                    if "lost" in order or "over" in order:
                        return str(order.get("over", ""))
                    self._do(order, line, record)
        except OSError:
            return ""
        finally:
            self.end()
            self.is_in = False

    def _do(self, order: Said, line: WireLine, record: Nodes) -> None:
        if "ask" in order:
            threading.Thread(target=self._answer, args=(order, line), daemon=True).start()
        elif "start" in order:
            self.end()
            self._start(order, record)
        elif "end" in order:
            self._end(line, int(order["end"]))

    # ---- reports

    def _beat(self, line: WireLine) -> None:
        self._beats += 1
        attempt = self._attempt
        pulses = processes.read_pulses(attempt.meeting, self.run_dir.path) if attempt else []
        line.send({"beat": self._beats, "attempt": attempt.number if attempt else 0, "ranks": pulses})

    def _answer(self, order: Said, line: WireLine) -> None:
        try:
            answer = preflight.answer(order["question"], self.run_dir)
        except StokerError as error:
            answer = {"error": error.to_json()}
        except Exception as error:  # noqa: BLE001  # it is said there
            answer = {"error": StokerError("STK900", reason=files.reason(error)).to_json()}
        with contextlib.suppress(OSError):  # the line is lost, which others see to
            line.send({"answered": order["ask"], "answer": answer})

    def _look(self, line: WireLine) -> None:
        """Say how the ranks ended, once."""
        attempt = self._attempt
        if attempt and (code := attempt.trainer.poll()) is not None:
            line.send(self._ended(attempt, code, asked=False))
            self.end()

    def _ended(self, attempt: Attempt, code: int, *, asked: bool) -> Said:
        tail = processes.log_tail(self._log(attempt.number, attempt.first_rank))
        errors = self._errors(attempt)
        told = judge.report(code, tail, attempt.first_rank, [str(error["code"]) for error in errors])
        oom_killed = told["signal"] == "SIGKILL" and processes.oom_kills() > attempt.oom_kills
        said = {**told, "oom_killed": oom_killed, "errors": errors, "logs": self._logs(attempt) if code else {}}
        return {"ended": attempt.number, "attempt": attempt.number, "asked": asked, **said}

    def _errors(self, attempt: Attempt) -> list[dict[str, Any]]:
        """Errors of ranks since the attempt started."""
        found = [event for event, _ in events.follow(self.run_dir.events_file, attempt.events_offset)]
        wanted = [event for event in found if event["event"] == "error" and events.is_whole(event)]
        return [event["error"] for event in wanted if event["program"] == "train"]

    def _logs(self, attempt: Attempt) -> dict[str, str]:
        """Tail of each rank's log, which may have its stack."""
        pulses = processes.read_pulses(attempt.meeting, self.run_dir.path)
        most = _TAIL_BYTES // max(1, len(pulses))
        found = {str(pulse["rank"]): processes.log_tail(self._log(attempt.number, pulse["rank"])) for pulse in pulses}
        return {rank: text[-most:] for rank, text in found.items()}

    def _log(self, attempt: int, rank: int) -> Path:
        return processes.log_file(self.run_dir.path, attempt, rank)

    # ---- orders

    def _start(self, order: Said, record: Nodes) -> None:
        """Start the ranks of this node with the head's plan."""
        if not _is_equal(self.run_dir.plan_file, order["plan"]):  # nodes may share the folder
            files.write_text(self.run_dir.plan_file, order["plan"])
        plan = files.read_json(self.run_dir.plan_file)
        number, first_rank = int(order["start"]), int(order["first_rank"])
        here = {"name": self.name, "interface": preflight.own(record, self.name).name}
        told = processes.place(here, first_rank, int(order["world"]), str(order["store"]))
        folder, offset = processes.meeting_place(plan), events.end(self.run_dir.events_file)
        trainer = processes.start_trainer(self.run_dir.path, plan, number, folder, told)
        self._attempt = Attempt(number, first_rank, trainer, folder, offset, processes.oom_kills())

    def _end(self, line: WireLine, number: int) -> None:
        """Have the ranks write down where they are, end them, and say how they ended; also where there are none."""
        attempt = self._attempt
        if attempt is None or attempt.number != number:
            line.send({"ended": number, "attempt": number, "asked": True, **_NOTHING})
            return
        processes.dump_stacks(processes.read_pulses(attempt.meeting, self.run_dir.path), self.run_dir.path)
        time.sleep(_STACKS_SECONDS)
        processes.end_ranks(attempt.trainer, self.run_dir.path, self.name)
        code = -int(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # what waits for a dead disk does not even die
            code = attempt.trainer.wait(_END_SECONDS)
        line.send(self._ended(attempt, code, asked=True))
        self.end()

    def end(self) -> None:
        """End everything that trains here, including ranks that an earlier agent left."""
        attempt, self._attempt = self._attempt, None
        group, gone = (attempt.trainer.pid, attempt.trainer.poll() is not None) if attempt else (None, False)
        processes.end_group(group, self.run_dir.path, self.name, gone=gone)
        if attempt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                attempt.trainer.wait(_END_SECONDS)
            shutil.rmtree(attempt.meeting or "", ignore_errors=True)


_NOTHING: Said = {**judge.report(0, "", 0, []), "oom_killed": False, "errors": [], "logs": {}}


def _listen(line: WireLine, orders: "queue.SimpleQueue[Said]") -> None:
    """Put what the head says where the agent looks; at last that the line is lost."""
    try:
        while True:
            said = line.receive(wire.LOST_SECONDS)
            if "beat" not in said:
                orders.put(said)
    except (OSError, ValueError):
        orders.put({"lost": True})


def _is_equal(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except OSError:
        return False
