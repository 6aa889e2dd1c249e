"""Whether addresses answer from this machine, asked all at once with a short patience."""

import http.client
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from stoker import __version__, messages

_TIMEOUT_SECONDS = 3.0
PIP = "pip"
"""pip's own index, whose address pip knows."""


@dataclass(frozen=True)
class Answer:
    """The response of an address."""

    milliseconds: int = 0
    problem: str = ""
    """Why there was none; empty on success."""


def ask(urls: Iterable[str]) -> dict[str, Answer]:
    """Probe all addresses at once. A name server may hang beyond any timeout, so threads are abandoned."""
    late = messages.text("reason.no_response", seconds=_TIMEOUT_SECONDS)
    answers = {url: Answer(problem=late) for url in urls}

    def one(url: str) -> None:
        answers[url] = _ask(url)

    threads = [threading.Thread(target=one, args=(url,), daemon=True) for url in answers]
    deadline = time.monotonic() + _TIMEOUT_SECONDS + 0.5
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(answers)


def _ask(url: str) -> Answer:
    if url == PIP:
        return _ask_pip()
    if urlsplit(url).scheme not in ("http", "https"):
        return Answer(problem=f"`{url}`")
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": f"stoker/{__version__}"})  # noqa: S310  # scheme checked above
    started = time.monotonic()
    try:
        urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS).close()  # noqa: S310  # scheme checked above
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500:
            return Answer(problem=f"HTTP {error.code}")
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        return Answer(problem=str(reason) or type(reason).__name__)
    return Answer(milliseconds=round((time.monotonic() - started) * 1000))


def _ask_pip() -> Answer:
    """Let pip look something up; what it takes to start does not count."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    look = [*pip, "index", "versions", "pip", "--retries", "0", "--timeout", f"{_TIMEOUT_SECONDS:g}"]
    started = time.monotonic()
    try:
        for words in ([*pip, "--version"], look):
            before, started = started, time.monotonic()
            subprocess.run(words, capture_output=True, check=True, timeout=2 * _TIMEOUT_SECONDS)  # noqa: S603  # pip
    except (OSError, subprocess.SubprocessError) as error:
        return Answer(problem=f"pip: {type(error).__name__}")
    return Answer(milliseconds=max(0, round((time.monotonic() - started - (started - before)) * 1000)))
