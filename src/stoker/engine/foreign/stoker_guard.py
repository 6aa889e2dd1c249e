"""Requires the token on every path of a server. vLLM's own check covers `/v1` only, not `/invocations`.

Given to vLLM with its `--middleware`; plain ASGI, nothing but the standard library. The token comes from the
environment and is kept as a digest.
"""

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_OPEN = ("/health",)
"""Health checks only."""


class Guard:
    """Answers 401 to every request without the token."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._token = _digest(os.environ["VLLM_API_KEY"].encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan" or _is_open(scope) or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "Unauthorized"}'})

    def _knows(self, scope: Scope) -> bool:
        said = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = said.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(token), self._token)


def _is_open(scope: Scope) -> bool:
    """A browser's CORS preflight: OPTIONS is sent without the token."""
    return scope.get("method") == "OPTIONS" or scope["path"] in _OPEN


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
