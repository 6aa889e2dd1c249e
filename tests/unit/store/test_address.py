"""Addresses of stores: what each says, and that no secret gets through."""

from pathlib import Path

import pytest

from stoker import messages
from stoker.config import load
from stoker.errors import StokerError, StokerErrors
from stoker.store.address import Address, parse

HERE = Path("folder").resolve()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/a/b", Address("s3", "s3://bucket/a/b", "a/b", "bucket")),
        ("s3://bucket", Address("s3", "s3://bucket", "", "bucket")),
        ("hf://me/runs", Address("hf", "hf://me/runs", "", "me/runs")),
        ("hf://me/runs/deep/er", Address("hf", "hf://me/runs/deep/er", "deep/er", "me/runs")),
        ("ssh://me@box/data", Address("ssh", "ssh://me@box/data", "/data", "box", "me")),
        ("ssh://box:2222/~/runs", Address("ssh", "ssh://box:2222/~/runs", "runs", "box", "", 2222)),
        ("ssh://[::1]:22/x", Address("ssh", "ssh://[::1]:22/x", "/x", "::1", "", 22)),
        ("../copies", Address("directory", "../copies", str(HERE.parent / "copies"))),
        ("/mnt/drive/copies", Address("directory", "/mnt/drive/copies", str(Path("/mnt/drive/copies").resolve()))),
    ],
)
def test_an_address_is_taken_apart(text: str, expected: Address) -> None:
    assert parse(text, HERE) == expected


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3://UPPER/x",
        "hf://only-owner",
        "hf://a/b c",
        "ssh://host",
        "ssh://-oProxyCommand=touch/x",
        "ssh://-x@host/x",
        "ssh://host/a\nb",
        "gs://bucket/x",
        "https://example.com/x",
    ],
)
def test_what_is_no_store_is_refused(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse(text, HERE)
    assert caught.value.code == "STK650"


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAKEY:canary-secret@bucket/x",
        "s3://canary-secret@bucket/x",
        "hf://canary-secret@owner/name",
        "ssh://me:canary-secret@host/x",
        "s3://bucket/x?X-Amz-Signature=canary-secret",
        "s3://bucket/x#canary-secret",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse(text, HERE)
    assert caught.value.code == "STK651"
    assert "canary" not in str(caught.value) + str(caught.value.to_json())


def test_a_password_is_refused_where_the_run_file_is_read() -> None:
    text = "model: a/b\ndata: {train: x.jsonl}\nsave: {store: 's3://key:canary-secret@bucket/x'}\n"
    with pytest.raises(StokerErrors) as caught:
        load.parse(text, "run.yaml")
    assert [error.code for error in caught.value.errors] == ["STK115"]
    assert "canary" not in str(caught.value)


def test_hints_name_every_kind_of_store() -> None:
    hint = messages.CATALOGUES["en"]["STK650.hint"]
    assert all(word in hint for word in ("directory", "s3://", "hf://", "ssh://"))
