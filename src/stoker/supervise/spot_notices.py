"""Spot notices: `python spot_notices.py ADDRESS SECONDS` asks a cloud whether it takes this machine back.

The supervisor starts it as a file of its own, so that what hangs here does not hang there; it imports nothing of ours.
Where no cloud answers the first time it exits silently. On a notice it prints one line, the machine's end in seconds
since 1970, and exits. It knows nothing of runs, and uses neither redirects nor proxies: `http.client` has none.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException

_ANSWER_SECONDS = 2.0
_LARGEST_BYTES = 1 << 16
_LEAST_SECONDS = 30.0
"""What Google and Azure leave; assumed where a notice names no time in the future."""
_NO_ANSWER = (OSError, HTTPException, ValueError, LookupError, TypeError)
"""Nobody there, another service, or an unknown format: no notice."""


def ask(address: str, path: str, headers: dict[str, str], method: str = "GET") -> str:
    """One answer's text; what is not 200 raises."""
    connection = HTTPConnection(address, timeout=_ANSWER_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            if answer.status != 200:
                raise HTTPException(str(answer.status))
            return answer.read(_LARGEST_BYTES).decode().strip()
    finally:
        connection.close()


# ---- for each cloud: what it is recognised by, and its notice (the time it names, None for no notice)


def amazon_token(address: str) -> str:
    """IMDSv2: every request needs a token that was fetched before."""
    return ask(address, "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")


def amazon(address: str) -> str | None:
    """The page does not exist (404) until the machine is marked, two minutes before."""
    shown = {"X-aws-ec2-metadata-token": amazon_token(address)}
    marked = json.loads(ask(address, "/latest/meta-data/spot/instance-action", shown))
    return str(marked["time"]) if marked["action"] in ("terminate", "stop", "hibernate") else None


def google_word(address: str) -> str:
    """TRUE or FALSE."""
    word = ask(address, "/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"})
    if word not in ("TRUE", "FALSE"):
        raise ValueError(word)
    return word


def google(address: str) -> str | None:
    """No time is named."""
    return "" if google_word(address) == "TRUE" else None


def azure_name(address: str) -> str:
    """This machine's name: a notice goes to all machines of a set and names the affected ones."""
    return ask(address, "/metadata/instance/compute/name?api-version=2021-02-01&format=text", {"Metadata": "true"})


def azure(address: str) -> str | None:
    """Azure may take two minutes for the first answer on a machine, so that Azure is recognised by something else."""
    name = azure_name(address).lower()
    told = json.loads(ask(address, "/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"}))
    for event in told["Events"]:
        if event["EventType"] == "Preempt" and name in [str(one).lower() for one in event["Resources"]]:
            return str(event["NotBefore"])
    return None


_CLOUDS = ((amazon_token, amazon), (google_word, google), (azure_name, azure))


# ---- the program


def find(address: str) -> Callable[[str], str | None] | None:
    """How to ask the cloud this machine is in for a notice; None where none answers."""
    for tells, notice in _CLOUDS:
        with contextlib.suppress(*_NO_ANSWER):
            tells(address)
            return notice
    return None


def ends(named: str, now: float) -> float:
    """When the machine ends by the time a notice names, as Amazon (ISO 8601) or Azure (RFC 1123) writes it."""
    try:
        when = parsedate_to_datetime(named) if "," in named else datetime.fromisoformat(named.replace("Z", "+00:00"))
    except (ValueError, TypeError):
        return now + _LEAST_SECONDS
    return when.timestamp() if when.timestamp() > now else now + _LEAST_SECONDS


def main() -> None:
    """Ask until there is a notice, or the supervisor is gone, which closes stdin."""
    address, seconds = sys.argv[1], float(sys.argv[2])
    threading.Thread(target=_leave_with_the_supervisor, daemon=True).start()
    notice = find(address)
    while notice is not None:
        with contextlib.suppress(*_NO_ANSWER):
            named = notice(address)
            if named is not None:
                sys.stdout.write(f"{ends(named, time.time())}\n")
                return
        time.sleep(seconds)


def _leave_with_the_supervisor() -> None:
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
