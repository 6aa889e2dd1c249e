"""The value of `save.store`: a directory, `s3://bucket/prefix`, `hf://owner/name` or `ssh://user@host:port/path`.

Installed packages add further schemes by the entry point group `stoker.stores`; here only their names are read. No
network. An address with a key or a password in it is refused: addresses are written into run files and logs.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker import plugins
from stoker.errors import StokerError

DIRECTORY = "directory"
BUILT_IN = (DIRECTORY, "s3", "hf", "ssh")
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Neither a user nor a host may begin with `-`: ssh would read it as an option."""


@dataclass(frozen=True)
class Address:
    """The parts of a store's address."""

    kind: str
    """`directory`, or the URL's scheme."""
    text: str
    """As it was written; free of secrets."""
    root: str
    """Directory, prefix or path that holds the runs."""
    host: str = ""
    """Bucket, repository, or host."""
    user: str = ""
    port: int | None = None


def parse(text: str, folder: Path) -> Address:
    """Read an address; a relative directory starts at `folder`."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Address(DIRECTORY, text, str((folder / Path(text).expanduser()).resolve()))
    _refuse_secrets(text)
    parts = urlsplit(text)
    readers = {"s3": _s3, "hf": _hf, "ssh": _ssh}
    reader = readers.get(parts.scheme, _plugin)
    try:
        found = None if any(ord(letter) < 32 for letter in unquote(text)) else reader(text)
    except ValueError:
        found = None
    if found is None or parts.query or parts.fragment:
        raise StokerError("STK650", store=text, others=_others())
    return found


def _others() -> str:
    """Schemes that installed packages provide, for a list behind the built-in ones."""
    return "".join(f", {one.choice}" for one in plugins.offered(plugins.STORES).values())


def _refuse_secrets(text: str) -> None:
    """The text itself is not repeated: it would reach the screen and the log."""
    parts = urlsplit(text)
    where = parts.netloc.rpartition("@")[0]
    if ":" in where or (where and parts.scheme != "ssh") or re.search(r"[?&#]", text):
        raise StokerError("STK651", scheme=parts.scheme)


def _s3(text: str) -> Address | None:
    parts = urlsplit(text)
    if not _BUCKET.fullmatch(parts.netloc):
        return None
    return Address("s3", text, unquote(parts.path).strip("/"), host=parts.netloc)


def _hf(text: str) -> Address | None:
    owner, _, rest = text.removeprefix("hf://").strip("/").partition("/")
    name, _, root = rest.partition("/")
    repository = f"{owner}/{name}"
    return Address("hf", text, root, host=repository) if _REPOSITORY.fullmatch(repository) else None


def _plugin(text: str) -> Address | None:
    """Whether the host may be empty, and what it names, is for the package to decide."""
    parts = urlsplit(text)
    if parts.scheme not in plugins.offered(plugins.STORES):
        return None
    return Address(parts.scheme, text, unquote(parts.path).strip("/"), host=parts.netloc)


def _ssh(text: str) -> Address | None:
    parts = urlsplit(text)
    user, at, host = parts.netloc.rpartition("@")
    host, colon, port = host.rpartition(":") if re.search(r":\d+$", host) else (host, "", "")
    if not _HOST.fullmatch(host) or (at and not _USER.fullmatch(user)):
        return None
    path = unquote(parts.path)
    # `/~/x` is below the home folder, as with git and rsync; everything else is absolute.
    root = path[3:] or "." if path == "/~" or path.startswith("/~/") else path
    if not root:
        return None
    return Address("ssh", text, root.rstrip("/") or "/", host.strip("[]"), user, int(port) if colon else None)
