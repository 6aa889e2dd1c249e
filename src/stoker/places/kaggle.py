"""Kaggle: a run as a chain of kernels without a browser, one session each, pushed by Kaggle's own command line.

    dataset  <user>/stoker-<run>       the bundle (`bundle.py`), private
    kernel   <user>/stoker-<run>-<n>   segment n; its input is the output of the segment it resumes from
    runs/<run>/kaggle.json             the chain as this machine knows it: the same command goes on with it
A kernel needs nobody while it runs; between two of them this machine (or another that has the file) pushes the next.
"""

import datetime
import json
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker import messages
from stoker.config import values
from stoker.config.run import Run
from stoker.errors import EXIT_DONE, EXIT_STOPPED, StokerError
from stoker.facts import platforms
from stoker.places import bundle, kaggle_chain, segment
from stoker.places.bundle import Bundle
from stoker.places.kaggle_chain import Chain, ChainLink, slug
from stoker.places.kaggle_cli import RUNNING, KaggleCommand
from stoker.places.package import Package
from stoker.places.place import Place, Terminal
from stoker.places.segment import SegmentReport
from stoker.rundir import artifacts, checkpoints, events, files, layout
from stoker.rundir.layout import RunDir

BUNDLE = "bundle.zip"
_ACCELERATOR = "NvidiaTeslaT4"
"""Two T4; another one by `native.kaggle.machine_shape`."""
_WORKING, _INPUT = "/kaggle/working", "/kaggle/input"
_BASE = "/tmp/stoker"  # noqa: S108  # on Kaggle's machine, which is ours alone: not part of the output
_LEAST_SESSION_SECONDS = 900.0
"""Of the weekly quota: with less left, nothing is started."""
_IN_A_ROW = 2
"""Segments in a row that may be lost, or make no progress."""
_LOOKS = 3
"""Downloads without a report, before a segment counts as lost; and damaged downloads, before that is an error."""
_FAILURES = 30
"""Status calls in a row that may fail."""
_SENTENCES = {"stopped": "kaggle.stopped", "done": "kaggle.done", "failed": "kaggle.failed", "lost": "kaggle.lost"}

_SCRIPT = """\
import time; BEGAN = time.time()  # Kaggle's clock runs: what follows, installing as well, is part of the session
# {title}
import json

{finder}

BUNDLE = find()
REPORT = Path({working!r}) / {report!r}
if BUNDLE is None:
    REPORT.write_text(json.dumps({lost!r}))
else:
    for name in {secrets!r}:
        try:
            from kaggle_secrets import UserSecretsClient
            os.environ.setdefault(name, UserSecretsClient().get_secret(name))
        except Exception:
            pass
    request = json.dumps({{**json.loads({request!r}), "began": BEGAN}})
    subprocess.call([sys.executable, "-u", str(BUNDLE), "segment", request])
"""


class KernelChain(Place):
    """Kaggle as a place."""

    name = "kaggle"

    def __init__(self, run: Run | None, look_seconds: float = 60.0, cli: KaggleCommand | None = None) -> None:
        super().__init__(run)
        self._look_seconds = look_seconds
        self._cli = cli or KaggleCommand()

    # ---- the place

    def facts(self) -> None:
        """Not known before a kernel runs."""

    def put(self, package: Package) -> None:
        """Upload the bundle to a private dataset, unless an equal one is there."""
        chain = self._chain(package.name)
        with tempfile.TemporaryDirectory(prefix="stoker-") as name:
            folder = Path(name)
            made = bundle.make(package, self.run, folder / BUNDLE)
            if made.digest == chain.bundle:
                return
            dataset = f"{chain.user}/{slug(package.name)}"
            self._cli.upload(folder, dataset, made.digest[:16], self._look_seconds)
        self._keep(package.name, chain.model_copy(update={"bundle": made.digest}))

    def start(self, package: Package) -> None:
        """Push the next segment, unless one is running or the week's quota is used up."""
        chain = self._current(package.name)
        if (chain.last is None or chain.last.state != "pushed") and self._has_quota():
            self._push(package.name, chain)

    def status(self, run: str) -> dict[str, Any] | None:
        """State of the chain, as Kaggle reports it."""
        if not self._file(run).is_file():
            return None
        link = self._updated(run, self._current(run))
        if link is None:
            return None
        state = {"pushed": "running", "lost": "failed"}.get(link.state, link.state)
        return {"name": run, "state": state, "step": link.step, "total_steps": link.total_steps, "kernel": link.kernel}

    def logs(self, run: str, *, follow: bool, lines: int | None) -> int:  # noqa: ARG002  # Kaggle prints all of it
        """The log of the newest kernel."""
        chain = self._chain(run)
        if chain.last is None:
            raise StokerError("STK756", command="logs")
        return self._cli.show_logs(chain.last.kernel, *(["--follow"] if follow else []))

    def runs(self, *, as_json: bool = False) -> int:  # noqa: ARG002  # the protocol's
        """Kaggle knows kernels, not runs."""
        raise StokerError("STK756", command="runs")

    def watch(self, run: str, terminal: Terminal, *, once: bool, as_json: bool) -> int:
        """Attend the chain, or show its state now."""
        if not once and not as_json:
            return self.attend(run, terminal)
        found = self.status(run)
        if as_json:
            terminal.data_json(found)
        elif found is not None:
            fields = {"name": run, "state": messages.text(f"state.{found['state']}"), "step": found["step"]}
            terminal.data(messages.text("kaggle.once", **fields, total=found["total_steps"], kernel=found["kernel"]))
        return EXIT_DONE

    def attend(self, run: str, terminal: Terminal) -> int:
        """Push segments until the run is done and copied here; Ctrl-C leaves, the running kernel goes on."""
        try:
            with terminal.status() as status:
                status.show(messages.text("remote.looking", host=self.label))
                code = self.finish(run, lambda link: _report_to(terminal, link))
        except KeyboardInterrupt:
            terminal.talk("kaggle.left", name=run)
            return EXIT_STOPPED
        if code == EXIT_STOPPED:
            terminal.talk("kaggle.waiting")
        else:
            terminal.talk("remote.pulled", name=run, path=layout.named(run).final)
        return code

    def stop(self, run: str) -> int:  # noqa: ARG002  # the protocol's
        """Kaggle's command line cannot stop a kernel."""
        raise StokerError("STK756", command="stop")

    def stop_meter(self) -> None:
        """A kernel's time ends with the kernel."""

    def get(self, run: str) -> RunDir:
        """Copy records, newest and best checkpoint and finished model of the newest segment that left any; verified."""
        chain, run_dir = self._chain(run), layout.named(run)
        if chain.good is None:
            raise StokerError("STK755", name=run)
        for left in reversed(range(_LOOKS)):
            try:
                self._download(run, chain.id, chain.good, run_dir)
                break
            except StokerError as error:  # the command line does not notice that a download failed
                if error.code not in ("STK750", "STK754") or not left:
                    raise
            time.sleep(self._look_seconds)
        return run_dir

    def _download(self, run: str, chain: str, link: ChainLink, run_dir: RunDir) -> None:
        pattern = rf"^(runs/{re.escape(run)}/|{re.escape(segment.REPORT)}$)"
        with tempfile.TemporaryDirectory(prefix=".kaggle-", dir=run_dir.path) as name:
            self._cli.download(link.kernel, pattern, name)
            report = kaggle_chain.read_report(Path(name) / segment.REPORT, chain, link)
            if report is None:
                raise StokerError("STK754", kernel=link.kernel, reason=segment.REPORT)
            _take(layout.checked(RunDir(Path(name) / "runs" / run)), run_dir, report, link.kernel)

    # ---- the chain

    def finish(self, run: str, tell: Callable[[ChainLink], None]) -> int:
        """Push segments until the run is done, or the week's quota is used up.

        Args:
            run: Its name.
            tell: Called with each segment when it is pushed and when it ends.
        """
        for link in self.go_on(run):
            tell(link)
        chain = self._chain(run)
        return EXIT_DONE if chain.last and chain.last.state == "done" else EXIT_STOPPED

    def go_on(self, run: str) -> Iterator[ChainLink]:
        """The segments as they end and are pushed; ends when the run is done or has to wait for quota."""
        last = self._current(run).last
        if last is not None and last.state == "pushed":
            yield last
        if last is not None and last.state == "done" and (layout.runs_folder() / run / "artifacts" / "final").is_dir():
            return
        while (link := self._ended(run)) is not None:
            yield link
            if link.state == "done":
                self.get(run)
                return
            chain = self._chain(run)
            _require_progress(run, chain)
            if not self._has_quota():
                return
            yield self._push(run, chain)

    def _current(self, run: str) -> Chain:
        """The chain; whether an interrupted push succeeded is asked of Kaggle."""
        chain = self._chain(run)
        if chain.last is None or chain.last.state != "pushing":
            return chain
        if not self._cli.exists(chain.last.kernel):
            return self._keep(run, chain.without_last())
        return self._keep(run, chain.replaced(chain.last.model_copy(update={"state": "pushed"})))

    def _ended(self, run: str) -> ChainLink | None:
        """The newest segment once it has ended."""
        failures = 0
        while True:
            try:
                link = self._updated(run, self._chain(run))
                failures = 0
            except StokerError as error:  # the network may be down for a while; the kernel runs on
                failures += 1
                if error.code != "STK750" or failures > _FAILURES:
                    raise
            else:
                if link is None or link.state != "pushed":
                    return link
            time.sleep(self._look_seconds)

    def _updated(self, run: str, chain: Chain) -> ChainLink | None:
        """The newest segment in its state of now, which is recorded."""
        link = chain.last
        if link is None or link.state != "pushed" or self._cli.state(link.kernel) in RUNNING:
            return link
        report = self._report(chain.id, link)
        link = link.ended(report) if report else link.lost(chain.step)
        self._keep(run, chain.replaced(link))
        return link

    def _report(self, chain: str, link: ChainLink) -> SegmentReport | None:
        """The report of a segment that has ended; None where several downloads in a row have none.

        Raises:
            StokerError: STK750 where a report is damaged: the download failed, not the segment.
        """
        for left in reversed(range(_LOOKS)):
            with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
                self._cli.download(link.kernel, f"^{re.escape(segment.REPORT)}$", folder)
                report = kaggle_chain.read_report(Path(folder) / segment.REPORT, chain, link)
            if report is not None:
                return report
            if left:
                time.sleep(self._look_seconds)
        return None

    # ---- push

    def _push(self, run: str, chain: Chain) -> ChainLink:
        number = 1 + (chain.last.number if chain.last else 0)
        link = ChainLink(
            number=number,
            kernel=f"{chain.user}/{slug(run)}-{number}",
            source=chain.good.number if chain.good else None,
            state="pushing",
            pushed=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            step=chain.step,
            resumed_step=chain.step,
        )
        seconds = self._session_seconds()
        with tempfile.TemporaryDirectory(prefix="stoker-") as name:
            folder = Path(name)
            (folder / "segment.py").write_text(self._script(run, chain, link, seconds), encoding="utf-8")
            files.write_json(folder / "kernel-metadata.json", self.metadata(run, chain, link))
            self._keep(run, chain.appended(link))
            refusal = self._cli.push(name, seconds, self._accelerator())
        if refusal:
            self._keep(run, chain)
            raise StokerError("STK750", command="kernels push", reason=refusal)
        link = link.model_copy(update={"state": "pushed"})
        self._keep(run, chain.appended(link))
        return link

    def metadata(self, run: str, chain: Chain, link: ChainLink) -> dict[str, Any]:
        """`kernel-metadata.json` of a segment."""
        own = dict(self.options)
        before = next((one.kernel for one in chain.links if one.number == link.source), None)
        return {
            "enable_internet": True,
            "is_private": True,
            **own,
            "id": link.kernel,
            "title": link.kernel.partition("/")[2],
            "code_file": "segment.py",
            "language": "python",
            "kernel_type": "script",
            "enable_gpu": self._accelerator() is not None,
            "dataset_sources": [f"{chain.user}/{slug(run)}", *own.get("dataset_sources", [])],
            "kernel_sources": [before] if before else [],
        }

    def _script(self, run: str, chain: Chain, link: ChainLink, seconds: float) -> str:
        request = {  # `segment.SegmentRequest`, without its start and the words of the bundle
            "name": run,
            "chain": chain.id,
            "number": link.number,
            "source": link.source,
            "session_seconds": seconds,
            "runs": f"{_WORKING}/runs",
            "inputs": _INPUT,
            "base": _BASE,
        }
        lost = SegmentReport(chain=chain.id, number=link.number, source=link.source, state="lost").sealed()
        pushed = Bundle(Path(BUNDLE), chain.bundle, {})
        return _SCRIPT.format(
            title=messages.text("kaggle.title", name=run, number=link.number),
            finder=bundle.finder(pushed, [_INPUT]),
            working=_WORKING,
            report=segment.REPORT,
            lost=lost,
            secrets=bundle.secret_names(self.run),
            request=json.dumps(request, ensure_ascii=False),
        )

    def _accelerator(self) -> str | None:
        if self.run.where.gpus == 0:
            return None
        return str(self.options.get("machine_shape") or _ACCELERATOR)

    def _session_seconds(self) -> float:
        """Of one segment: what the run file says, else Kaggle's own limit; no more than is left of the quota."""
        found = next(one for one in platforms.platforms() if one.name == self.name)
        hours = found.session_hours
        assert hours is not None
        wanted = values.duration_seconds(self.run.where.session) if self.run.where.session else 3600 * hours
        left = self._quota_seconds()
        return wanted if left is None else min(wanted, left)

    def _has_quota(self) -> bool:
        left = self._quota_seconds()
        return left is None or left >= _LEAST_SESSION_SECONDS

    def _quota_seconds(self) -> float | None:
        """Seconds of a GPU left this week; None for a CPU, or where Kaggle does not say."""
        return None if self._accelerator() is None else self._cli.quota_seconds()

    # ---- the record

    def _file(self, run: str) -> Path:
        return layout.runs_folder() / run / kaggle_chain.FILE

    def _chain(self, run: str) -> Chain:
        path = self._file(run)
        if path.is_file():
            return files.read_record(path, Chain)
        return Chain(id=secrets.token_hex(8), user=self._cli.user())

    def _keep(self, run: str, chain: Chain) -> Chain:
        files.write_json(self._file(run), chain.model_dump())
        return chain


def _report_to(terminal: Terminal, link: ChainLink) -> None:
    for one in link.rejected:
        terminal.talk("kaggle.rejected", number=link.number, path=one["path"], reason=one["reason"])
    fields = {"number": link.number, "kernel": link.kernel, "step": link.step, "total": link.total_steps}
    terminal.talk(_SENTENCES.get(link.state, "kaggle.pushed"), **fields)


def _require_progress(run: str, chain: Chain) -> None:
    """A segment that failed would fail again; one that was lost or made no progress may be an accident."""
    last = chain.links[-1]
    if last.state == "failed":
        if last.error is None:
            raise StokerError("STK759", name=run, number=last.number, exit_code=last.exit_code, kernel=last.kernel)
        raise StokerError.from_json(last.error)
    newest = chain.links[-_IN_A_ROW:]
    fruitless = [link for link in newest if link.state == "lost" or link.step <= link.resumed_step]
    if len(fruitless) == _IN_A_ROW:
        raise StokerError("STK753", count=_IN_A_ROW, kernel=last.kernel)


def _take(source: RunDir, run_dir: RunDir, report: SegmentReport, kernel: str) -> None:
    """Move what was downloaded into the run directory, every digest compared."""
    standing = report.standing
    if source.events_file.is_file():
        events.copy_recent(source.events_file, run_dir.events_file)
    for name in ("plan.json", "supervisor.json"):
        if (source.path / name).is_file():
            files.write_text(run_dir.path / name, (source.path / name).read_text(encoding="utf-8"))
    newest, wrong = checkpoints.newest_verified(source.checkpoints)
    if standing is not None and standing.step is not None:
        if newest is None or newest.commit.digest != standing.commit:
            raise StokerError("STK754", kernel=kernel, reason=wrong[0].reason if wrong else "checkpoint")
        kept = checkpoints.with_best(source.checkpoints, newest, verified=True)
        if standing.best and standing.best != kept[0].commit.digest:
            raise StokerError("STK754", kernel=kernel, reason="checkpoint")
        for one in kept:
            layout.adopt(run_dir, one.path)
    if standing is not None and standing.final:
        if not source.final.is_dir() or artifacts.digest(source.final) != standing.final:
            raise StokerError("STK754", kernel=kernel, reason="artifacts/final")
        artifacts.begin(run_dir, "final").rmdir()
        source.final.rename(artifacts.aside(run_dir, "final"))
        artifacts.accept(run_dir, "final")
