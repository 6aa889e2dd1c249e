"""Opens addresses without following redirects: a token in a header would be sent to wherever they lead."""

import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


def opener(proxies: urllib.request.ProxyHandler | None = None) -> urllib.request.OpenerDirector:
    """An opener with its `open(request, timeout=...)`; through the environment's proxies, unless others are given."""
    return urllib.request.build_opener(NoRedirect, *([proxies] if proxies else []))
