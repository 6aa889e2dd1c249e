"""Servers on this machine: one whose every page answers with one status, and one that answers as it is told."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Quiet(http.server.BaseHTTPRequestHandler):
    """Writes nothing to stderr."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        return


@contextmanager
def serving(pages: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server, until the block ends."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), pages) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


@contextmanager
def server(status: int = 200) -> Iterator[str]:
    class Page(Quiet):
        def do_HEAD(self) -> None:  # http.server's name
            self.send_response(status)
            self.end_headers()

    with serving(Page) as address:
        yield address
