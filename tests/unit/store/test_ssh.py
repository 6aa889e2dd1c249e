"""A store over SSH with a server that is none; real ones are in tests/store."""

import sys
from pathlib import Path

import pytest
from store_case import HASTY

from stoker.store.address import parse
from stoker.store.ssh import SshStore
from stoker.store.store_protocol import Bandwidth, Fault

VERSION = rb"\0\0\0\5\2\0\0\0\3"
SHORT_STATUS = rb"\0\0\0\7\x65\0\0\0\1\0\0"


def test_a_packet_that_is_too_short_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (VERSION + SHORT_STATUS).decode()
    script = f"import sys; sys.stdout.buffer.write(b'{words}'); sys.stdout.flush(); sys.stdin.read()"
    monkeypatch.setattr(SshStore, "_ssh", lambda self: [sys.executable, "-c", script])
    store = SshStore(parse("ssh://box/runs", Path()), HASTY, Bandwidth())
    with pytest.raises(Fault, match="does not speak SFTP"):
        store.names("run")
