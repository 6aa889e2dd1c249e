"""A store in an S3-compatible bucket, through boto3. Endpoint and credentials come from the environment only.

Large files are uploaded in parts that the server keeps until the upload is completed: a cut connection costs one part.
Every call has a time limit; retries are `Patient`'s. Conditional writes are sent to every server; some ignore them, so
the object is looked up first.
"""

import contextlib
import functools
import hashlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from stoker import env
from stoker.errors import StokerError
from stoker.store.address import Address
from stoker.store.store_protocol import Bandwidth, ByteRange, Fault, Patience, bounded, require_small

T = TypeVar("T")
_MOST_PARTS = 9000
"""S3 takes 10,000."""
_AT_ONCE = 8
"""Ranges that are asked for at once; botocore keeps 10 connections."""
_CONDITION_FAILED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_UNSUPPORTED = ("NotImplemented", "MethodNotAllowed", "501", "405")
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")
_NO_BUCKET = ("NoSuchBucket", "InvalidBucketName")
_NOT_FOUND = ("NoSuchKey", "NoSuchVersion", "404")
_DENIED = (
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "ExpiredToken",
    "IllegalLocationConstraintException",
    "InvalidAccessKeyId",
    "InvalidObjectState",
    "InvalidPayer",
    "InvalidSecurity",
    "NotSignedUp",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "403",
)


class S3Store:
    """Objects below a prefix of one bucket."""

    beats = True

    def __init__(self, address: Address, patience: Patience, bandwidth: Bandwidth) -> None:
        self._bucket, self._prefix = address.host, address.root
        self._text = address.text
        self._patience = patience
        self._bandwidth = bandwidth
        self._endpoint = env.read(env.AWS_ENDPOINT_URL)  # now: the client is made with the first request
        _require_package()

    # ---- small files

    def names(self, folder: str) -> dict[str, int]:
        """Every object below a folder."""
        found: dict[str, int] = {}
        prefix = self._key(folder).rstrip("/") + "/" if self._key(folder) else ""
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, MaxKeys=1000, **token)
            for one in page.get("Contents", ()):
                found[self._name(one["Key"])] = one["Size"]
            if not page.get("IsTruncated"):
                return found
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, name: str) -> bytes:
        """A small object."""
        return self._get(name, self._patience.part_bytes)

    def write(self, name: str, content: bytes) -> None:
        """One request: an object appears whole or not at all."""
        self._put(name, content)

    def create(self, name: str, content: bytes) -> bool:
        """`If-None-Match: *`."""
        if self._head(name) is not None:
            return False
        return self._put_if(name, content, IfNoneMatch="*")

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """`If-Match` with the tag of what was read."""
        head = self._head(name)
        if head is None or self.read(name) != before:
            return False
        return self._put_if(name, after, IfMatch=head["ETag"])

    def remove(self, names: list[str]) -> None:
        """One by one, so that the order holds."""
        for name in names:
            self._call("delete_object", Key=self._key(name))

    def sweep(self, folder: str, current: str) -> None:
        """Unfinished uploads: their parts are stored and billed until the upload is aborted."""
        for one in self._unfinished(self._key(folder) + "/"):
            if not self._name(one["Key"]).startswith(f"{current}/"):
                self._call("abort_multipart_upload", Key=one["Key"], UploadId=one["UploadId"])

    # ---- large files

    def upload(self, source: Path, name: str, sha256: str) -> None:
        """In one request, or in parts; parts that the server already holds are not sent again."""
        size = source.stat().st_size
        part_bytes = max(self._patience.part_bytes, -(-size // _MOST_PARTS))
        tag = _tag(source, size, part_bytes)
        if self._holds(name, size, tag, sha256):
            return  # an earlier attempt succeeded and only its response was lost
        if size <= part_bytes:
            self._put(name, source.read_bytes())
        else:
            self._upload_parts(source, name, part_bytes)
        if not self._holds(name, size, tag, sha256):
            self.remove([name])
            raise Fault(f"{name}: the uploaded object differs from the file")

    def download(self, name: str, target: Path, size_bytes: int) -> None:
        """By ranges, from where the target ends."""
        begun = done = target.stat().st_size if target.exists() else 0
        with target.open("ab") as file:
            try:
                for chunk in self._ranges(name, begun, size_bytes):
                    file.write(chunk)
                    file.flush()
                    done += len(chunk)
            except Fault as fault:
                raise Fault(fault, gained_bytes=done - begun) from fault

    def ranges(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """Several requests at once: small ranges cost mostly the way to the server and back."""
        _ = self._client  # before the threads
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = {pool.submit(self._range, *one): number for number, one in enumerate(wanted)}
            failed: Exception | None = None
            for one in as_completed(asked):
                if one.cancelled():
                    continue
                try:
                    yield asked[one], one.result()
                except (Fault, FileNotFoundError, StokerError) as error:
                    failed = error
                    for other in asked:
                        other.cancel()
        if failed is not None:
            raise failed

    def sha256(self, name: str, size_bytes: int) -> str:
        """The whole object is read back."""
        digest = hashlib.sha256()
        for chunk in self._ranges(name, 0, size_bytes):
            digest.update(chunk)
        return digest.hexdigest()

    def _upload_parts(self, source: Path, name: str, part_bytes: int) -> None:
        """Send missing parts, then complete the upload."""
        key = self._key(name)
        upload, held = self._begun(key)
        gained, parts = 0, []
        try:
            for number, content in enumerate(_parts(source, part_bytes), 1):
                tag = held.get(number, "")
                # Tags of encrypted parts are not digests: such parts are sent again.
                if _plain(tag) != hashlib.md5(content, usedforsecurity=False).hexdigest():
                    part = {"UploadId": upload, "PartNumber": number, "Body": content}
                    self._bandwidth.spend(len(content))
                    tag = self._call("upload_part", len(content), Key=key, **part)["ETag"]
                    gained += len(content)
                parts.append({"PartNumber": number, "ETag": tag})
            self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        except Fault as fault:
            raise Fault(fault, gained_bytes=gained) from fault

    def _begun(self, key: str) -> tuple[str, dict[int, str]]:
        """The newest unfinished upload of this key with its parts' tags, or a new one."""
        own = [one["UploadId"] for one in self._unfinished(key) if one["Key"] == key]
        if not own:
            return self._call("create_multipart_upload", Key=key)["UploadId"], {}
        held: dict[int, str] = {}
        marker: dict[str, int] = {}
        while True:
            page = self._call("list_parts", Key=key, UploadId=own[-1], **marker)
            held.update({part["PartNumber"]: part["ETag"] for part in page.get("Parts", ())})
            if not page.get("IsTruncated"):
                return own[-1], held
            marker = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def _unfinished(self, prefix: str) -> list[Any]:
        try:
            return list(self._call("list_multipart_uploads", Prefix=prefix).get("Uploads", ()))
        except (_Unsupported, _UploadGone):
            return []

    def _holds(self, name: str, size: int, tag: str, sha256: str) -> bool:
        """Whether the object is this file, by the server's tag; where the tag is no MD5 the object is read back."""
        head = self._head(name)
        if head is None or head["ContentLength"] != size:
            return False
        return _plain(head["ETag"]) == tag or self.sha256(name, size) == sha256

    # ---- calls

    def _ranges(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            behind = min(begin + self._patience.part_bytes, end)
            yield self._range(name, begin, behind)
            begin = behind

    def _range(self, name: str, begin: int, end: int) -> bytes:
        self._bandwidth.spend(end - begin)
        chunk = self._get(name, end - begin, Range=f"bytes={begin}-{end - 1}")
        if len(chunk) != end - begin:
            raise Fault(f"{name}: {len(chunk)} bytes came in place of {end - begin}")
        return chunk

    def _get(self, name: str, size_bytes: int, **options: str) -> bytes:
        def get() -> bytes:
            response = self._client.get_object(Bucket=self._bucket, Key=self._key(name), **options)
            with contextlib.closing(response["Body"]) as body:
                require_small(name, response["ContentLength"])
                return bytes(body.read())

        return self._bounded(get, size_bytes)

    def _put(self, name: str, content: bytes) -> None:
        self._bandwidth.spend(len(content))
        self._call("put_object", len(content), Key=self._key(name), Body=content)

    def _put_if(self, name: str, content: bytes, **condition: str) -> bool:
        """Whether it was written; the object is read back because some servers ignore the condition."""
        try:
            self._call("put_object", Key=self._key(name), Body=content, **condition)
        except _ConditionFailed:
            return False
        except _Unsupported:
            self._put(name, content)
        return self.read(name) == content

    def _head(self, name: str) -> Any:
        try:
            return self._call("head_object", Key=self._key(name))
        except FileNotFoundError:
            return None

    @functools.cached_property
    def _client(self) -> Any:
        """Made at the first call: a wrong endpoint or profile is then an error of the store, like any other."""
        try:
            return _connect(self._endpoint, self._patience)
        except Exception as error:  # ValueError, or botocore's, which have no common base class
            raise StokerError("STK652", store=self._text, reason=_reason(error)) from error

    def _call(self, method: str, size_bytes: int = 0, /, **options: Any) -> Any:
        return self._bounded(lambda: getattr(self._client, method)(Bucket=self._bucket, **options), size_bytes)

    def _bounded(self, call: Callable[[], T], size_bytes: int) -> T:
        """One call with a time limit; botocore's errors become ours.

        The client gives up by itself before that (`_connect`): what is abandoned must not be carried out later, when
        the next attempt has gone further.
        """
        try:
            return bounded(call, self._patience.seconds_for(size_bytes) + self._patience.stall_seconds / 2)
        except (StokerError, Fault):
            raise
        except Exception as error:  # botocore's errors have no common base class
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        code, reason = _code(error), _reason(error)
        if code in _NO_BUCKET:
            return StokerError("STK652", store=self._text, reason=reason)
        if code in _DENIED or type(error).__name__ in _NO_CREDENTIALS:
            return StokerError("STK653", store=self._text, reason=reason)
        return _BY_CODE.get(code, Fault)(reason)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".strip("/")

    def _name(self, key: str) -> str:
        return key[len(self._prefix) :].lstrip("/") if self._prefix else key


class _ConditionFailed(Fault):
    """The condition of a write did not hold."""


class _UploadGone(Fault):
    """The server no longer has an unfinished upload."""


class _Unsupported(Fault):
    """The server does not implement this call."""


_BY_CODE: dict[str, type[Exception]] = {
    **dict.fromkeys(_CONDITION_FAILED, _ConditionFailed),
    **dict.fromkeys(_UNSUPPORTED, _Unsupported),
    **dict.fromkeys(_NOT_FOUND, FileNotFoundError),
    "NoSuchUpload": _UploadGone,
}


def _require_package() -> None:
    if importlib.util.find_spec("boto3") is None:
        raise StokerError("STK654", package="boto3")


def _connect(endpoint: str, patience: Patience) -> Any:
    from boto3.session import Session
    from botocore.config import Config

    config = Config(
        connect_timeout=patience.stall_seconds / 4,
        read_timeout=patience.stall_seconds,
        retries={"mode": "standard", "total_max_attempts": 1},
        signature_version="s3v4",
        # Checksum trailers are refused by many S3-compatible servers; our digests do their work.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return Session().client("s3", endpoint_url=endpoint or None, config=config)


def _parts(source: Path, part_bytes: int) -> Iterator[bytes]:
    with source.open("rb") as file:
        yield from iter(functools.partial(file.read, part_bytes), b"")


def _tag(source: Path, size: int, part_bytes: int) -> str:
    """What S3 calls a file's ETag: MD5, or MD5 over the parts' MD5 and their number."""
    digests = [hashlib.md5(content, usedforsecurity=False) for content in _parts(source, part_bytes)]
    if size <= part_bytes:
        return (digests[0] if digests else hashlib.md5(usedforsecurity=False)).hexdigest()
    whole = hashlib.md5(b"".join(one.digest() for one in digests), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(digests)}"


def _plain(tag: str) -> str:
    """An ETag without its quotes; some servers write it in capitals."""
    return tag.strip('"').lower()


def _code(error: Exception) -> str:
    """S3's own name of an error."""
    from botocore.exceptions import ClientError

    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _reason(error: BaseException) -> str:
    return env.without_secrets(f"{type(error).__name__}: {error}".splitlines()[0][:300])
