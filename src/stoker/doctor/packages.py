"""Installed packages against the table of what was run together. Nothing is imported."""

from stoker.doctor.finding import Finding, fail, ok, warn
from stoker.facts import machine
from stoker.facts.tested import Combination, release, table, version_key


def findings() -> list[Finding]:
    """What is installed here, against the table."""
    return compare(machine.installed(tuple(table().combinations[-1].packages)))


def compare(installed: dict[str, str]) -> list[Finding]:
    """What is missing, what differs, and what is as it was tested, by the combination nearest to it."""
    combination = table().nearest(installed)
    missing = [name for name in table().floors if name not in installed]
    differing = [name for name, wanted in combination.packages.items() if _differs(installed.get(name), wanted)]
    equal = [f"{name} {installed[name]}" for name in installed if name not in differing]
    found = [_differing(name, installed[name], combination) for name in differing]
    if equal:
        found.append(ok("packages", "doctor.packages", packages=equal, date=combination.date))
    return found + _missing(missing)


def _differs(there: str | None, wanted: str) -> bool:
    return there is not None and release(there) != wanted


def _differing(name: str, there: str, combination: Combination) -> Finding:
    wanted, floor = combination.packages[name], table().floors.get(name, "0")
    fields = {"package": name, "there": there, "wanted": wanted, "date": combination.date, "line": _line([name])}
    if version_key(there) < version_key(floor):
        return fail(name, "doctor.package.old", "doctor.advice.line", floor=floor, **fields)
    advice = "doctor.advice.keep_torch" if name == "torch" else "doctor.advice.untested"
    return warn(name, "doctor.package.untested", advice, **fields)


def _missing(names: list[str]) -> list[Finding]:
    """What every run needs in one line, then what only some do."""
    needed = [name for name in names if name not in table().optional]
    found = []
    if needed:
        found.append(
            fail(
                "packages.missing", "doctor.packages.missing", "doctor.advice.line", packages=needed, line=_line(needed)
            )
        )
    optional = (name for name in names if name in table().optional)
    return found + [
        warn(name, "doctor.package.optional", "doctor.advice.line", package=name, line=_line([name]))
        for name in optional
    ]


def _line(names: list[str]) -> str:
    versions = table().combinations[-1].packages
    return " ".join(["pip install", *(f"{name}=={versions[name]}" for name in names)])
