"""A simulation of Kaggle: a server that speaks its API, and a machine that runs what is pushed.

The real `kaggle` command, unchanged, talks to it: this server is its proxy and answers for api.kaggle.com with a
certificate made for the test. So what we send is checked by Kaggle's own code. A pushed script runs for real
(`notebook_machine.py`): /kaggle/working is writable, /kaggle/input read-only. As Kaggle may do, it keeps no output of a
kernel that failed or was killed at its limit, and it unpacks every zip of a dataset.
"""

import contextlib
import http.server
import json
import shutil
import ssl
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import notebook_machine
from notebook_machine import Mount

USER = "someone"
HOST = "api.kaggle.com"


@dataclass
class Session:
    """One run of a kernel."""

    request: dict[str, Any]
    folder: Path
    state: str = "QUEUED"
    output: dict[str, Path] = field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0


@dataclass
class Kaggle:
    """The server's memory."""

    root: Path
    port: int = 0
    datasets: dict[str, list[Path]] = field(default_factory=dict)
    """Versions of each, as they are mounted."""
    blobs: dict[str, tuple[str, Path]] = field(default_factory=dict)
    kernels: dict[str, list[Session]] = field(default_factory=dict)
    pushes: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    gpu_hours_left: float = 30.0
    newer_paths: bool = False
    """Whether inputs are mounted below `datasets/USER/` and `notebooks/USER/`, as newer images have it."""
    unpacks: bool = True
    """Whether a zip of a dataset arrives unpacked."""
    steps_a_session: int | None = None
    """After so many steps of a session the supervisor's clock jumps to 100 seconds before the session's end."""
    executes: bool = True
    """Whether what is pushed runs, or waits in the queue for ever."""
    bad_downloads: int = 0
    """So many downloads bring an error page, which Kaggle's command line takes for the file."""
    threads: list[threading.Thread] = field(default_factory=list)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, tools: Path) -> dict[str, str]:
        """What leads the real command here."""
        proxy = f"http://127.0.0.1:{self.port}"
        return {
            "KAGGLE_USERNAME": USER,
            "KAGGLE_KEY": "0" * 32,
            "KAGGLE_CONFIG_DIR": str(self.root),
            "HOME": str(self.root),
            "http_proxy": proxy,
            "https_proxy": proxy,
            "REQUESTS_CA_BUNDLE": str(self.root / "cert.pem"),
            "no_proxy": "",
            "NO_PROXY": "",
            "STOKER_TOOLS": str(tools),
        }

    # ---- the API

    def answer(self, method: str, asked: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        self.calls.append(method)
        return getattr(self, f"do_{method}")(asked)

    def do_StartBlobUpload(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802  # Kaggle's name
        token = f"blob{len(self.blobs)}"
        self.blobs[token] = (asked["name"], self.root / "blobs" / token)
        return {"token": token, "createUrl": f"http://kaggle.test/blob/{token}"}

    def do_CreateDataset(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return self._new_version(f"{asked['ownerSlug']}/{asked['slug']}", asked["files"])

    def do_CreateDatasetVersion(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return self._new_version(f"{asked['ownerSlug']}/{asked['datasetSlug']}", asked["body"]["files"])

    def _new_version(self, name: str, files: list[dict[str, Any]]) -> dict[str, Any]:
        versions = self.datasets.setdefault(name, [])
        folder = self.root / "datasets" / name.replace("/", "-") / str(len(versions) + 1)
        folder.mkdir(parents=True)
        for one in files:
            file_name, path = self.blobs[one["token"]]
            if self.unpacks and file_name.endswith(".zip"):
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(folder / file_name.removesuffix(".zip"))
            else:
                shutil.copyfile(path, folder / file_name)
        versions.append(folder)
        return {"status": "ok", "url": f"http://kaggle.test/{name}"}

    def do_GetDatasetStatus(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"status": "READY"} if self._dataset(asked) else {"code": 404, "message": "Not found"}

    def do_GetDataset(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"currentVersionNumber": len(self._dataset(asked))}

    def _dataset(self, asked: dict[str, Any]) -> list[Path]:
        return self.datasets.get(f"{asked['ownerSlug']}/{asked['datasetSlug']}", [])

    def do_GetAcceleratorQuotaStatistics(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        used = 3600 * (30 - self.gpu_hours_left)
        quota = {"timeUsed": f"{used:.0f}s", "totalTimeAllowed": "108000s"}
        return {"quotaRefreshTime": "2026-11-21T00:00:00Z", "gpuQuota": quota, "tpuQuota": quota}

    def do_SaveKernel(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.pushes.append(asked)
        name = asked["slug"]
        sessions = self.kernels.setdefault(name, [])
        number = len(sessions) + 1
        folder = self.root / "sessions" / f"{name.replace('/', '-')}-v{number}"
        session = Session(asked, folder)
        sessions.append(session)
        missing = [one for one in asked.get("datasetDataSources", []) if one not in self.datasets]
        lost = [one for one in asked.get("kernelDataSources", []) if one not in self.kernels]
        if self.executes:
            thread = threading.Thread(target=self._run, args=(session,), daemon=True)
            self.threads.append(thread)
            thread.start()
        return {
            "ref": f"/code/{name}",
            "url": f"http://kaggle.test/code/{name}",
            "versionNumber": number,
            "invalidDatasetSources": missing,
            "invalidKernelSources": lost,
        }

    def do_GetKernelSessionStatus(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        name = f"{asked['userName']}/{asked['kernelSlug']}"
        if name not in self.kernels:
            return {"code": 403, "message": "Permission 'kernels.get' was denied"}
        return {"status": self.session(name).state}

    def do_ListKernelSessionOutput(self, asked: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """A few files a page: whoever does not turn the page misses the rest."""
        name = f"{asked['userName']}/{asked['kernelSlug']}"
        session = self.session(name)
        start, size = int(asked.get("pageToken") or 0), 7
        names = sorted(session.output)
        files = [
            {"fileName": one, "url": f"http://kaggle.test/output/{name}/{one}"} for one in names[start : start + size]
        ]
        token = str(start + size) if start + size < len(names) else ""
        return {"files": files, "log": session.log, "nextPageToken": token}

    def session(self, name: str) -> Session:
        """The newest session of a kernel."""
        return self.kernels[name][-1]

    # ---- the machine

    def _run(self, session: Session) -> None:
        asked, folder = session.request, session.folder
        for inner in ("working", "input"):
            (folder / inner).mkdir(parents=True)
        notebook_machine.image(folder, self.steps_a_session)
        for name in asked.get("datasetDataSources", []):
            if versions := self.datasets.get(name):
                shutil.copytree(versions[-1], self._mount(folder, "datasets", name))
        for name in asked.get("kernelDataSources", []):
            if name in self.kernels:
                self._copy_output(self.session(name), self._mount(folder, "notebooks", name))
        session.state, began = "RUNNING", time.monotonic()
        code = self._execute(session, float(asked.get("sessionTimeoutSeconds") or 43200))
        session.seconds = time.monotonic() - began
        session.log = (folder / "log").read_text(errors="replace")
        if code == 0:
            working = folder / "working"
            found = [path for path in working.rglob("*") if path.is_file() and not path.is_symlink()]
            session.output = {path.relative_to(working).as_posix(): path for path in found}
        session.state = "COMPLETE" if code == 0 else "ERROR"

    def _mount(self, folder: Path, kind: str, name: str) -> Path:
        slug = name.partition("/")[2]
        return folder / "input" / (f"{kind}/{name}" if self.newer_paths else slug)

    @staticmethod
    def _copy_output(session: Session, target: Path) -> None:
        target.mkdir(parents=True)
        for name, path in session.output.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)

    def _execute(self, session: Session, seconds: float) -> int:
        folder = session.folder
        mounts = [
            Mount(folder / "working", "/kaggle/working"),
            Mount(folder / "input", "/kaggle/input", writable=False),
        ]
        signs = {"KAGGLE_KERNEL_RUN_TYPE": "Batch", "KAGGLE_URL_BASE": "http://kaggle.test"}
        process = notebook_machine.start(folder, session.request["text"], "/kaggle/working", mounts, signs)
        self.running.append(process)
        return notebook_machine.wait(process, seconds)


def _certificate(root: Path) -> ssl.SSLContext:
    paths = ["-keyout", str(root / "key.pem"), "-out", str(root / "cert.pem")]
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}"]
    subprocess.run(["openssl", "req", *kind, *names, *paths], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root / "cert.pem", root / "key.pem")
    return context


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kaggle: Kaggle
    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        assert self.path == f"{HOST}:443", self.path
        self.send_response(200)
        self.end_headers()
        self.connection = self.context.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Last-Modified", "Sun, 15 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        method = urlsplit(self.path).path.rpartition("/")[2]
        said = self.kaggle.answer(method, json.loads(self._body() or b"{}"))
        self._send(said.get("code", 200), json.dumps(said).encode(), "application/json")

    def do_PUT(self) -> None:
        _, path = self.kaggle.blobs[urlsplit(self.path).path.rpartition("/")[2]]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._body())
        self._send(200, b"", "text/plain")

    def do_GET(self) -> None:
        words = unquote(urlsplit(self.path).path).split("/", 4)
        if self.kaggle.bad_downloads:
            self.kaggle.bad_downloads -= 1
            self._send(503, b"<html>Service Unavailable</html>", "text/html")
            return
        output = self.kaggle.session(f"{words[2]}/{words[3]}").output
        self._send(200, output[words[4]].read_bytes(), "application/octet-stream")

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def kaggle(root: Path) -> Iterator[Kaggle]:
    """Kaggle, for as long as the block lasts."""
    root.mkdir(parents=True, exist_ok=True)
    there = Kaggle(root)
    handler = type("Handler", (_Handler,), {"kaggle": there, "context": _certificate(root)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    there.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield there
    finally:
        for process in there.running:
            if process.poll() is None:
                process.kill()
        for one in there.threads:
            one.join(10)
        server.shutdown()
        server.server_close()
