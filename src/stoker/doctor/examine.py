"""All checks, in the order people read them."""

from pathlib import Path

from stoker.doctor import disk, hardware, network, packages, reward_sandbox, torch_build
from stoker.doctor.finding import Finding
from stoker.facts import machine


def examine(runs: Path) -> list[Finding]:
    """Examine this machine.

    Args:
        runs: The folder that holds run directories.
    """
    here = machine.examine()
    found = hardware.findings(here, torch_build.installed())
    rest = [*packages.findings(), *disk.findings(runs), *network.findings(), *reward_sandbox.findings()]
    return [*found, *rest]
