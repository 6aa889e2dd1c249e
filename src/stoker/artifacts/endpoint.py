"""A client of an OpenAI endpoint on this machine: address, token, model. Plain HTTP; independent of the engine."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ANSWER_SECONDS = 600.0


class EndpointError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:500]}")
        self.status = status


@dataclass(frozen=True)
class Endpoint:
    """Address, token and model name."""

    url: str
    """Up to `/v1`: `http://127.0.0.1:8000/v1`."""
    token: str = field(repr=False)
    """Secret: in no repr, log or event."""
    model: str


def ask(endpoint: Endpoint, path: str, body: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
    """POST `body` to `/v1/<path>` and return the answer."""
    connection, answer = _send(endpoint, path, body, seconds)
    try:
        value: dict[str, Any] = json.loads(answer.read())
    finally:
        connection.close()
    return value


def stream(
    endpoint: Endpoint, path: str, body: dict[str, Any], seconds: float = ANSWER_SECONDS
) -> Iterator[dict[str, Any]]:
    """POST `body` with `stream`; yields the chunks as they arrive."""
    connection, answer = _send(endpoint, path, {**body, "stream": True}, seconds)
    try:
        for line in answer:
            text = line.strip()
            if text.startswith(b"data:") and text != b"data: [DONE]":
                yield json.loads(text.removeprefix(b"data:"))
    finally:
        answer.close()
        connection.close()


def _send(
    endpoint: Endpoint, path: str, body: dict[str, Any], seconds: float
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Send the request and read the response's header; anything but 200 is an error."""
    address = urlsplit(endpoint.url)
    assert address.hostname
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=seconds)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.token}"}
    text = json.dumps({"model": endpoint.model, **body})
    try:
        connection.request("POST", f"{address.path}/{path}", text.encode(), headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise EndpointError(answer.status, answer.read().decode("utf-8", "replace"))
    except BaseException:
        connection.close()
        raise
    return connection, answer
