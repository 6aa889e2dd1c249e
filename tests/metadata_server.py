"""A simulation of the metadata services of AWS, Google Cloud and Azure, after their documentation; no cloud was asked.

Each refuses what the real one refuses: a missing token, a missing header, another cloud's pages.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MACHINE = "gpu-7"


class Simulated(ThreadingHTTPServer):
    """One cloud's service on this machine. `notice` is what it says: nothing at first."""

    daemon_threads = True

    def __init__(self, cloud: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.cloud = cloud
        self.notice: Any = None
        self.asked: list[str] = []
        """Pages, in the order they were asked for."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def mark(self, seconds: float = 120) -> float:
        """Give notice as the cloud does; when the machine ends, as far as the cloud says that."""
        end = int(time.time() + seconds)
        if self.cloud == "aws":
            self.notice = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))}
        elif self.cloud == "azure":
            self.notice = [azure_event("Preempt", MACHINE, end)]
        else:
            self.notice = True
        return end

    def wait_until_asked(self, times: int) -> None:
        while len(self.asked) < times:
            time.sleep(0.01)


def azure_event(kind: str, machine: str, end: float) -> dict[str, Any]:
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["gpu-1", machine],
        "EventStatus": "Scheduled",
        "NotBefore": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(end)),
        "EventSource": "Platform",
    }


class _Answer(BaseHTTPRequestHandler):
    server: Simulated

    def do_GET(self) -> None:  # the base class' name
        self._say(*getattr(self, f"_{self.server.cloud}")())

    do_PUT = do_GET  # noqa: N815

    def _say(self, status: int, text: str) -> None:
        self.server.asked.append(self.path)
        self.send_response(status)
        if self.server.cloud == "moved":
            self.send_header("Location", f"http://{self.server.notice}{self.path}")
        self.end_headers()
        self.wfile.write(text.encode())

    def _aws(self) -> tuple[int, str]:
        if self.path == "/latest/api/token":
            seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            return (200, "AQAE-token==") if self.command == "PUT" and seconds.isdigit() else (400, "")
        if self.headers.get("X-aws-ec2-metadata-token") != "AQAE-token==":
            return 401, ""
        if self.path == "/latest/meta-data/spot/instance-action" and self.server.notice:
            return 200, json.dumps(self.server.notice)
        return 404, ""

    def _google(self) -> tuple[int, str]:
        if self.headers.get("Metadata-Flavor") != "Google":
            return 403, ""
        if self.path != "/computeMetadata/v1/instance/preempted":
            return 404, ""
        return 200, "TRUE" if self.server.notice else "FALSE"

    def _azure(self) -> tuple[int, str]:
        page, _, query = self.path.partition("?")
        if self.headers.get("Metadata") != "true" or "api-version=" not in query:
            return 400, ""
        if page == "/metadata/instance/compute/name":
            return 200, MACHINE
        if page == "/metadata/scheduledevents":
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": self.server.notice or []})
        return 404, ""

    def _elsewhere(self) -> tuple[int, str]:
        """No cloud: some other program at that address."""
        return 200, "<html>welcome</html>" * 10000

    def _hanging(self) -> tuple[int, str]:
        time.sleep(60)
        return 200, ""

    def _moved(self) -> tuple[int, str]:
        """Sends whoever asks to the address in `notice`."""
        return 302, ""

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@contextmanager
def simulated(cloud: str) -> Iterator[Simulated]:
    """A running simulation of `aws`, `google`, `azure`, or of what is none of them."""
    server = Simulated(cloud)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
