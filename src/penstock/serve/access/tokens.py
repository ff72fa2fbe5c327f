"""Tokens: random, shown once, kept as a hash. Pure, but for the randomness.

    pst_0123456789abcdef_x8Hc...      a prefix for scanners of secrets, an id, 256 random bits

The id says which line of the file it is, so that one hash is compared, in constant time. A secret
of 256 random bits cannot be guessed from its SHA-256, so nothing slower is needed.
"""

import hashlib
import hmac
import re
import secrets
from typing import Final, Literal

from msgspec import Struct

from penstock.serve.access.grants import WrittenGrant

PREFIX: Final = "pst_"
_TOKEN: Final = re.compile(r"pst_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NO_DIGEST: Final = hashlib.sha256(b"").hexdigest()

Kind = Literal["token", "certificate"]


class Record(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One who may connect, as the file has them. Times are Unix seconds."""

    id: str
    name: str
    kind: Kind = "token"
    digest: str = ""
    """SHA-256 of the token, in hex."""
    subject: str = ""
    """Of a certificate: its common name, or one of its alternative names."""
    grants: tuple[WrittenGrant, ...]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def is_valid(self, now: float) -> bool:
        """Whether it opens the door now."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


def new_token() -> tuple[str, str, str]:
    """A token that nobody ever had, its id, and its digest."""
    number = secrets.token_hex(8)
    token = f"{PREFIX}{number}_{secrets.token_urlsafe(32)}"
    return token, number, digest_of(token)


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def id_of(token: str) -> str | None:
    """The id within a token; None for what is none of ours."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else found[1]


def matches(token: str, record: Record | None) -> bool:
    """Whether `record` is of `token`. Takes as long where there is no record."""
    known = record is not None and record.kind == "token"
    digest = record.digest if record is not None and known else _NO_DIGEST
    return hmac.compare_digest(digest_of(token), digest) and known
