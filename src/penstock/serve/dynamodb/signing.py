"""Whether a request was signed by who holds one of the keys: AWS Signature Version 4.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html. The
signature covers the method, the path, the query, the body and the headers that it names; the host
and the operation must be among them. Whoever reads the traffic could send a request once more for
as long as its date is accepted, five minutes: the protocol has no more to offer without TLS.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from penstock.serve.dynamodb.errors import WireError

SKEW_SECONDS_MAX: Final = 5 * 60
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_DATES: Final = frozenset({"x-amz-date", "date"})
_SIGNED: Final = frozenset({"host", "x-amz-target"})
_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=([^/, ]+)/([0-9]{8})/([^/, ]+)/([^/, ]+)/aws4_request, *"
    r"SignedHeaders=([a-z0-9;_-]+), *Signature=([0-9a-f]{64})"
)


class Sent(Struct, frozen=True, kw_only=True):
    """A request as it came."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """Names in lower case; the values of one that was sent twice are joined with a comma."""
    body: bytes


def key_of(sent: Sent) -> str | None:
    """The id of the key by which `sent` says that it was signed."""
    found = _AUTHORIZATION.fullmatch(sent.headers.get("authorization", "").strip())
    return None if found is None else found[1]


def verify(sent: Sent, keys: Mapping[str, str], *, now_ms: int) -> str:
    """The id of the key that signed `sent`, one of `keys`, which are secrets by their ids.

    Raises WireError where none did.
    """
    authorization = sent.headers.get("authorization", "").strip()
    if not authorization.startswith("AWS4-"):
        raise WireError(
            "MissingAuthenticationTokenException", "Request is missing Authentication Token"
        )
    found = _AUTHORIZATION.fullmatch(authorization)
    if found is None or not sent.headers.keys() & _DATES:
        raise _incomplete(sent, authorization)
    key, day, region, service, named, signature = found.groups()
    secret = keys.get(key)
    if secret is None:
        raise WireError(
            "UnrecognizedClientException", "The security token included in the request is invalid."
        )
    signed = named.split(";")
    moment = sent.headers.get("x-amz-date", "")
    if not _SIGNED.issubset(signed) or "x-amz-date" not in signed or service != "dynamodb":
        raise WireError(
            "IncompleteSignatureException",
            "The signature must be for the service dynamodb, and cover host, x-amz-date and "
            "x-amz-target.",
        )
    _refuse_date(moment, day, now_ms=now_ms)
    scope = f"{day}/{region}/{service}/aws4_request"
    canonical = hashlib.sha256(_canonical(sent, signed).encode()).hexdigest()
    wanted = hmac.new(
        _signing_key(secret, day, region, service),
        f"{_ALGORITHM}\n{moment}\n{scope}\n{canonical}".encode(),
        hashlib.sha256,
    ).hexdigest()
    if not hmac.compare_digest(wanted, signature):
        raise WireError(
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided. Check "
            "your AWS Secret Access Key and signing method. Consult the service documentation for "
            "details.",
        )
    return key


def _incomplete(sent: Sent, authorization: str) -> WireError:
    """What is said of an Authorization header that lacks a part, or has one that cannot be read."""
    given = set(re.findall(r"[ ,](\w+)=", authorization))
    missing = [
        f"Authorization header requires '{name}' parameter."
        for name in ("Credential", "Signature", "SignedHeaders")
        if name not in given
    ]
    if not sent.headers.keys() & _DATES:
        missing.append(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
        )
    told = " ".join(missing) or "Authorization header cannot be read."
    return WireError("IncompleteSignatureException", f"{told} Authorization={authorization}")


def _refuse_date(moment: str, day: str, *, now_ms: int) -> None:
    try:
        signed_at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        signed_at = None
    if signed_at is None or moment[:8] != day:
        raise WireError(
            "IncompleteSignatureException",
            "X-Amz-Date must be in ISO-8601 'basic format', and of the credential's date.",
        )
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    skew = timedelta(seconds=SKEW_SECONDS_MAX)
    if abs(signed_at - now) <= skew:
        return
    if signed_at < now:
        told = f"Signature expired: {moment} is now earlier than {_written(now - skew)}"
        told += f" ({_written(now)} - 5 min.)"
    else:
        told = f"Signature not yet current: {moment} is still later than {_written(now + skew)}"
        told += f" ({_written(now)} + 5 min.)"
    raise WireError("InvalidSignatureException", told)


def _written(moment: datetime) -> str:
    return f"{moment:%Y%m%dT%H%M%SZ}"


def _canonical(sent: Sent, signed: list[str]) -> str:
    headers = "".join(f"{name}:{_folded(sent.headers.get(name, ''))}\n" for name in signed)
    parameters = [pair.partition("=") for pair in sent.query.split("&")] if sent.query else []
    query = "&".join(sorted(f"{name}={value}" for name, _, value in parameters))
    digest = hashlib.sha256(sent.body).hexdigest()
    path = quote(sent.path, safe="/-_.~")
    return f"{sent.method}\n{path}\n{query}\n{headers}\n{';'.join(signed)}\n{digest}"


def _folded(value: str) -> str:
    return " ".join(value.split())


def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
