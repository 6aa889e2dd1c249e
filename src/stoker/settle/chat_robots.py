"""Group robots of 飞书 (Lark), 钉钉 (DingTalk) and 企业微信 (WeCom): the JSON each takes, its signature, its answer.

A robot is known by the path of its webhook's address: relays and private installations have hosts of their own. All of
them answer 200 to a message that they refuse, with a code in the body.
"""

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlsplit

_LONGEST_BYTES = 2000
"""企业微信 takes 2,048 bytes, the others more."""
_SHOWN_LETTERS = 100


@dataclass(frozen=True)
class Robot:
    """A kind of robot."""

    name: str
    path: str
    """How the path of its address begins."""
    codes: tuple[str, ...]
    """Keys of its answer that are 0 where the message was taken; the first that is there counts."""
    words: tuple[str, ...]
    """Keys of its answer that say why it was not."""


FEISHU = Robot("feishu", "/open-apis/bot/", ("code", "StatusCode"), ("msg", "StatusMessage"))
DINGTALK = Robot("dingtalk", "/robot/send", ("errcode",), ("errmsg",))
WECOM = Robot("wecom", "/cgi-bin/webhook/send", ("errcode",), ("errmsg",))
_ROBOTS = (FEISHU, DINGTALK, WECOM)


def find(address: str) -> Robot | None:
    """The robot behind an address, or None: then it is a webhook of another kind."""
    path = urlsplit(address).path
    return next((robot for robot in _ROBOTS if path.startswith(robot.path)), None)


def request(robot: Robot, address: str, text: str, secret: str, now: float) -> tuple[str, dict[str, Any]]:
    """Where a text is sent, and as what; signed where there is a secret.

    Args:
        robot: Of `find`.
        address: Of its webhook.
        text: The message.
        secret: Of the robot's signature check, or empty. 企业微信 has none.
        now: Seconds since 1970.
    """
    kept = text.encode()[:_LONGEST_BYTES].decode(errors="ignore")
    if robot is FEISHU:
        stamp = str(round(now))
        signed = {"timestamp": stamp, "sign": _digest(f"{stamp}\n{secret}", "")} if secret else {}
        return address, {**signed, "msg_type": "text", "content": {"text": kept}}
    if robot is DINGTALK and secret:
        stamp = str(round(now * 1000))
        sign = quote_plus(_digest(secret, f"{stamp}\n{secret}"))
        address = f"{address}&timestamp={stamp}&sign={sign}"
    return address, {"msgtype": "text", "text": {"content": kept}}


def refusal(robot: Robot, answer: bytes) -> str:
    """Why the robot did not take a message: its code and words; empty where it did."""
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    code = next((said[key] for key in robot.codes if key in said), None) if isinstance(said, dict) else None
    if code == 0:
        return ""
    if code is None or not isinstance(said, dict):
        return f"{robot.name}: no code in the answer"
    words = next((str(said[key]) for key in robot.words if said.get(key)), "")
    return f"{robot.name} {code}: {words[:_SHOWN_LETTERS]}"


def _digest(key: str, message: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), message.encode(), hashlib.sha256).digest()).decode()
