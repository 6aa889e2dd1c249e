"""Kaggle: a run as a chain of headless kernels, one session each, pushed by Kaggle's own command line.

    dataset  <user>/stoker-<run>       the bundle (`notebook.py`), private
    kernel   <user>/stoker-<run>-<n>   segment n; its input is the output of the segment it goes on from
    runs/<run>/kaggle.json             the chain as this machine knows it: the same command goes on with it
A kernel needs nobody while it runs; between two of them this machine (or another that has the file) pushes the next.
The command line ends with 0 after many errors: what it says is read, too.
"""

import csv
import datetime
import hashlib
import io
import json
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker import env, messages
from stoker.config import values
from stoker.config.run import Run
from stoker.errors import EXIT_DONE, EXIT_STOPPED, StokerError
from stoker.facts import platforms
from stoker.launch import tools
from stoker.places import bundle, segment
from stoker.places.bundle import Bundle
from stoker.places.package import Package
from stoker.places.place import Place
from stoker.places.segment import Report
from stoker.rundir import artifacts, checkpoints, files, layout
from stoker.rundir.layout import RunDir

TOOL = tools.Tool("kaggle", "kaggle", "kaggle six")
NAME = "kaggle"
CHAIN = "kaggle.json"
BUNDLE = "bundle.zip"
_ACCELERATOR = "NvidiaTeslaT4"
"""Two T4; another one by `native.kaggle.machine_shape`."""
_WORKING, _INPUT = "/kaggle/working", "/kaggle/input"
_BASE = "/tmp/stoker"  # noqa: S108  # on Kaggle's machine, which is ours alone: not part of the output
_CALL_SECONDS = 3600.0
_READY_SECONDS = 1800.0
_LEAST_SESSION_SECONDS = 900.0
"""Of the weekly quota: with less left, nothing is begun."""
_IN_A_ROW = 2
"""Segments that may be lost, or bring nothing, one after the other."""
_LOOKS = 3
"""In a row without a report, before a segment is lost; and downloads of what it left, before that is an error."""
_FAILURES = 30
"""Questions in a row that may go unanswered."""
_TITLE_LETTERS = 50
_NO_KERNEL = re.compile(r"\b40[34]\b|denied|not found", re.IGNORECASE)
"""What Kaggle says of a kernel it has not."""

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
    asked = json.dumps({{**json.loads({asked!r}), "began": BEGAN}})
    subprocess.call([sys.executable, "-u", str(BUNDLE), "segment", asked])
"""

LinkState = Literal["pushing", "pushed", "stopped", "done", "failed", "lost"]


class Link(BaseModel):
    """One segment of a chain."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    number: int
    kernel: str
    source: int | None
    """The segment it goes on from."""
    state: LinkState
    """pushing (Kaggle may have it or not), pushed, stopped (to be gone on with), done, failed, or lost: no report."""
    pushed: str
    step: int = 0
    total_steps: int = 0
    resumed_step: int = 0
    rejected: list[dict[str, str]] = []
    exit_code: int = 0
    error: dict[str, Any] | None = None


class Chain(BaseModel):
    """`kaggle.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    user: str
    bundle: str = ""
    """Digest of what the dataset holds."""
    links: list[Link] = []

    @property
    def last(self) -> Link | None:
        """The newest segment."""
        return self.links[-1] if self.links else None

    @property
    def good(self) -> Link | None:
        """The newest segment that left something to go on from."""
        return next((link for link in reversed(self.links) if link.state in ("stopped", "done")), None)


class Kernel(Place):
    """Kaggle as a place."""

    name = NAME

    def __init__(self, run: Run, look_seconds: float = 60.0) -> None:
        self.run = run
        self._look_seconds = look_seconds

    # ---- the place

    def facts(self) -> None:
        """Nobody can be asked before it runs."""

    def put(self, package: Package) -> None:
        """Bring the bundle into a private dataset; an equal one is there already."""
        chain = self._chain(package.name)
        with tempfile.TemporaryDirectory(prefix="stoker-") as name:
            folder = Path(name)
            made = bundle.make(package, self.run, folder / BUNDLE)
            if made.digest == chain.bundle:
                return
            self._upload(folder, f"{chain.user}/{slug(package.name)}", made)
        self._keep(package.name, chain.model_copy(update={"bundle": made.digest}))

    def start(self, package: Package) -> None:
        """Push the next segment, unless one is under way or the week's quota is used up."""
        chain = self._known(package.name)
        if (chain.last is None or chain.last.state != "pushed") and self._has_quota():
            self._push(package.name, chain)

    def status(self, run: str) -> dict[str, Any] | None:
        """How the chain stands, as Kaggle says."""
        if not self._file(run).is_file():
            return None
        link = self._looked(run, self._known(run))
        if link is None:
            return None
        state = {"pushed": "running", "lost": "failed"}.get(link.state, link.state)
        return {"name": run, "state": state, "step": link.step, "total_steps": link.total_steps, "kernel": link.kernel}

    def follow(self, words: Sequence[str]) -> int:
        """`logs`: what the newest kernel says. `watch`: go on with the chain until it is done."""
        run = words[1] if len(words) > 1 else ""
        chain = self._chain(run)
        if words[0] == "logs" and chain.last:
            more = ["--follow"] if "--follow" in words else []
            return subprocess.call([*self._program(), "kernels", "logs", chain.last.kernel, *more])  # noqa: S603
        if words[0] == "watch":
            return self.finish(run, lambda _: None)
        raise StokerError("STK756", command=words[0])

    def stop(self, run: str) -> None:  # noqa: ARG002  # the protocol's
        """Kaggle's command line has no verb for it."""
        raise StokerError("STK756", command="stop")

    def stop_meter(self) -> None:
        """A kernel's time ends with the kernel."""

    def get(self, run: str) -> RunDir:
        """Bring records, newest checkpoint and finished model of the newest segment that left any; verified."""
        chain, run_dir = self._chain(run), RunDir(layout.runs_folder() / run)
        if chain.good is None:
            raise StokerError("STK755", name=run)
        for left in reversed(range(_LOOKS)):
            try:
                self._bring(run, chain.id, chain.good, run_dir)
                break
            except StokerError as error:  # the command line does not see that a download failed
                if error.code not in ("STK750", "STK754") or not left:
                    raise
            time.sleep(self._look_seconds)
        return run_dir

    def _bring(self, run: str, chain: str, link: Link, run_dir: RunDir) -> None:
        with tempfile.TemporaryDirectory(prefix=".kaggle-", dir=run_dir.path) as name:
            self._say(*_output_words(link.kernel, rf"^(runs/{re.escape(run)}/|{re.escape(segment.REPORT)}$)", name))
            report = _report(Path(name) / segment.REPORT, chain, link)
            if report is None:
                raise StokerError("STK754", kernel=link.kernel, reason=segment.REPORT)
            _take(RunDir(Path(name) / "runs" / run), run_dir, report, link.kernel)

    # ---- the chain

    def finish(self, run: str, tell: Callable[[Link], None]) -> int:
        """Go on with the chain until the run is done, or the week's quota is used up.

        Args:
            run: Its name.
            tell: Told of each segment as it is pushed and as it ends.
        """
        for link in self.go_on(run):
            tell(link)
        chain = self._chain(run)
        return EXIT_DONE if chain.last and chain.last.state == "done" else EXIT_STOPPED

    def go_on(self, run: str) -> Iterator[Link]:
        """The segments as they end and are pushed; ends where the run is done or has to wait for quota."""
        last = self._known(run).last
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
            self._require_hope(run, chain)
            if not self._has_quota():
                return
            yield self._push(run, chain)

    def _known(self, run: str) -> Chain:
        """The chain; of a push that was cut off it is Kaggle who knows whether it came about."""
        chain = self._chain(run)
        if chain.last is None or chain.last.state != "pushing":
            return chain
        try:
            self._state(chain.last.kernel)
            links = [*chain.links[:-1], chain.last.model_copy(update={"state": "pushed"})]
        except StokerError as error:
            if error.code != "STK750" or not _NO_KERNEL.search(str(error.fields["reason"])):
                raise
            links = chain.links[:-1]
        return self._keep(run, chain.model_copy(update={"links": links}))

    def _ended(self, run: str) -> Link | None:
        """The newest segment once it has ended."""
        failures = 0
        while True:
            try:
                link = self._looked(run, self._chain(run))
                failures = 0
            except StokerError as error:  # the line may be down for a while; the kernel does not mind
                failures += 1
                if error.code != "STK750" or failures > _FAILURES:
                    raise
            else:
                if link is None or link.state != "pushed":
                    return link
            time.sleep(self._look_seconds)

    def _looked(self, run: str, chain: Chain) -> Link | None:
        """The newest segment as it stands now, written down where that is new."""
        link = chain.last
        if link is None or link.state != "pushed":
            return link
        state = self._state(link.kernel)
        if state in ("queued", "running", "new_script"):
            return link
        report = self._left(chain.id, link)
        link = link.model_copy(update=_told(report) if report else {"state": "lost", "step": _step(chain)})
        self._keep(run, chain.model_copy(update={"links": [*chain.links[:-1], link]}))
        return link

    def _left(self, chain: str, link: Link) -> Report | None:
        """The report of a segment that has ended; None where it is not in the output on several looks in a row.

        Raises:
            StokerError: STK750 where one came that cannot be read: the download was a bad one, not the segment.
        """
        for left in reversed(range(_LOOKS)):
            with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
                self._say(*_output_words(link.kernel, f"^{re.escape(segment.REPORT)}$", folder))
                report = _report(Path(folder) / segment.REPORT, chain, link)
            if report is not None:
                return report
            if left:
                time.sleep(self._look_seconds)
        return None

    def _require_hope(self, run: str, chain: Chain) -> None:
        """A segment that failed would fail again; one that was lost or brought nothing may be an accident."""
        last = chain.links[-1]
        if last.state == "failed":
            if last.error is None:
                raise StokerError("STK759", name=run, number=last.number, exit_code=last.exit_code, kernel=last.kernel)
            raise StokerError.from_json(last.error)
        newest = chain.links[-_IN_A_ROW:]
        fruitless = [link for link in newest if link.state == "lost" or link.step <= link.resumed_step]
        if len(fruitless) == _IN_A_ROW:
            raise StokerError("STK753", count=_IN_A_ROW, kernel=last.kernel)

    # ---- push

    def _push(self, run: str, chain: Chain) -> Link:
        link = Link(
            number=1 + (chain.last.number if chain.last else 0),
            kernel="",
            source=chain.good.number if chain.good else None,
            state="pushing",
            pushed=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            step=_step(chain),
            resumed_step=_step(chain),
        )
        link = link.model_copy(update={"kernel": f"{chain.user}/{slug(run)}-{link.number}"})
        seconds = self._session_seconds()
        with tempfile.TemporaryDirectory(prefix="stoker-") as name:
            folder = Path(name)
            (folder / "segment.py").write_text(self._script(run, chain, link, seconds), encoding="utf-8")
            files.write_json(folder / "kernel-metadata.json", self.metadata(run, chain, link))
            shape = self._accelerator()
            words = [
                "kernels",
                "push",
                "-p",
                name,
                "-t",
                str(round(seconds)),
                *(["--accelerator", shape] if shape else []),
            ]
            self._keep(run, chain.model_copy(update={"links": [*chain.links, link]}))
            said = self._say(*words)
        if "successfully pushed" not in said or "are not valid" in said:
            self._keep(run, chain)
            raise StokerError("STK750", command="kernels push", reason=_shortened(said))
        link = link.model_copy(update={"state": "pushed"})
        self._keep(run, chain.model_copy(update={"links": [*chain.links, link]}))
        return link

    def metadata(self, run: str, chain: Chain, link: Link) -> dict[str, Any]:
        """`kernel-metadata.json` of a segment."""
        own = dict(self.run.native.kaggle)
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

    def _script(self, run: str, chain: Chain, link: Link, seconds: float) -> str:
        asked = {  # `segment.Asked`, but for when it begins and the words of the bundle
            "name": run,
            "chain": chain.id,
            "number": link.number,
            "source": link.source,
            "session_seconds": seconds,
            "runs": f"{_WORKING}/runs",
            "inputs": _INPUT,
            "base": _BASE,
        }
        lost = Report(chain=chain.id, number=link.number, source=link.source, state="lost").sealed()
        pushed = Bundle(Path(BUNDLE), chain.bundle, {})
        return _SCRIPT.format(
            title=messages.text("kaggle.title", name=run, number=link.number),
            finder=bundle.finder(pushed, [_INPUT]),
            working=_WORKING,
            report=segment.REPORT,
            lost=lost,
            secrets=bundle.secret_names(self.run),
            asked=json.dumps(asked, ensure_ascii=False),
        )

    def _accelerator(self) -> str | None:
        if self.run.where.gpus == 0:
            return None
        return str(self.run.native.kaggle.get("machine_shape") or _ACCELERATOR)

    def _session_seconds(self) -> float:
        """Of one segment: what the run file says, else what Kaggle can be counted on for; no more than is left."""
        found = next(one for one in platforms.platforms() if one.name == NAME)
        hours = found.session_hours
        assert hours is not None
        asked = values.duration_seconds(self.run.where.session) if self.run.where.session else 3600 * hours
        left = self._quota_seconds()
        return asked if left is None else min(asked, left)

    def _has_quota(self) -> bool:
        left = self._quota_seconds()
        return left is None or left >= _LEAST_SESSION_SECONDS

    def _quota_seconds(self) -> float | None:
        """Seconds of a GPU left this week; None where a CPU is used, or Kaggle does not say."""
        if self._accelerator() is None:
            return None
        said = self._say("quota", "--format", "csv", may_fail=True)
        rows = [row for row in csv.DictReader(io.StringIO(said)) if row.get("resource") == "GPU"]
        found = re.fullmatch(r"([\d.]+)h", rows[0].get("remaining") or "") if rows else None
        return 3600 * float(found.group(1)) if found else None

    # ---- the dataset

    def _upload(self, folder: Path, dataset: str, made: Bundle) -> None:
        title = dataset.partition("/")[2]
        licence = [{"name": "other"}]
        files.write_json(folder / "dataset-metadata.json", {"id": dataset, "title": title, "licenses": licence})
        before = self._version(dataset)
        if before is None:
            said = self._say("datasets", "create", "-p", str(folder), "-q")
        else:
            said = self._say("datasets", "version", "-p", str(folder), "-q", "-m", made.digest[:16])
        if "being created" not in said:
            raise StokerError("STK750", command="datasets", reason=_shortened(said))
        until = time.monotonic() + _READY_SECONDS
        while (self._version(dataset) or 0) <= (before or 0):
            if time.monotonic() > until:
                raise StokerError("STK750", command="datasets status", reason=dataset)
            time.sleep(min(self._look_seconds, 10.0))

    def _version(self, dataset: str) -> int | None:
        """The newest version that is ready; None where there is no such dataset."""
        said = self._say("datasets", "status", dataset, "--format", "json", may_fail=True)
        try:
            found = json.loads(said[said.index("{") : said.rindex("}") + 1])
        except ValueError:
            return None
        return int(found.get("current_version_number") or 0) if str(found.get("status")).lower() == "ready" else 0

    # ---- Kaggle's command line

    def _state(self, kernel: str) -> str:
        """queued, running, complete, error or one of its words for a cancelled kernel."""
        said = self._say("kernels", "status", kernel)
        found = re.search(r'has status "(?:\w+\.)?(\w+)"', said)
        if found is None:
            raise StokerError("STK750", command="kernels status", reason=_shortened(said))
        return found.group(1).lower()

    def _program(self) -> list[str]:
        own = tools.find(TOOL)
        if own is not None:
            return [str(own), "-m", "kaggle"]
        found = shutil.which("kaggle")
        if found is None:
            raise StokerError("STK601", tool=TOOL.name, folder=tools.folder() / TOOL.name, packages=TOOL.packages)
        return [found]

    def _say(self, *words: str, may_fail: bool = False) -> str:
        """What it prints."""
        try:
            done = subprocess.run(  # noqa: S603  # no shell; who we are is in its own files or the environment
                [*self._program(), *words],
                capture_output=True,
                check=False,
                timeout=_CALL_SECONDS,
                env=env.child_environment({}),
            )
        except subprocess.TimeoutExpired as error:
            raise StokerError("STK750", command=" ".join(words[:2]), reason=error) from error
        said = done.stdout.decode("utf-8", "replace")
        if done.returncode and not may_fail:
            complaint = done.stderr.decode("utf-8", "replace")
            raise StokerError("STK750", command=" ".join(words[:2]), reason=_shortened(complaint + said))
        return said

    def _user(self) -> str:
        found = re.search(r"^- username: (\S+)$", self._say("config", "view"), re.MULTILINE)
        if found is None or found.group(1) == "None":
            raise StokerError("STK757")
        return found.group(1)

    # ---- the record

    def _file(self, run: str) -> Path:
        return layout.runs_folder() / run / CHAIN

    def _chain(self, run: str) -> Chain:
        path = self._file(run)
        return files.read_record(path, Chain) if path.is_file() else Chain(id=secrets.token_hex(8), user=self._user())

    def _keep(self, run: str, chain: Chain) -> Chain:
        files.write_json(self._file(run), chain.model_dump())
        return chain


def slug(run: str) -> str:
    """A run's name as Kaggle spells names: what it would change is kept apart by a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    longest = _TITLE_LETTERS - len("stoker--9999")
    if plain == run and len(plain) <= longest:
        return f"stoker-{plain}"
    return f"stoker-{plain[: longest - 7].rstrip('-')}-{hashlib.sha256(run.encode()).hexdigest()[:6]}"


def _output_words(kernel: str, pattern: str, folder: str) -> list[str]:
    return ["kernels", "output", kernel, "-p", folder, "-o", "-q", "--page-size", "200", "--file-pattern", pattern]


def _report(path: Path, chain: str, link: Link) -> Report | None:
    """A segment's report; None where there is none, or another's.

    Raises:
        StokerError: STK750 where it is not what was written.
    """
    try:
        report = Report.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StokerError("STK750", command="kernels output", reason=f"{link.kernel}: {path.name}") from error
    return report if (report.chain, report.number) == (chain, link.number) else None


def _told(report: Report) -> dict[str, Any]:
    named = {"done", "stopped", "failed"}
    return {
        "state": report.state if report.state in named else "lost",
        "step": report.step,
        "total_steps": report.total_steps,
        "resumed_step": report.resumed_step,
        "rejected": report.rejected,
        "exit_code": report.exit_code,
        "error": report.error,
    }


def _step(chain: Chain) -> int:
    return chain.good.step if chain.good else 0


def _take(source: RunDir, run_dir: RunDir, report: Report, kernel: str) -> None:
    """Put what was downloaded into the run directory, every digest compared."""
    standing = report.standing
    for name in ("events.jsonl", "plan.json", "supervisor.json"):
        if (source.path / name).is_file():
            files.write_text(run_dir.path / name, (source.path / name).read_text(encoding="utf-8"))
    newest, wrong = checkpoints.newest_verified(source.checkpoints)
    if standing is not None and standing.step is not None:
        if newest is None or newest.commit.digest != standing.commit:
            raise StokerError("STK754", kernel=kernel, reason=wrong[0].reason if wrong else "checkpoint")
        checkpoints.adopt(run_dir.checkpoints, newest.path)
    if standing is not None and standing.final:
        if not source.final.is_dir() or artifacts.digest(source.final) != standing.final:
            raise StokerError("STK754", kernel=kernel, reason="artifacts/final")
        artifacts.begin(run_dir, "final").rmdir()
        source.final.rename(artifacts.aside(run_dir, "final"))
        artifacts.accept(run_dir, "final")


def _shortened(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return env.without_secrets(" / ".join(lines[-3:]))[:500] or "-"
