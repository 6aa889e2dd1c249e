"""Whether the model hub and its mirrors answer, asked in parallel with a short patience."""

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from stoker import __version__, env
from stoker.doctor.finding import Finding, ok, warn

HUB = "https://huggingface.co"
HUB_MIRROR = "https://hf-mirror.com"
OTHER_HUB = "https://modelscope.cn"
_TIMEOUT_SECONDS = 3.0
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True)
class Answer:
    """How an address answered."""

    milliseconds: int = 0
    problem: str = ""
    """Why it did not; empty where it did."""


def findings(mirror: str = HUB_MIRROR, other: str = OTHER_HUB) -> list[Finding]:
    """The hub in use, then the mirrors."""
    if env.read(env.HF_HUB_OFFLINE, "0").upper() in _TRUE:
        return [ok("hub", "doctor.hub.offline")]
    hub = env.read(env.HF_ENDPOINT, HUB).rstrip("/")
    answers = ask(dict.fromkeys((hub, mirror, other)))
    found = _hub(hub, mirror, other, answers)
    mirrors = {url: answer for url, answer in answers.items() if url != hub}
    if found.status != "ok":
        mirrors = {url: answer for url, answer in mirrors.items() if not answer.problem}
    return [found, *(_mirror(url, answer) for url, answer in mirrors.items())]


def ask(urls: Iterable[str]) -> dict[str, Answer]:
    """Ask all addresses at once. A name server may hang beyond any timeout, so threads are left behind."""
    answers = {url: Answer(problem=f"{_TIMEOUT_SECONDS:g} s") for url in urls}

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


def _hub(hub: str, mirror: str, other: str, answers: dict[str, Answer]) -> Finding:
    answer = answers[hub]
    fields = {"url": hub, "milliseconds": answer.milliseconds, "problem": answer.problem, "mirror": mirror}
    if not answer.problem:
        return ok("hub", "doctor.hub", **fields)
    if not answers[mirror].problem:
        return warn("hub", "doctor.hub.mirror_answers", "doctor.advice.mirror", **fields)
    if not answers[other].problem:
        return warn("hub", "doctor.hub.other_answers", "doctor.advice.other_hub", other=other, **fields)
    return warn("hub", "doctor.hub.none_answers", "doctor.advice.offline", **fields)


def _mirror(url: str, answer: Answer) -> Finding:
    name = f"mirror.{urlsplit(url).netloc}"
    if answer.problem:
        return ok(name, "doctor.mirror.not_needed", url=url)
    return ok(name, "doctor.mirror", url=url, milliseconds=answer.milliseconds)
