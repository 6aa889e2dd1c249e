"""The token is asked for on every path: vLLM itself guards `/v1` only."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

import stoker

FILE = Path(stoker.__file__).parent / "engine" / "foreign" / "stoker_guard.py"
TOKEN = "a-token-of-some-length"


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("VLLM_API_KEY", TOKEN)
    spec = importlib.util.spec_from_file_location("stoker_guard", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    return module.Guard(app)


def answer(guard: Any, path: str, said: str | None, kind: str = "http", method: str = "POST") -> Any:
    headers = [] if said is None else [(b"authorization", said.encode())]
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> None:
        return None

    asyncio.run(guard({"type": kind, "path": path, "method": method, "headers": headers}, receive, send))
    return sent[0].get("status") or sent[0]["type"]


@pytest.mark.parametrize(
    "path", ["/v1/models", "/invocations", "/metrics", "/docs", "/tokenize", "/health/../v1/models"]
)
def test_every_path_wants_the_token(guard: Any, path: str) -> None:
    assert answer(guard, path, f"Bearer {TOKEN}") == 200
    for wrong in (None, "", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", "Bearer"):
        assert answer(guard, path, wrong) == 401


def test_only_the_sign_of_life_and_what_a_browser_asks_beforehand_are_open(guard: Any) -> None:
    assert answer(guard, "/health", None) == 200
    assert answer(guard, "/v1/models", None, method="OPTIONS") == 200


def test_a_websocket_without_the_token_is_closed(guard: Any) -> None:
    assert answer(guard, "/v1/realtime", None, "websocket") == "websocket.close"


def test_the_token_is_kept_as_a_digest_only(guard: Any) -> None:
    assert TOKEN.encode() not in vars(guard).values()
    assert TOKEN not in map(str, vars(guard).values())
