"""News to group robots, against SIMULATIONS of 飞书, 钉钉 and 企业微信: form and signature as their pages say.

That the services themselves answer so is not shown by these tests.
"""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.settle import chat_robots, notify
from stoker.settle.notify import News

NEWS = News("tiny", "done", "Stoker: tiny", "The run is done. 完成")
KEY = "SECplanted0123456789abcdef"
PATHS = {
    "feishu": "/open-apis/bot/v2/hook/very-secret-path",
    "dingtalk": "/robot/send?access_token=very-secret-path",
    "wecom": "/cgi-bin/webhook/send?key=very-secret-path",
}


def signature(key: str, message: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()).decode()


class SimulatedRobots:
    """All three services; a robot with a key takes signed messages only."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.key = ""
        self.answer: bytes | None = None
        robots = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                said = robots.answer or json.dumps(robots.judged(self.path, body)).encode()
                self.send_response(200)  # also where it refuses
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def judged(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked = {key: values[0] for key, values in parse_qs(urlsplit(path).query).items()}
        if path.startswith("/open-apis/"):
            return self._feishu(body)
        if path.startswith("/robot/"):
            return self._dingtalk(asked, body)
        return self._wecom(body)

    def _feishu(self, body: dict[str, Any]) -> dict[str, Any]:
        stamp = body.get("timestamp", "0")
        fresh = abs(time.time() - int(stamp)) < 3600
        if self.key and not (fresh and body.get("sign") == signature(f"{stamp}\n{self.key}", "")):
            return {"code": 19021, "msg": "sign match fail or timestamp is not within one hour from current time"}
        if body.get("msg_type") != "text":
            return {"code": 9499, "msg": "Bad Request"}
        self.texts.append(body["content"]["text"])
        return {"code": 0, "msg": "success", "data": {}, "StatusCode": 0, "StatusMessage": "success"}

    def _dingtalk(self, asked: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        stamp = asked.get("timestamp", "0")
        fresh = abs(time.time() * 1000 - int(stamp)) < 3600_000
        if self.key and not (fresh and asked.get("sign") == signature(self.key, f"{stamp}\n{self.key}")):
            return {"errcode": 310000, "errmsg": f"sign not match, token {KEY}"}
        if body.get("msgtype") != "text":
            return {"errcode": 40035, "errmsg": "不合法的参数"}
        self.texts.append(body["text"]["content"])
        return {"errcode": 0, "errmsg": "ok"}

    def _wecom(self, body: dict[str, Any]) -> dict[str, Any]:
        if len(body["text"]["content"].encode()) > 2048:
            return {"errcode": 40058, "errmsg": "exceed max length 2048"}
        self.texts.append(body["text"]["content"])
        return {"errcode": 0, "errmsg": "ok"}


@pytest.fixture
def robots(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRobots]:
    for name in ("STOKER_WEBHOOK_SECRET", "STOKER_AUTODL_TOKEN", "STOKER_NOTIFY_COMMAND", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = SimulatedRobots()
    yield made
    made.http.shutdown()
    made.http.server_close()


def told(robots: SimulatedRobots, name: str, monkeypatch: pytest.MonkeyPatch, news: News = NEWS) -> dict[str, str]:
    monkeypatch.setenv("STOKER_WEBHOOK", robots.root + PATHS[name])
    return notify.tell(news)


@pytest.mark.parametrize("name", PATHS)
def test_every_robot_gets_a_text_in_its_own_form(
    robots: SimulatedRobots, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(robots, name, monkeypatch) == {}
    assert robots.texts == [f"{NEWS.title}\n{NEWS.text}"]


@pytest.mark.parametrize("name", ["feishu", "dingtalk"])
def test_a_robot_with_a_key_takes_the_signed_message_only(
    robots: SimulatedRobots, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    robots.key = KEY
    (problem,) = told(robots, name, monkeypatch).values()
    assert "sign" in problem
    assert robots.texts == []
    monkeypatch.setenv("STOKER_WEBHOOK_SECRET", "SECanother0123456789")
    assert "sign" in told(robots, name, monkeypatch)["STOKER_WEBHOOK"]
    monkeypatch.setenv("STOKER_WEBHOOK_SECRET", KEY)
    assert told(robots, name, monkeypatch) == {}
    assert len(robots.texts) == 1


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("feishu", {"code": 19024, "msg": "Key Words Not Found"}),
        ("feishu", {"StatusCode": 19022, "StatusMessage": "Ip Not Allowed"}),
        ("dingtalk", {"errcode": 310000, "errmsg": "keywords not in content"}),
        ("wecom", {"errcode": 93000, "errmsg": "invalid webhook url"}),
    ],
)
def test_a_refusal_with_status_200_is_a_problem_with_its_code(
    robots: SimulatedRobots, name: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    robots.answer = json.dumps(answer).encode()
    problem = told(robots, name, monkeypatch)["STOKER_WEBHOOK"]
    code, words = answer.values()
    assert str(code) in problem
    assert words in problem
    assert "very-secret-path" not in problem


@pytest.mark.parametrize("answer", [b"<html>captive portal</html>", b"[]", b'"ok"', b"{}", b'{"errcode": null}'])
@pytest.mark.parametrize("name", PATHS)
def test_an_answer_without_a_code_is_no_success(
    robots: SimulatedRobots, name: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    robots.answer = answer
    assert list(told(robots, name, monkeypatch)) == ["STOKER_WEBHOOK"]


def test_a_secret_that_a_robot_repeats_is_taken_out(robots: SimulatedRobots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_WEBHOOK_SECRET", KEY)
    robots.key = "another"
    problem = told(robots, "dingtalk", monkeypatch)["STOKER_WEBHOOK"]
    assert "310000" in problem
    assert KEY not in problem


def test_a_long_chinese_text_is_cut_between_characters(
    robots: SimulatedRobots, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(robots, "wecom", monkeypatch, News("tiny", "failed", "Stoker", "显存" * 2000)) == {}
    (text,) = robots.texts
    assert set(text) == {*"Stoker\n显存"}


def test_any_other_address_is_a_webhook_as_before() -> None:
    assert chat_robots.find("https://hooks.example.org/my-hook") is None
    assert chat_robots.find("https://open.feishu.cn/open-apis/bot/v2/hook/x") is chat_robots.FEISHU
    assert chat_robots.find("https://open.larksuite.com/open-apis/bot/v2/hook/x") is chat_robots.FEISHU
    assert chat_robots.find("https://oapi.dingtalk.com/robot/send?access_token=x") is chat_robots.DINGTALK
    assert chat_robots.find("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=x") is chat_robots.WECOM
