"""A simulation of AutoDL's developer API, after its documentation and what others report of it; AutoDL was not asked.

It refuses what the real one is said to refuse: a token with `Bearer`, the parameters of a GET in its body, an ordinary
instance, a start without a card, a card that somebody else has. Creating and releasing are recorded and never wanted.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TOKEN = "dev-token-canary-7f3a"
PASSWORD = "root-password-canary"
PRO = "pro-76576c61fdf1"
ORDINARY = "71d74a9b6f-0a1b2c3d"
HOST = "connect.simulated.autodl.com"


class Simulated(ThreadingHTTPServer):
    """One account on this machine, with one Pro instance that is off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        """Every question: the last word of its path, and its fields."""
        self.status = "shutdown"
        self.mode = "gpu"
        self.port = 34221
        self.none_idle = 0
        """How often a start is refused because no card is idle."""
        self.knows_no_card = True
        """Whether an instance starts without a card; the documentation of 2026 says that it does not."""
        self.broken = 0
        """How many answers are HTTP 502."""
        self.loses_answers = 0
        """How many starts happen and are answered by nothing."""
        self.moved = ""
        """Where whoever asks is sent instead."""
        self.slow = 2
        """How often `status` is asked until it has changed."""
        self.stuck = False
        self.refuses_off_while_starting = False
        self.host = HOST
        self.moves = 1
        """How far the port moves with each start."""
        self.switched: Callable[[bool], None] = lambda on: None
        """What else is to happen when it is switched on or off."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def named(self, word: str) -> list[dict[str, Any]]:
        """The questions of one kind."""
        return [fields for one, fields in self.asked if one == word]

    def verbs(self) -> list[str]:
        """What was changed, in order."""
        changing = ("power_on", "power_off", "create", "release", "save")
        return [
            fields.get("payload", one) if one == "power_on" else one for one, fields in self.asked if one in changing
        ]


class _Answer(BaseHTTPRequestHandler):
    server: Simulated

    def do_GET(self) -> None:  # the base class' name
        self._answer(dict(parse_qsl(urlsplit(self.path).query)))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(json.loads(body or b"{}"))

    def _answer(self, fields: dict[str, Any]) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append((path.rpartition("/")[2], fields))
        if self.server.moved:
            self.send_response(302)
            self.send_header("Location", f"{self.server.moved}{self.path}")
            self.end_headers()
        elif self.headers.get("Authorization") != TOKEN:
            self._say("AuthorizeFailed", "登录超时", None)
        elif self.server.broken:
            self.server.broken -= 1
            self.send_error(502)
        else:
            name = f"_{self.command.lower()}{path.replace('/api/v1/dev', '').replace('/', '_')}"
            self._say(*getattr(self, name, self._unknown)(fields))

    def _say(self, code: str, words: str, data: Any) -> None:
        if code == "lost":
            return
        content = json.dumps({"code": code, "msg": words, "data": data, "request_id": "simulated"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _unknown(self, _: dict[str, Any]) -> tuple[str, str, Any]:
        return "NotFound", "no such page", None

    # ---- the account

    def _post_wallet_balance(self, _: dict[str, Any]) -> tuple[str, str, Any]:
        return "Success", "", {"assets": 12_340, "accumulate": 987_650, "voucher_balance": 5_000}

    def _post_machine_region_gpu_stock(self, fields: dict[str, Any]) -> tuple[str, str, Any]:
        if not fields.get("region_sign"):
            return "BadRequest", "参数错误", None
        return "Success", "", [{"RTX 4090": {"idle_gpu_num": 215, "total_gpu_num": 2285}}, {"H800": _counts(0, 64)}]

    # ---- instances

    def _post_instance_pro_list(self, fields: dict[str, Any]) -> tuple[str, str, Any]:
        entry = {
            "uuid": PRO,
            "name": "my pro",
            "status": self.server.status,
            "start_mode": self.server.mode,
            "region_sign": "neimeng-C",
            "req_gpu_amount": 1,
            "started_at": {"Time": "2026-11-15T17:31:05+08:00", "Valid": True},
        }
        other = {**entry, "uuid": "pro-000000000000", "name": "", "status": "released"}
        page = int(fields["page_index"])
        return "Success", "", {"list": [[other], [entry]][page - 1], "page_index": page, "max_page": 2}

    def _get_instance_pro_status(self, fields: dict[str, Any]) -> tuple[str, str, Any]:
        if refused := self._refused(fields):
            return refused
        seen, server = self.server.status, self.server
        if seen in ("starting", "shutting_down") and not server.stuck:
            server.slow -= 1
            if server.slow <= 0:
                server.status = {"starting": "running", "shutting_down": "shutdown"}[seen]
        return "Success", "", seen

    def _get_instance_pro_snapshot(self, fields: dict[str, Any]) -> tuple[str, str, Any]:
        if refused := self._refused(fields):
            return refused
        return (
            "Success",
            "",
            {
                "region_sign": "neimeng-C",
                "payg_price": 1970,
                "origin_pay_price": 3030,
                "snapshot_gpu_alias_name": "vGPU-48GB",
                "ssh_command": f"ssh -p {self.server.port} root@{self.server.host}",
                "proxy_host": self.server.host,
                "ssh_port": self.server.port,
                "root_password": PASSWORD,
                "jupyter_token": PASSWORD,
            },
        )

    def _post_instance_pro_power_on(self, fields: dict[str, Any]) -> tuple[str, str, Any]:
        server = self.server
        if refused := self._refused(fields):
            return refused
        if server.status != "shutdown":
            return "BadRequest", f"实例状态为{server.status}，无法开机", None
        if fields["payload"] not in ("gpu", "non_gpu") or (fields["payload"] == "non_gpu" and not server.knows_no_card):
            return "BadRequest", "不支持的启动模式", None
        if fields["payload"] == "gpu" and server.none_idle:
            server.none_idle -= 1
            return "BadRequest", "该主机空闲GPU不足，无法开机", None
        server.status, server.mode, server.slow = "starting", fields["payload"], 2
        server.port += server.moves
        server.switched(True)
        if server.loses_answers:
            server.loses_answers -= 1
            return "lost", "", None
        return "Success", "", None

    def _post_instance_pro_power_off(self, fields: dict[str, Any]) -> tuple[str, str, Any]:
        if refused := self._refused(fields):
            return refused
        if self.server.refuses_off_while_starting and self.server.status == "starting":
            return "BadRequest", "实例状态为starting，无法关机", None
        self.server.status, self.server.slow = "shutting_down", 2
        self.server.switched(False)
        return "Success", "", None

    def _refused(self, fields: dict[str, Any]) -> tuple[str, str, Any] | None:
        if not fields.get("instance_uuid"):
            return "BadRequest", "参数错误", None
        return None if fields["instance_uuid"] == PRO else ("RecordNotFoundError", "record not found", None)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


def _counts(idle: int, total: int) -> dict[str, int]:
    return {"idle_gpu_num": idle, "total_gpu_num": total}


@contextmanager
def simulated() -> Iterator[Simulated]:
    """A running simulation."""
    server = Simulated()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
