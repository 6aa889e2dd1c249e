"""Headless Chromium by its debugging pipe: no driver, no port, no package. Only what the calculator's tests need."""

import base64
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any


def found() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One page. Names resolve to nothing, so it reaches the loopback interface and no network."""

    def __init__(self, profile: Path) -> None:
        to_browser, self._writes = os.pipe()
        self._reads, from_browser = os.pipe()
        # The browser reads commands from file descriptor 3 and writes events to 4.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"),
            *("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"),
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, str(found()), *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._answers, self._came = 0, {}, threading.Condition()
        self._workers: list[str] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        target = self.send("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        self._session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        # Workers have sessions of their own: `_note` listens to their requests, too.
        self.send("Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True})

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)

    def send(self, method: str, params: dict[str, Any] | None = None, session: str | None = "page") -> dict[str, Any]:
        number = self._post(method, params or {}, self._session if session else None)
        with self._came:
            assert self._came.wait_for(lambda: number in self._answers, 300), method
            answer = self._answers.pop(number)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, address: str, *, width: int = 1280, height: int = 900, phone: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", size)
        self.send("Page.navigate", {"url": "about:blank"})
        self.send("Page.navigate", {"url": address})

    def press(self, key: str, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            event = {
                "type": kind,
                "key": key,
                "code": key,
                "windowsVirtualKeyCode": {"Tab": 9, "Enter": 13}.get(key, 0),
            }
            self.send("Input.dispatchKeyEvent", {**event, "text": text} if kind == "keyDown" and text else event)

    def disconnect(self, *, offline: bool = True) -> None:
        """Take every connection away, that to the server of the page, too."""
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        for session in (self._session, *self._workers):
            self._post("Network.emulateNetworkConditions", {"offline": offline, **speed}, session)

    def processor_seconds(self) -> float:
        """Of all its processes so far."""
        found = self.send("SystemInfo.getProcessInfo", session=None)["processInfo"]
        return sum(one["cpuTime"] for one in found)

    def evaluate(self, expression: str) -> Any:
        said = self.send("Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True})
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, condition: str, seconds: float) -> float:
        """Seconds until the condition holds."""
        began = time.monotonic()
        waiting = f"""new Promise((done) => {{
            const look = () => {{ try {{ if ({condition}) return done(true); }} catch {{}} setTimeout(look, 20); }};
            setTimeout(() => done(false), {seconds * 1000}); look(); }})"""
        assert self.evaluate(waiting), (condition, self.complaints, self.evaluate("document.body.innerText"))
        return time.monotonic() - began

    def picture(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        shot = self.send("Page.captureScreenshot", {"captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(shot["data"]))

    def _post(self, method: str, params: dict[str, Any], session: str | None) -> int:
        with self._came:
            self._number += 1
            number = self._number
            message = {"id": number, "method": method, "params": params}
            os.write(
                self._writes, json.dumps({**message, "sessionId": session} if session else message).encode() + b"\0"
            )
        return number

    def _listen(self) -> None:
        rest = b""
        while chunk := os.read(self._reads, 1 << 20):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in map(json.loads, messages):
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "id" in message:
            with self._came:
                self._answers[message["id"]] = message
                self._came.notify_all()
        elif message["method"] == "Target.attachedToTarget" and "sessionId" in message:
            self._workers.append(session := message["params"]["sessionId"])
            self._post("Network.enable", {}, session)
            self._post("Runtime.runIfWaitingForDebugger", {}, session)
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(message["params"]["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.complaints.append(message["params"]["entry"]["text"])
