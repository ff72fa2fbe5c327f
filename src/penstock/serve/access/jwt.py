"""Tokens that somebody else signed: JWTs, proven by the public keys of a JWKS file.

Taken are RS256 to RS512, ES256 to ES512 and EdDSA, each only with a key of its own kind. `none` and
the algorithms with a shared secret are refused whatever the token says, and so is a key that is
for something else. `exp`, `iss`, `aud` and `sub` must be there; `nbf` counts where it is. The claim
`penstock` has the grants, as {"grants": [{"verbs": ["read"], "collections": ["orders"]}]}.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import structlog
from msgspec import Struct

from penstock.errors import ConfigError
from penstock.folders import stamp
from penstock.serve.access.book import LOOK_SECONDS
from penstock.serve.access.grants import grants_of
from penstock.serve.access.principals import Principal
from penstock.subscribe.scope import Scope
from penstock.telemetry import FILES_UNUSED

log = structlog.get_logger(__name__)

CLAIM: Final = "penstock"
SETTING: Final = "access.jwks"
LEEWAY_SECONDS: Final = 10
"""How far the clock of who signed may be off."""
_BYTES_MAX: Final = 16 << 10
_RSA_BITS_MIN: Final = 2048
_BY_KIND: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): ("RS256", "RS384", "RS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


_Key = tuple[Any, tuple[str, ...], str]
"""A key, the algorithms that it is for, and its thumbprint."""


class Keys:
    """The keys of a JWKS file, read again when it changes. Safe for any number of threads.

    One that cannot be read leaves the keys before in force, with a warning and a metric. One
    without a key that is of use lets nobody in: so everybody is shut out.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError if the file has no key that is of use, or PyJWT is not installed."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = clock()
        self._seen = stamp(path)
        self._failure = ""
        self._keys = read_keys(path)
        if not self._keys:
            raise _useless(path)
        FILES_UNUSED.labels(SETTING).set(0)

    def by_id(self, kid: str) -> tuple[_Key, ...]:
        """Keys, the algorithms that each is for, and what tells it from others of that id."""
        self._look()
        return self._keys.get(kid, ())

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at < LOOK_SECONDS:
            return
        with self._lock:
            self._looked_at = now
            seen = stamp(self._path)
            if seen == self._seen:
                return
            try:
                self._keys = read_keys(self._path)
            except ConfigError as error:
                # Looked at again all the same: who may read a file is no part of its stamp.
                if self._failure != str(error):
                    log.warning("the changed file of keys is not used", reason=str(error))
                self._failure = str(error)
                FILES_UNUSED.labels(SETTING).set(1)
                return
            if not self._keys:
                log.error("no JWT is taken", reason=str(_useless(self._path)))
            self._seen, self._failure = seen, ""
            FILES_UNUSED.labels(SETTING).set(0)


class Jwts:
    """Who a JWT is of."""

    def __init__(
        self, keys: Keys, *, issuer: str, audience: str, secret: Callable[[], bytes]
    ) -> None:
        """`secret` is that of scopes."""
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._secret = secret

    def principal(self, token: str) -> Principal | None:
        """Who `token` is of; None for one that is not valid, for whatever reason."""
        import jwt

        if len(token) > _BYTES_MAX:
            return None
        try:
            header = jwt.get_unverified_header(token)
            kid = header.get("kid")
            found = self._keys.by_id(kid) if isinstance(kid, str) else ()
            signed = self._signed_by(token, found)
            if signed is None:
                return None
            claims, thumbprint = signed
            name, grants = claims["sub"], grants_of(claims[CLAIM])
        # Anything at all may be in a token. What it was is told to nobody.
        except (
            *(jwt.PyJWTError, msgspec.MsgspecError, ValueError, TypeError, KeyError),
            *(OverflowError, RecursionError),
        ):
            return None
        if not name:
            return None
        return Principal(
            name=name,
            scope=Scope(grants, self._secret()),
            way="jwt",
            id=f"{kid}#{thumbprint}",
            # The same clock is off for who stays.
            expires_at=float(claims["exp"]) + LEEWAY_SECONDS,
        )

    def _signed_by(self, token: str, keys: Sequence[_Key]) -> tuple[dict[str, Any], str] | None:
        """The claims, by the first of these keys that signed them, and the thumbprint of that.
        Raises PyJWTError for what one of them signed, and is not valid."""
        import jwt

        for key, algorithms, thumbprint in keys:
            with suppress(jwt.InvalidSignatureError, jwt.InvalidAlgorithmError):
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=algorithms,
                    issuer=self._issuer,
                    audience=self._audience,
                    leeway=LEEWAY_SECONDS,
                    options={"require": ["exp", "iss", "aud", "sub"]},
                )
                return claims, thumbprint
        return None

    def holds(self, signed_by: str) -> bool:
        """Whether the key is still there: to take it out, or to put another in its place, revokes
        what it signed."""
        kid, _, thumbprint = signed_by.rpartition("#")
        return any(one[2] == thumbprint for one in self._keys.by_id(kid))


class _Written(Struct):
    """The members of a key set that count; RFC 7517 has all others ignored."""

    keys: list[Any]


def _useless(path: Path) -> ConfigError:
    return ConfigError(
        f"access.jwks: {path} has no key with an id that is for RS256 to RS512, ES256 to ES512 "
        f"or EdDSA. Nobody is let in by a JWT."
    )


def read_keys(path: Path) -> dict[str, tuple[_Key, ...]]:
    """The keys that are of use. Raises ConfigError for what is no key set."""
    try:
        import jwt
    except ImportError as error:
        raise ConfigError(
            f"access.jwks needs a package that is not installed ({error.name}). Nothing was "
            f"started. Install it: pip install 'penstock[jwt]'"
        ) from error
    try:
        written = msgspec.json.decode(path.read_bytes(), type=_Written)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        raise ConfigError(
            f"access.jwks: {path} cannot be read, or is no JSON Web Key Set. It is not used."
        ) from None
    keys: dict[str, tuple[_Key, ...]] = {}
    for found in written.keys:
        if not isinstance(found, dict):
            continue
        one = cast("dict[str, Any]", found)
        kid = one.get("kid")
        allowed = _BY_KIND.get((str(one.get("kty")), str(one.get("crv", ""))), ())
        if one.get("alg") is not None:
            allowed = tuple(name for name in allowed if name == one["alg"])
        if not isinstance(kid, str) or not allowed or one.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(one, algorithm=allowed[0]).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if getattr(key, "key_size", _RSA_BITS_MIN) < _RSA_BITS_MIN and one["kty"] == "RSA":
            continue
        parts = [one.get(name) for name in ("kty", "crv", "n", "e", "x", "y")]
        thumbprint = hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]
        keys[kid] = (*keys.get(kid, ()), (key, allowed, thumbprint))
    return keys
