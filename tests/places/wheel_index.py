"""A package index on this machine: the packages of these tests' own environment, packed again as wheels when asked for.

Boxes have no way out; with this one their pip and uv find what a mirror would give them. A wheel that is at hand
(`PIP_FIND_LINKS`) is given as it is.
"""

import http.server
import os
import re
import threading
import urllib.parse
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path


class Index:
    """Wheels by project name; packed once, into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        """Names of the wheels that were fetched."""
        self._lock = threading.Lock()
        self._installed = {_normal(one.name): one for one in metadata.distributions()}
        links = os.environ.get("PIP_FIND_LINKS", "")
        self._at_hand = sorted(Path(links).glob("*.whl")) if links and Path(links).is_dir() else []

    def wheel(self, project: str) -> Path | None:
        """The wheel of a project; None where it is not installed here."""
        with self._lock:
            for path in self._at_hand:
                if _normal(path.name.partition("-")[0]) == project:
                    return path
            found = self._installed.get(project)
            return self._packed(found) if found else None

    def _packed(self, found: metadata.Distribution) -> Path:
        tags = re.findall(r"^Tag: (\S+)", found.read_text("WHEEL") or "", re.M) or ["py3-none-any"]
        name = f"{found.name.replace('-', '_')}-{found.version}"
        target = self.folder / f"{name}-{tags[-1]}.whl"
        if target.exists():
            return target
        with zipfile.ZipFile(target.with_suffix(".part"), "w", zipfile.ZIP_STORED) as archive:
            for file in found.files or ():
                path = Path(str(found.locate_file(file)))
                inside = str(file)
                if inside.startswith(".."):  # a program of its own, beside the packages
                    inside = f"{name}.data/scripts/{path.name}"
                if (
                    path.is_file()
                    and "__pycache__" not in inside
                    and not inside.endswith(("direct_url.json", "RECORD"))
                ):
                    archive.write(path, inside)
            archive.writestr(f"{_info(found)}/RECORD", "")
        target.with_suffix(".part").rename(target)
        return target


@contextmanager
def served(folder: Path) -> Iterator[tuple[Index, int]]:
    """The index, and its port on every address of this machine."""
    index = Index(folder)

    class Page(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            kind, _, rest = urllib.parse.unquote(self.path).strip("/").partition("/")
            if kind == "simple":
                wheel = index.wheel(_normal(rest))
                page = f'<!DOCTYPE html><a href="/wheels/{wheel.name}">{wheel.name}</a>'.encode() if wheel else b""
                self._answer(200 if wheel else 404, page, "text/html")
                return
            index.asked.append(rest)
            wheel = index.wheel(_normal(rest.partition("-")[0]))
            self._answer(200 if wheel else 404, wheel.read_bytes() if wheel else b"", "application/octet-stream")

        do_HEAD = do_GET  # noqa: N815  # http.server's name

        def _answer(self, code: int, content: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            return

    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Page) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield index, listening.server_port
        finally:
            listening.shutdown()
            thread.join()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _info(found: metadata.Distribution) -> str:
    return next(str(file).split("/")[0] for file in found.files or () if str(file).endswith(".dist-info/METADATA"))
