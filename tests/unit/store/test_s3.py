"""A bucket whose settings are wrong: an error of the store, at the first call, without a password in it."""

import time
from pathlib import Path

import pytest

from stoker.errors import StokerError
from stoker.store import opening
from stoker.store.store_protocol import Fault, Patience

pytest.importorskip("boto3")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000"),
        ("AWS_ENDPOINT_URL", "http://u:geheim99@bad host"),
        ("AWS_PROFILE", "none"),
    ],
)
def test_wrong_settings_are_told_as_a_store_that_cannot_be_used(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv(name, value)
    store = opening.open_store("s3://bucket/runs", tmp_path)
    with pytest.raises(StokerError) as caught:
        store.names("")
    assert caught.value.code == "STK652"
    assert "geheim99" not in str(caught.value.fields)


def test_a_server_that_does_not_answer_is_given_up_by_the_client_before_the_call_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abandoned call could still be carried out: a late delete would remove what was uploaded meanwhile."""
    import socket

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        told: list[Fault] = []
        patience = Patience(stall_seconds=0.4, tries=2, first_pause_seconds=0.01, on_fault=told.append)
        store = opening.open_store("s3://bucket/runs", tmp_path, patience=patience)
        with pytest.raises(Fault):
            store.names("")  # the client is made
        told.clear()
        began = time.monotonic()
        with pytest.raises(Fault):
            store.remove(["a"])
    assert time.monotonic() - began < 10
    assert told
    assert all("ReadTimeout" in str(one) for one in told), told
