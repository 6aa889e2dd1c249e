"""Notifies the user how a run ended, by hooks of the environment: a webhook or robot, AutoDL's message, a command.

Addresses and tokens are secrets: nothing here writes them anywhere, and a failure names the hook alone. No redirect is
followed: it could send a token elsewhere.
"""

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib import error, request
from urllib.parse import urlsplit

from stoker import env
from stoker.hosts import no_redirect
from stoker.settle import chat_robots

AUTODL_ADDRESS = "https://www.autodl.com/api/v1/wechat/message/send"
_ANSWER_SECONDS = 10.0
_COMMAND_SECONDS = 25.0
_HOOK_SECONDS = 30.0
"""For one hook, whatever it does: a server that answers byte by byte must not delay the meter."""
_ANSWER_BYTES = 1 << 16


class _HookRefused(Exception):
    """A hook that refused; the message has no secret."""


@dataclass(frozen=True)
class News:
    """One message."""

    run: str
    kind: str
    """warning, done, stopped, failed, waiting, stopping or trouble."""
    title: str
    text: str


def tell(news: News) -> dict[str, str]:
    """Send it by every hook that is set; returns the hooks that failed, each with the reason."""
    problems = {}
    for variable, send in _HOOKS.items():
        if (value := env.read(variable)) and (problem := _sent(send, value, news)):
            problems[variable.name] = problem
    return problems


def _sent(send: Callable[[str, News], None], value: str, news: News) -> str:
    """Send it in a thread, with a time limit; what went wrong, or nothing."""
    found = ["no answer"]

    def run() -> None:
        try:
            send(value, news)
            found[0] = ""
        except (_HookRefused, OSError, HTTPException, ValueError, subprocess.SubprocessError) as problem:
            found[0] = _reason(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_HOOK_SECONDS)
    return found[0]


def _webhook(address: str, news: News) -> None:
    robot = chat_robots.find(address)
    if robot is not None:
        secret, text = env.read(env.WEBHOOK_SECRET), f"{news.title}\n{news.text}"
        signed, body = chat_robots.request(robot, address, text, secret, time.time())
        if refusal := chat_robots.refusal(robot, _post(signed, body, {})):
            raise _HookRefused(env.without_secrets(refusal))
        return
    content = {"run": news.run, "event": news.kind, "title": news.title, "text": news.text}
    _post(address, content, {})


def _autodl(token: str, news: News) -> None:
    content = {"title": news.title, "name": news.run, "content": news.text}
    answer = _post(AUTODL_ADDRESS, content, {"Authorization": token})
    if '"Success"' not in answer.decode("utf-8", "replace"):
        raise _HookRefused("not accepted")


def _command(words: str, news: News) -> None:
    text = f"{news.title}\n\n{news.text}\n"
    done = subprocess.run(  # noqa: S603  # the user's own command, no shell
        shlex.split(words),
        input=text.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        raise _HookRefused(f"exit {done.returncode}")


_HOOKS: dict[env.Variable, Callable[[str, News], None]] = {
    env.WEBHOOK: _webhook,
    env.AUTODL_TOKEN: _autodl,
    env.NOTIFY_COMMAND: _command,
}


def _post(address: str, content: dict[str, Any], headers: dict[str, str]) -> bytes:
    if urlsplit(address).scheme not in ("http", "https"):
        raise _HookRefused("not http or https")
    asked = request.Request(  # noqa: S310  # the scheme is checked above
        address,
        data=json.dumps(content, ensure_ascii=False).encode(),
        headers={"Content-Type": "application/json; charset=utf-8", **headers},
        method="POST",
    )
    send = no_redirect.opener().open
    with send(asked, timeout=_ANSWER_SECONDS) as answer:
        return bytes(answer.read(_ANSWER_BYTES))


def _reason(problem: Exception) -> str:
    """Why, without address, token or command, which libraries put into their messages."""
    if isinstance(problem, error.HTTPError):
        problem.close()
        return f"HTTP {problem.code}"
    if isinstance(problem, _HookRefused):
        return str(problem)
    return type(problem).__name__
