"""Who compares two answers to a prompt: a reward model, which is a run, or a model at an OpenAI endpoint.

A model at an endpoint is asked twice, with the answers in either order: one that prefers a place has no preference.
Before any answer is generated it is asked about a pair that nobody gets wrong. Nothing leaves this machine but by an
address that the user has set.
"""

import contextlib
import http.client
import ipaddress
import itertools
import json
import math
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from stoker import env, messages
from stoker.config import objectives
from stoker.errors import StokerError
from stoker.hosts import no_redirect
from stoker.launch import programs
from stoker.rundir import files, layout
from stoker.rundir.layout import RunDir

Pair = dict[str, Any]
"""`prompt`, `before` and `after`, as the engine's `answer_pairs` writes them."""


class Judgement(NamedTuple):
    """1: the trained model's answer is better. 0: the base's is. 0.5: neither. None: the judge could not say."""

    value: float | None
    replies: list[str]
    """What it said."""


class _Answer(NamedTuple):
    """What came of one pair."""

    row: Pair
    said: Judgement | Exception


Told = Callable[[Pair, Judgement], None]


class Judge(Protocol):
    """Who compares."""

    host: str
    """Where prompts and answers are sent; empty where they stay here."""

    @property
    def address(self) -> str:
        """What a verdict follows from besides the two answers: nobody else's has the same."""

    def check(self) -> None:
        """Refuse what cannot judge, before anything is generated."""

    def judge(self, pairs: Path, rows: list[Pair], told: Told) -> None:
        """Say a verdict about each of the rows that none is known of; `pairs` is the file with all of them."""


def find(name: str) -> Judge:
    """The judge of that name: `openai:MODEL`, or a run with a reward model."""
    if name.startswith(_ENDPOINT):
        return EndpointJudge(env.read(env.OPENAI_BASE_URL).rstrip("/"), name.removeprefix(_ENDPOINT))
    return RewardJudge(layout.find(name))


# ---- a reward model


@dataclass(frozen=True)
class RewardJudge:
    """By its scores."""

    run_dir: RunDir
    host = ""

    @property
    def address(self) -> str:
        """The run's folder."""
        return str(self.run_dir.path.absolute())

    def check(self) -> None:
        """It is a reward model, and finished.

        Raises:
            StokerError: STK522, STK502.
        """
        objective = self.run_dir.run().train.objective
        if not objectives.facts(objective).scores:
            raise StokerError("STK522", judge=self.run_dir.name, objective=objective)
        if not self.run_dir.final.is_dir():
            raise StokerError("STK502", name=self.run_dir.name)

    def judge(self, pairs: Path, rows: list[Pair], told: Told) -> None:
        """An answer that cannot be scored, such as an empty one, is worse than one that can."""
        scores = json.loads(programs.ask_engine("reward_scores", self.run_dir, str(pairs.absolute())))
        for row, score in zip(rows, scores, strict=True):
            told(row, Judgement(higher(*score), []))


def higher(before: float | None, after: float | None) -> float | None:
    """The verdict by scores; None is an answer without one."""
    if before is None or after is None:
        return None if before is after else float(before is None)
    if math.isnan(before) or math.isnan(after):
        return None
    return 0.5 if before == after else float(after > before)


# ---- a model at an endpoint

_ENDPOINT = "openai:"
_QUESTION = """Two assistants answered the same prompt. Which answer is better: more correct, more helpful, closer to \
what was asked? Do not prefer an answer for its length or its place.

[Prompt]
{prompt}

[Answer A]
{first}

[Answer B]
{second}

End your reply with a last line that is nothing but the letter A or the letter B."""
_OBVIOUS = {"prompt": "What is the capital of France?", "before": "A spoon eats green.", "after": "Paris."}
_LETTER = re.compile(r"\W*(?:answer|回答|答案)?\W*([AB])\W*", re.IGNORECASE)
_SAID = re.compile(r".*(?:\bis|[:：]|是|为|boxed)\W*([AB])\W*")
_ABOUT_THE_BETTER = re.compile(r"better|best|answer|choice|verdict|winner|boxed|更好|更优|选择|答案", re.IGNORECASE)
_ABOUT_THE_WORSE = re.compile(r"wors|weak|los|reject|not\b|n't|less|差|不|没|劣", re.IGNORECASE)
_NAMED = re.compile(r"(?<![A-Za-z])[AB](?![A-Za-z])")
_LONGEST_LINE = 100
_OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "max_tokens": 4096},
    {"max_completion_tokens": 4096},  # newer models of OpenAI refuse both words above
    {"temperature": 0, "max_tokens": 512},  # a server that refuses more than its context
)
"""Some judges think first."""
_TOO_MANY, _BROKEN = 429, 500
_THIS_PAIR = (400, 413, 422)
"""What a server says of one question: it is too long, or a filter does not let it pass."""
_NOBODY_THERE = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)
_TRIES = 6
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_ANSWER_SECONDS = 300.0
"""Some load a model when they are asked, and think before they answer."""
_MOST_SLOW = 3
_AT_ONCE = 4
_WAIT_SECONDS = 1.0
_KEY = re.compile(r"[!#-&(-~]*")
"""Of visible letters without quotation marks: what a header takes, and no remains of a file of variables."""
_LONGEST_REASON = 2000


class EndpointJudge:
    """A model at `OPENAI_BASE_URL`."""

    def __init__(self, url: str, model: str, pause_seconds: float = _FIRST_PAUSE_SECONDS) -> None:
        self._url, self._model, self._pause_seconds = url, model, pause_seconds
        self._options = _OPTIONS[0]
        self._ended = threading.Event()
        self._slow = 0
        try:
            address = urlsplit(url)
        except ValueError:  # an address in brackets that is none
            address = urlsplit("")
        self._scheme, self._place = address.scheme, address.netloc
        self.host = address.netloc.rpartition("@")[2]
        self.address = f"{self.host}{address.path} {model}"

    def check(self) -> None:
        """It answers, and it is right about what is obvious.

        Raises:
            StokerError: STK521 without an address; STK523 where it does not answer; STK528 where it cannot judge.
        """
        if self._scheme not in ("http", "https") or self.host != self._place or not self.host:
            raise StokerError("STK521", judge=self._model, address=env.without_secrets(self._url) or "-")
        if not _KEY.fullmatch(_key()):
            raise self._failed(_Refused(messages.text("eval.bad_key"), again=False))
        for self._options in _OPTIONS:
            try:
                found = self._both_orders(_OBVIOUS)
                break
            except _Refused as error:
                if error.status not in _THIS_PAIR or self._options is _OPTIONS[-1]:
                    raise self._failed(error) from error
        if found.value != 1.0:
            raise StokerError("STK528", judge=self._model, replies=[reply[-200:] for reply in found.replies])

    def judge(self, pairs: Path, rows: list[Pair], told: Told) -> None:  # noqa: ARG002  # the protocol's
        """Some at a time, each told as it comes, also those that were under way when one could not be answered.

        Ctrl-C waits for no answer: Python joins no daemon thread.
        """
        self._ended.clear()
        self._slow = 0
        waiting: SimpleQueue[Pair] = SimpleQueue()
        for row in rows:
            waiting.put(row)
        answers: SimpleQueue[_Answer | None] = SimpleQueue()
        for _ in range(_AT_ONCE):
            threading.Thread(target=self._answer, args=(waiting, answers), daemon=True).start()
        asking, failed = _AT_ONCE, None
        try:
            while asking:
                if (one := _next(answers)) is None:
                    asking -= 1
                elif isinstance(one.said, Judgement):
                    told(one.row, one.said)
                else:
                    failed = failed or one.said
        finally:
            self._ended.set()
        if failed:
            raise self._failed(failed) if isinstance(failed, _Refused) else failed

    def _answer(self, waiting: SimpleQueue[Pair], answers: "SimpleQueue[_Answer | None]") -> None:
        """What one thread does: a verdict about the next row, until there is none or one of the threads has failed."""
        with contextlib.suppress(Empty):
            while not self._ended.is_set():
                row = waiting.get_nowait()
                try:
                    answers.put(_Answer(row, self._verdict(row)))
                except Exception as error:  # noqa: BLE001  # raised where the answers are read
                    answers.put(_Answer(row, error))
                    self._ended.set()  # what others say of it comes after the reason
        answers.put(None)

    def _verdict(self, row: Pair) -> Judgement:
        """Answers that are the same are not asked about; a question that is refused or takes too long has none."""
        if row["before"] == row["after"]:
            return Judgement(0.5 if row["after"] else None, [])
        try:
            return self._both_orders(row)
        except _Refused as error:
            self._slow += error.slow
            if error.status in _THIS_PAIR or (error.slow and self._slow <= _MOST_SLOW):
                return Judgement(None, [env.without_secrets(str(error))])
            raise

    def _both_orders(self, row: Pair) -> Judgement:
        """1 or 0 where it says the same in both orders."""
        first, second = self._reply(row, "before", "after"), self._reply(row, "after", "before")
        chosen, swapped = letter(first), letter(second)
        if chosen is None or swapped is None:
            return Judgement(None, [first, second])
        return Judgement(0.5 if chosen == swapped else float(chosen == "B"), [first, second])

    def _reply(self, row: Pair, first: str, second: str) -> str:
        """What it says, asked again where too many ask, or something is broken for a while."""
        text = _QUESTION.format(prompt=_prompt(row), first=row[first], second=row[second])
        body = {"model": self._model, "messages": [{"role": "user", "content": text}], **self._options}
        pause = self._pause_seconds
        for tried in itertools.count(1):
            try:
                return self._asked(json.dumps(body).encode())
            except _Refused as error:
                wait = min(max(pause, error.pause_seconds), _LONGEST_PAUSE_SECONDS)
                if not error.again or tried == _TRIES or self._ended.wait(wait):
                    raise
            pause *= 2
        raise AssertionError

    def _asked(self, body: bytes) -> str:
        """One reply; nothing of one that was cut."""
        if self._ended.is_set():
            raise _Refused("", again=False)  # another one ended it all, and says why
        try:
            said = self._post(body)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = getattr(error, "reason", error)
            slow = isinstance(cause, TimeoutError)
            raise _Refused(str(cause), again=not (slow or isinstance(cause, _NOBODY_THERE)), slow=slow) from error
        try:
            choice = files.parse_json(said)["choices"][0]
            reply = choice["message"]["content"]
        except files.FOREIGN as error:  # half a reply, an error with the status of a reply, a page of a gateway
            beginning = said[:_LONGEST_REASON].decode("utf-8", "replace")
            raise _Refused(f"{type(error).__name__}: {error}: {beginning}", again=True) from error
        return reply if isinstance(reply, str) and choice.get("finish_reason") != "length" else ""

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if token := _key():
            headers["Authorization"] = f"Bearer {token}"
        asked = urllib.request.Request(f"{self._url}/chat/completions", body, headers)  # noqa: S310  # http(s) only
        send = _opener(urlsplit(self._url).hostname or "").open
        with send(asked, timeout=_ANSWER_SECONDS) as answer:
            said: bytes = answer.read()
        return said

    def _failed(self, error: "_Refused") -> StokerError:
        return StokerError("STK523", url=self._url, judge=self._model, reason=env.without_secrets(str(error)))


def _next(answers: SimpleQueue[_Answer | None]) -> _Answer | None:
    """The next answer; on Windows nothing but the end of a wait lets Ctrl-C through."""
    while True:
        with contextlib.suppress(Empty):
            return answers.get(timeout=_WAIT_SECONDS)


class _Refused(Exception):
    """An endpoint gives no reply; in its words."""

    def __init__(
        self, reason: str, status: int = 0, *, again: bool, slow: bool = False, pause_seconds: float = 0
    ) -> None:
        super().__init__(reason)
        self.status, self.again, self.slow, self.pause_seconds = status, again, slow, pause_seconds


def _refusal(error: urllib.error.HTTPError) -> _Refused:
    """What a server says no with, and how long it asks to wait."""
    with error:
        try:
            said = error.read(_LONGEST_REASON).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as broken:
            said = str(broken)
    again = error.code == _TOO_MANY or error.code >= _BROKEN
    wait = error.headers.get("Retry-After", "")
    return _Refused(
        f"HTTP {error.code}: {said}", error.code, again=again, pause_seconds=int(wait) if wait.isdecimal() else 0
    )


def _key() -> str:
    return env.read(env.OPENAI_API_KEY).strip()


def letter(reply: str) -> str | None:
    """Which answer a reply ends with, behind all thoughts; None where its last line is anything else."""
    said = reply.rpartition("</think>")[2]
    lines = [line for line in said.splitlines() if line.strip()]
    if not lines or "<think>" in said:
        return None
    last = lines[-1].strip()[-_LONGEST_LINE:]
    if found := _LETTER.fullmatch(last):
        return found[1].upper()
    found = _SAID.fullmatch(last)
    sure = found and _ABOUT_THE_BETTER.search(last) and not _ABOUT_THE_WORSE.search(last)
    return found[1] if found and sure and set(_NAMED.findall(last)) == {found[1]} else None  # it may weigh both


def _opener(host: str) -> urllib.request.OpenerDirector:
    """Through the proxy of the environment; this machine is reached without one."""
    try:
        here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = False
    return no_redirect.opener(urllib.request.ProxyHandler({}) if here else None)


def _prompt(row: Pair) -> str:
    """A conversation by its turns, without the marks of a template."""
    return "\n".join(f"{one['role']}: {one['content']}" for one in row.get("turns", [])) or row["prompt"]
