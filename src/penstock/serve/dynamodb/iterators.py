"""Shard iterators: where a reader of a shard stands, as text that only servers of one place make.

An iterator is a stream's ARN, a version, and what it stands for, with a digest under a key that
lies beside the store's files, or the log's. So it survives a restart, is no good at a copy, and
expires some minutes after it was made. The oldest record is looked for when the iterator is used:
retention may go on meanwhile.
"""

import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.serve.dynamodb.errors import WireError, validation

KEY_NAME: Final = "dynamodb.key"
_DIGEST_BYTES: Final = 16
_VERSION: Final = "1"


class Iterator(Struct, frozen=True, array_like=True):
    """Where a reader stands."""

    stream: str
    """Our own name of the stream."""
    shard: int
    minted_ms: int
    after: int | None = None
    """The sequence behind which it reads; None: wherever the shard begins by then."""
    check: int | None = None
    """Of the record there, if it was read."""
    since: int | None = None
    """Nothing of before this second is wanted, until the first record that is."""
    life: str = ""
    """Who wrote the record there, or what stood there; of a store."""
    shard_id: str = ""
    """Of the shard, which names the history behind which it begins; empty: an older Penstock's."""


class Minter:
    """Makes iterators, and reads those that it made."""

    def __init__(self, key: bytes, *, seconds: float) -> None:
        self._key = key
        self._seconds = seconds

    def mint(self, arn: str, iterator: Iterator) -> str:
        """The text of an iterator of the stream with this ARN."""
        body = _encoder.encode(iterator)
        sealed = urlsafe_b64encode(self._digest(arn, body) + body).decode()
        return f"{arn}|{_VERSION}|{sealed}"

    def read(self, text: str, *, now_ms: int) -> tuple[str, Iterator]:
        """The stream's ARN, and the iterator. Raises WireError for a forged or an expired one."""
        arn, _, rest = text.partition("|")
        version, _, sealed = rest.partition("|")
        try:
            data = urlsafe_b64decode(sealed.encode("ascii"))
        except ValueError:
            raise _invalid() from None
        digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if version != _VERSION or not hmac.compare_digest(digest, self._digest(arn, body)):
            raise _invalid()
        iterator = _decoder.decode(body)
        if now_ms - iterator.minted_ms > self._seconds * 1000:
            raise WireError(
                "ExpiredIteratorException",
                f"Iterator expired. The iterator was created at time {iterator.minted_ms} while "
                f"right now it is {now_ms}, which is further in the future than the tolerated "
                f"delay of {round(self._seconds * 1000)} milliseconds.",
            )
        return arn, iterator

    def _digest(self, arn: str, body: bytes) -> bytes:
        return hmac.digest(self._key, arn.encode() + b"\x00" + body, hashlib.sha256)[:_DIGEST_BYTES]


def iterator_key(folder: Path) -> bytes:
    """The key in a folder, made at the first use; only its owner may read it."""
    path = folder / KEY_NAME
    if not path.exists():
        made = folder / f".{KEY_NAME}.{os.getpid()}"
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, os.urandom(32))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        made.rename(path)
    return path.read_bytes()


def _invalid() -> WireError:
    return validation("Invalid ShardIterator")


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Iterator)
