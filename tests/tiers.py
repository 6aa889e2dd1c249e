"""Which tier a test belongs to, by its folder; in what order files run; and where the time went, said at the end.

A pytest plugin, loaded by tests/conftest.py. The table for people is tests/README.md.
"""

import resource
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shared

TESTS = Path(__file__).parent
QUICK = ("architecture", "cli", "unit")
"""Folders without torch; `just quick` runs them and nothing else."""
NIGHTLY = "nightly"
"""Its folders run in `just nightly` only. All others are part of `just check`."""

ONLY_THIS_MACHINE = ("unit", "store", "supervise", "cluster", "settle", "rewards")
"""Folders whose tests may reach nothing but loopback."""

SLOW_LIST = TESTS / "slow.txt"
SLOW_SECONDS = 30.0
"""A test of `check` that takes longer on a quiet machine is named in the list. It is said, and fails nothing: a shared
machine is slow at times, and a suite that passed has passed."""
SLOWEST_SHOWN = 20


def folder(nodeid: str) -> str:
    """The folder that times are summed by: `engine`, `nightly/places`."""
    parts = nodeid.partition("::")[0].removeprefix("tests/").split("/")[:-1]
    return "/".join(parts[: 2 if parts[:1] == [NIGHTLY] else 1])


def tier(nodeid: str) -> str:
    first = folder(nodeid).partition("/")[0]
    if first == NIGHTLY:
        return "nightly"
    return "quick" if first in QUICK else "check"


def slow_list() -> list[str]:
    """Tests of `check` that are known to take long, in the order their files begin."""
    lines = SLOW_LIST.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that no worker is left alone with one; other files and tests stay in their order."""
    files = list(dict.fromkeys(name.partition("::")[0] for name in slow_list()))
    ranks = {file: rank for rank, file in enumerate(files)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(files)))
    for item in items:
        if folder(item.nodeid) in ONLY_THIS_MACHINE:
            item.add_marker(pytest.mark.allow_hosts(["127.0.0.1"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = (_processor_seconds(), shared.seconds)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    began, waited = item.stash[_BEGAN]
    spent = [("processor", _processor_seconds() - began), ("shared", shared.seconds - waited)]
    report.user_properties = [*report.user_properties, *spent]  # so far: the last report of a test has all
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    times = _times(terminalreporter)
    if sum(one.wall for one in times.values()) < SLOW_SECONDS:
        return
    write = terminalreporter.write_line
    terminalreporter.section("minutes by folder (processor, wall), tests")
    for name, (count, processor, wall) in _summed(times, folder).items():
        write(f"{name:24} {processor / 60:7.1f} {wall / 60:7.1f} {count:6d}")
    terminalreporter.section(f"the {SLOWEST_SHOWN} files with the most (processor, wall seconds), tests")
    files = _summed(times, lambda name: name.partition("::")[0])
    for name, (count, processor, wall) in sorted(files.items(), key=lambda one: -one[1][1])[:SLOWEST_SHOWN]:
        write(f"{processor:7.1f} {wall:7.1f} {count:6d} {name}")
    terminalreporter.section(f"the {SLOWEST_SHOWN} slowest tests (processor, wall seconds)")
    for name in sorted(times, key=lambda name: -times[name].wall)[:SLOWEST_SHOWN]:
        write(f"{times[name].processor:7.1f} {times[name].wall:7.1f} {name}")
    for name in unlisted(times, SLOW_SECONDS):
        write(f"over {SLOW_SECONDS:.0f} s and not in tests/{SLOW_LIST.name}: {name}", red=True)


class Times:
    """What one test took, set-up of its fixtures included."""

    def __init__(self) -> None:
        self.processor = self.wall = self.shared = 0.0


def unlisted(times: dict[str, Times], limit: float) -> list[str]:
    """Tests outside `nightly` that took longer than the limit by themselves and are not in the list."""
    listed = set(slow_list())
    return [
        name
        for name, took in times.items()
        if took.wall - took.shared > limit and tier(name) != "nightly" and name.partition("[")[0] not in listed
    ]


def _times(reporter: pytest.TerminalReporter) -> dict[str, Times]:
    found: dict[str, Times] = defaultdict(Times)
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took, said = found[report.nodeid], dict(report.user_properties)
                took.wall += report.duration
                took.processor = max(took.processor, said["processor"])
                took.shared = max(took.shared, said["shared"])
    return found


def _summed(times: dict[str, Times], key: Callable[[str], str]) -> dict[str, tuple[int, float, float]]:
    found: dict[str, tuple[int, float, float]] = {}
    for name, took in times.items():
        count, processor, wall = found.get(key(name), (0, 0.0, 0.0))
        found[key(name)] = (count + 1, processor + took.processor, wall + took.wall)
    return dict(sorted(found.items()))


def _processor_seconds() -> float:
    """Of this process and of its children that have ended: a daemon that outlives its test is not seen."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


_BEGAN = pytest.StashKey[tuple[float, float]]()
