"""How a browser's EventSource comes back by itself: with a cookie that its ticket's first use set.

EventSource connects again with the same address, whose ticket is used up, and no script can give it
another. So a stream that was opened with a ticket sets a cookie: HttpOnly, SameSite=Strict, for
paths below /rest, signed, and over with its token or after a while. A ticket begins with a mark of
whose it is, and the cookie of that mark opens streams of events whose address has such a ticket,
and nothing else. An address that somebody saw opens nothing without the cookie; a page of another
site cannot make a browser send it, and one of no allowed origin cannot use it.

Nothing is kept here, so it also opens the service after a restart, if there is a file of tokens.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

import msgspec
from msgspec import Struct

from penstock.serve.access.grants import WrittenGrant, written
from penstock.serve.access.principals import Principal, Way

MARK_LENGTH: Final = 8
_BYTES_MAX: Final = 3_500
"""Browsers keep cookies of 4096 bytes."""


class Return(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose stream may come back. Times are Unix seconds."""

    way: Way
    id: str
    name: str
    until: float
    expires_at: float | None = None
    grants: tuple[WrittenGrant, ...] = ()
    """Of a JWT, which is not kept; those of the others are looked up."""


def mark_of(principal: Principal, secret: bytes) -> str:
    """What tickets of `principal` begin with: it tells nobody else whose they are."""
    said = msgspec.json.encode([principal.way, principal.id, principal.name])
    return hmac.new(_key(secret), said, hashlib.sha256).hexdigest()[:MARK_LENGTH]


def cookie_name(ticket: str) -> str:
    """The cookie that goes with a ticket."""
    return f"penstock_{ticket[:MARK_LENGTH]}"


def signed(principal: Principal, secret: bytes, *, until: float) -> str | None:
    """The cookie's value; None for who has too many grants for one."""
    grants = tuple(map(written, principal.scope.grants)) if principal.way == "jwt" else ()
    said = msgspec.json.encode(
        Return(
            way=principal.way,
            id=principal.id,
            name=principal.name,
            until=until,
            expires_at=principal.expires_at,
            grants=grants,
        )
    )
    text = base64.urlsafe_b64encode(hmac.digest(_key(secret), said, "sha256") + said).decode()
    return text if len(text) <= _BYTES_MAX else None


def read(cookie: str, secret: bytes, *, now: float) -> Return | None:
    """What a cookie says; None for one that we did not sign, or that is over."""
    try:
        both = base64.b64decode(cookie.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None
    proof, said = both[:32], both[32:]
    if not hmac.compare_digest(proof, hmac.digest(_key(secret), said, "sha256")):
        return None
    found = msgspec.json.decode(said, type=Return)
    return found if now < found.until else None


def _key(secret: bytes) -> bytes:
    # The same secret also stands behind hidden keys.
    return hmac.digest(secret, b"penstock: streams that come back", "sha256")
