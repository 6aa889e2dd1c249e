"""All checks, in the order people read them."""

from pathlib import Path

from stoker.doctor import disk, hardware, network, packages, torch_build
from stoker.doctor.finding import Finding
from stoker.facts import machine


def examine(runs: Path) -> list[Finding]:
    """Examine this machine.

    Args:
        runs: The folder that holds run directories.
    """
    here = machine.examine()
    found = hardware.findings(here, torch_build.installed())
    return [*found, *packages.findings(), *disk.findings(runs), *network.findings()]
