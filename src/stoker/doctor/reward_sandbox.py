"""Whether reward functions and a model's code can be isolated here."""

import sys

from stoker.doctor.finding import Finding, ok, warn
from stoker.rewards import sandbox


def findings() -> list[Finding]:
    """The sandbox, tried; nothing where the system has none."""
    if sys.platform != "linux":
        return []
    missing = sandbox.trial()
    if missing:
        return [warn("sandbox", "doctor.sandbox.none", "doctor.advice.sandbox", reason=missing)]
    return [ok("sandbox", "doctor.sandbox")]
