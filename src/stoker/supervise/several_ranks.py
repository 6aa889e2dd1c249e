"""An attempt of several ranks, here and on other nodes: finds the rank that is lost, ends all, and says who was.

For a single process it does nothing but remember where ranks would meet.
"""

import contextlib
from collections.abc import Callable
from dataclasses import asdict

from stoker.errors import EXIT_DONE, EXIT_STOPPED
from stoker.rundir import files, in_place
from stoker.rundir.events import Event
from stoker.supervise import judge, processes
from stoker.supervise.blame import Blame, Lost
from stoker.supervise.judge import Ruling
from stoker.supervise.other_nodes import OtherNodes
from stoker.supervise.processes import Trainer
from stoker.supervise.ranks import RankWatch
from stoker.supervise.signs_of_life import elapsed, is_writing
from stoker.supervise.status import SupervisedRun
from stoker.supervise.trainer_events import TrainerEvents

_LOOK_SECONDS = 0.1
_TOLD_OF_STRAGGLER = ("rank", "step", "times", "cause", "seconds", "others_seconds")


class SeveralRanks:
    """Of one attempt after the other."""

    def __init__(self, run: SupervisedRun, events: TrainerEvents, nodes: OtherNodes) -> None:
        """Watch the ranks of a run.

        Args:
            run: The run.
            events: What its trainers wrote.
            nodes: The other machines.
        """
        self.meeting: str | None = None
        """Where the ranks of this machine meet."""
        self._run, self._events, self._nodes = run, events, nodes
        self.begin()

    def begin(self) -> None:
        """Another attempt: nothing is known of its ranks."""
        settings = self._run.settings
        self.is_ended = False
        """Whether we have ended the attempt."""
        self._watch: RankWatch | None = None
        if self._run.plan.get("strategy", "single") != "single":
            self._watch = RankWatch(settings.rank_silent_seconds, settings.hang_floor_seconds)
        self._blame = Blame(self._run.clock, settings.blame_seconds)
        self._pulses: dict[str, list[Event]] = {}
        self._step = 0
        self._ended_at = 0.0
        self._examined_at = self._run.clock.own()

    def gather(self, wanted: Callable[[], str], replan: Callable[..., bool]) -> Ruling | None:
        """Wait for the nodes of the plan; an elastic run is planned anew for those that are there, or back again.

        Args:
            wanted: Who wants the run to stop, if anybody.
            replan: Plans anew for a reason, with words for `stoker replan`.
        """
        if not self._nodes.is_head:
            return None
        run, settings = self._run, self._run.settings
        began, tried = run.clock.own(), self._nodes.names
        while True:
            self.listen()
            joined = self._nodes.joined()
            here = [name for name in run.status.nodes if name in joined]
            missing = [name for name in self._nodes.names if name not in joined]
            waited = run.clock.own() - began
            is_time = not missing or waited >= settings.elastic_seconds
            if run.plan.get("elastic") and here != tried and is_time:
                tried = here
                with run.tolerating():
                    replan("node", "--nodes", ",".join(here))
            elif not missing:
                return None
            elif wanted():
                return Ruling("stopped", "asked")
            elif waited >= settings.join_seconds:
                return Ruling("away", ", ".join(missing))
            else:
                if run.status.reason != "away":
                    run.say("waiting", "away")
                run.beat()
                run.wait_a_look()

    def start_elsewhere(self, plan: str, store: str | None) -> None:
        """Have the other nodes start their ranks.

        Args:
            plan: The plan's text.
            store: Address and port at which all ranks meet.
        """
        order = {"start": self._run.status.attempt, "plan": plan, "store": store}
        for name in self._nodes.names:
            first_rank, world = self._nodes.first_rank(name), self._run.plan["batch"]["devices"]
            if self._nodes.order({**order, "first_rank": first_rank, "world": world}, name):
                self._accuse(first_rank, name, "node")  # the message that its connection was lost may be read already

    # ---- while it trains

    def look(self, trainer: Trainer) -> None:
        """Find a rank that is gone or silent, here or on another node, and end them all."""
        self.listen()
        if self._watch is None:
            return
        self._pulses[self._nodes.here] = processes.read_pulses(self.meeting, self._run.run_dir)
        if self.is_ended:
            self._see(self._watch)
            self._end_ranks(trainer, self._watch)
            return
        self._examine(self._watch)
        if slow := self._watch.straggler():
            told = {key: slow[key] for key in _TOLD_OF_STRAGGLER}
            self._run.note("straggler", node=slow["node"] or self._nodes.here, **told)
        if self._blame.culprit():
            self._end(trainer, self._watch)

    def _examine(self, watch: RankWatch) -> None:
        """Find a lost rank by the newest pulses of all nodes."""
        self._see(watch)
        if found := watch.lost():
            self._accuse(found[0]["rank"], found[0]["node"], found[1])

    def _see(self, watch: RankWatch) -> None:
        newest = [pulse for pulses in self._pulses.values() for pulse in pulses]
        self._step = max([self._step, *(pulse["step"] for pulse in newest)])
        now = self._run.clock.own()
        watch.see(newest, elapsed(self._examined_at, now, self._run.settings))
        self._examined_at = now

    def _accuse(self, rank: int | None, node: str, reason: str) -> None:
        self._blame.add(Lost(rank, node or self._nodes.here, self._newest_step, reason))

    @property
    def _newest_step(self) -> int:
        """Of the furthest rank: the pulse of a lost one may be some steps older."""
        return max(self._events.attempt.step, self._step)

    def end_hung(self, trainer: Trainer) -> None:
        """End an attempt that hangs; the rank all others wait for is to blame."""
        if self._watch is None:
            processes.end_group(trainer.pid, self._run.run_dir, self._nodes.scope)
            return
        if behind := self._watch.behind():
            self._accuse(behind["rank"], behind["node"], "hang")
        self._end(trainer, self._watch)

    def _end(self, trainer: Trainer, watch: RankWatch) -> None:
        """Have every rank write its stacks, then end them all."""
        self.is_ended, self._ended_at = True, self._run.clock.own()
        if (culprit := self._blame.culprit(final=True)) and culprit.reason != "lost":
            self._tell_lost(culprit)
        self._nodes.order({"end": self._run.status.attempt})
        processes.dump_stacks(self._pulses.get(self._nodes.here, []), self._run.run_dir)
        self._run.clock.wait(self._run.settings.stacks_seconds)
        self._end_ranks(trainer, watch)

    def _end_ranks(self, trainer: Trainer, watch: RankWatch) -> None:
        """End all here; the first one, which has a whole step in its memory, may commit it before."""
        has_time = self._run.clock.own() - self._ended_at < self._run.settings.overtime_seconds
        may_commit = has_time and not self._events.attempt.hung and is_writing(self._run.run_dir)
        spared = watch.living(0) if may_commit else None
        processes.end_ranks(trainer, self._run.run_dir, self._nodes.scope, self._run.clock.wait, spared)

    # ---- after it ended

    def conclude(self) -> None:
        """End what is left of the attempt on other nodes, and take the culprit's own report for how it ended."""
        ended, here = self._events.attempt, self._nodes.here
        if self._watch is None:
            return
        own = judge.report(ended.code, ended.tail, 0, ended.codes)
        self._take_report(here, {**own, "oom_killed": ended.oom_killed, "asked": self.is_ended})
        self._hear_out(self._watch)
        culprit = None if ended.status else self._blame.culprit(final=True)
        if culprit is None or ended.hung:
            return
        self._tell_lost(culprit)
        if culprit.reason in judge.WATCHED or culprit.node not in self._blame.reports:
            ended.lost = culprit.reason
        else:
            said = self._blame.reports[culprit.node]
            ended.code, ended.tail, ended.oom_killed = said["code"], said["tail"], said["oom_killed"]

    def _take_report(self, node: str, said: Event) -> None:
        self._pulses.pop(node, None)
        first_rank = self._nodes.first_rank(node) if self._nodes.names else None
        self._blame.add_report(node, said, first_rank, self._newest_step)

    def _hear_out(self, watch: RankWatch) -> None:
        """Wait until the other nodes have ended, within limits; after a failure here the culprit may be one of them."""

        def is_found() -> bool:
            self._examine(watch)
            return self._blame.culprit() is not None

        def are_gone() -> bool:
            return self._blame.gone_nodes() >= set(self._nodes.names)

        settings, order = self._run.settings, {"end": self._run.status.attempt}
        if self._events.attempt.code not in (EXIT_DONE, EXIT_STOPPED) and not self.is_ended:
            self.listen_until(is_found, settings.blame_seconds)
            self._nodes.order(order)
        self.listen_until(are_gone, settings.part_seconds)
        if not are_gone():
            self._nodes.order(order)

    def _tell_lost(self, lost: Lost) -> None:
        """Once an attempt, note who was lost; an error with a code has its own event."""
        status = self._run.status
        is_told = (status.lost or {}).get("attempt") == status.attempt
        if not is_told and lost.rank is not None and not lost.reason.startswith("STK"):
            status.lost = {**asdict(lost), "attempt": status.attempt}
            self._run.note("lost", **asdict(lost))

    # ---- what other nodes say

    def listen_until(self, done: Callable[[], bool], seconds: float) -> None:
        """Take what other nodes say until something is so, or too long; at once where there are none."""
        until = self._run.clock.own() + seconds
        while self._nodes.is_head and self._run.clock.own() < until:
            self.listen()
            if done():
                return
            self._run.wait_a_look(_LOOK_SECONDS)

    def listen(self) -> None:
        """Take what other nodes said."""
        for said in self._nodes.messages():
            with contextlib.suppress(*files.FOREIGN):
                self._hear(said["node"], said)

    def _hear(self, node: str, said: Event) -> None:
        takes_part = node in self._nodes.names and node not in self._blame.reports
        if "joined" in said:
            self._run.status.nodes[node] = "joined"
        elif "lost" in said:
            self._run.status.nodes[node] = "lost"
            if takes_part:
                self._accuse(self._nodes.first_rank(node), node, "node")
        elif said.get("attempt") != self._run.status.attempt or not takes_part:
            return
        elif "ended" in said:
            self._take_errors(node, said["errors"])
            self._keep_logs(said["logs"])
            self._take_report(node, said)
        else:
            self._pulses[node] = [processes.as_pulse(one) for one in said["ranks"]]

    def _take_errors(self, node: str, errors: list[Event]) -> None:
        """Errors that ranks recorded on their own node; where nodes share the folder they are known already."""
        self._events.follow()
        for error in errors:
            if error not in self._events.errors:
                self._run.note("error", program="train", node=node, error=error)
        self._events.follow()

    def _keep_logs(self, logs: dict[str, str]) -> None:
        """The end of the logs of another node's ranks, with their stacks, beside those of this one's."""
        for rank, text in logs.items():
            path = processes.log_file(self._run.run_dir, self._run.status.attempt, int(rank))
            if path.exists():
                continue  # nodes may share the folder
            with contextlib.suppress(OSError), in_place.appending(path, self._run.run_dir) as log:
                log.write(text.encode())
