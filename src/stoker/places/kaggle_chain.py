"""The record of a chain of Kaggle kernels (`runs/<run>/kaggle.json`) and the names of what belongs to it on Kaggle."""

import hashlib
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from stoker.errors import StokerError
from stoker.places.segment import SegmentReport

FILE = "kaggle.json"
_TITLE_LETTERS = 50

LinkState = Literal["pushing", "pushed", "stopped", "done", "failed", "lost"]


class ChainLink(BaseModel):
    """One segment of a chain: a kernel that trains for one session."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    number: int
    kernel: str
    source: int | None
    """The segment it resumes from."""
    state: LinkState
    """pushing (Kaggle may have it or not), pushed, stopped (to be resumed), done, failed, or lost: no report."""
    pushed: str
    step: int = 0
    total_steps: int = 0
    resumed_step: int = 0
    rejected: list[dict[str, str]] = []
    exit_code: int = 0
    error: dict[str, Any] | None = None

    def ended(self, report: SegmentReport) -> "ChainLink":
        """The segment with what its report says."""
        named = {"done", "stopped", "failed"}
        found = report.model_dump(include={"step", "total_steps", "resumed_step", "rejected", "exit_code", "error"})
        return self.model_copy(update={**found, "state": report.state if report.state in named else "lost"})

    def lost(self, step: int) -> "ChainLink":
        """The segment as one that left no report; `step` is the newest checkpoint's before it."""
        return self.model_copy(update={"state": "lost", "step": step})


class Chain(BaseModel):
    """All segments of a run, oldest first."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    user: str
    bundle: str = ""
    """Digest of the bundle in the dataset."""
    links: list[ChainLink] = []

    @property
    def last(self) -> ChainLink | None:
        """The newest segment."""
        return self.links[-1] if self.links else None

    @property
    def good(self) -> ChainLink | None:
        """The newest segment that left a checkpoint; one that failed did if it came further than those before it."""
        good, step = None, 0
        for link in self.links:
            if link.state in ("stopped", "done") or (link.state == "failed" and link.step > step):
                good, step = link, link.step
        return good

    @property
    def step(self) -> int:
        """Of the newest checkpoint."""
        return self.good.step if self.good else 0

    def replaced(self, link: ChainLink) -> "Chain":
        """The chain with its newest segment in another state."""
        return self.model_copy(update={"links": [*self.links[:-1], link]})

    def appended(self, link: ChainLink) -> "Chain":
        """The chain with one more segment."""
        return self.model_copy(update={"links": [*self.links, link]})

    def without_last(self) -> "Chain":
        """The chain before its newest segment."""
        return self.model_copy(update={"links": self.links[:-1]})


def slug(run: str) -> str:
    """A run's name in Kaggle's spelling; a digest keeps apart what that would make equal."""
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    longest = _TITLE_LETTERS - len("stoker--9999")
    if plain == run and len(plain) <= longest:
        return f"stoker-{plain}"
    return f"stoker-{plain[: longest - 7].rstrip('-')}-{hashlib.sha256(run.encode()).hexdigest()[:6]}"


def read_report(path: Path, chain: str, link: ChainLink) -> SegmentReport | None:
    """A segment's report; None where there is none, or that of another segment.

    Raises:
        StokerError: STK750 where the file is damaged.
    """
    try:
        report = SegmentReport.read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StokerError("STK750", command="kernels output", reason=f"{link.kernel}: {path.name}") from error
    return report if (report.chain, report.number) == (chain, link.number) else None
