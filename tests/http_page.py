"""A server on this machine whose every page answers with one status."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def server(status: int = 200) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:  # http.server's name
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()
