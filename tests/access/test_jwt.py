"""Tokens that somebody else signed."""

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from structlog.testing import capture_logs

from penstock.errors import ConfigError, UnauthenticatedError
from penstock.serve.access import Access, AccessConfig, Presented, Principal
from penstock.serve.access.jwt import LEEWAY_SECONDS
from penstock.subscribe.scope import Verb
from penstock.telemetry import SERVE_REGISTRY
from tests.access.support import Clock

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
GRANTS = {"grants": [{"verbs": ["read"], "collections": ["orders"], "hidden": ["ssn"]}]}


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    algorithm: Any = OKPAlgorithm
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = RSAAlgorithm
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, **more}


def claims(**more: Any) -> dict[str, Any]:
    said = {
        "sub": "app",
        "iss": "https://issuer.example",
        "aud": "penstock",
        "exp": time.time() + 60,
        "penstock": GRANTS,
    } | more
    return {name: value for name, value in said.items() if value is not None}


def signed(key: Any = RSA, algorithm: str = "RS256", kid: Any = "rsa", **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    found = [jwk(RSA, "rsa"), jwk(EC, "ec"), jwk(ED, "ed")]
    found.append({"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXM"})
    path.write_text(json.dumps({"keys": found}))
    return path


@pytest.fixture
def access(keys: Path) -> Access:
    return Access(_config(keys))


def _config(keys: Path) -> AccessConfig:
    return AccessConfig(
        jwks=keys, issuer="https://issuer.example", audience="penstock", refusals_per_second=1e6
    )


def known(access: Access, token: str) -> Principal:
    return access.authenticate(Presented(authorization=f"Bearer {token}"), "test")


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA, "RS256", "rsa"), (RSA, "RS512", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")],
)
def test_a_jwt_of_a_known_key_says_who_and_what(
    access: Access, key: Any, algorithm: str, kid: str
) -> None:
    found = known(access, signed(key, algorithm, kid, nbf=time.time() - 1))
    assert (found.name, found.way) == ("app", "jwt")
    (grant,) = found.scope.grants
    assert grant.verbs == {Verb.READ}
    assert grant.collections == {"orders"}
    assert grant.hidden == {"ssn"}


def _public(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _by_hand(header: dict[str, Any], said: dict[str, Any], secret: bytes | None) -> str:
    """A JWT that no library would sign."""
    import hmac

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    text = f"{part(json.dumps(header).encode())}.{part(json.dumps(said).encode())}"
    if secret is None:
        return f"{text}."
    return f"{text}.{part(hmac.digest(secret, text.encode(), 'sha256'))}"


BAD: dict[str, Callable[[], str]] = {
    "alg none": lambda: _by_hand({"alg": "none", "kid": "rsa"}, claims(), None),
    "alg none, otherwise spelt": lambda: _by_hand({"alg": "NoNe", "kid": "rsa"}, claims(), b"x"),
    "HS256 by the public key": lambda: _by_hand(
        {"alg": "HS256", "kid": "rsa"}, claims(), _public(RSA)
    ),
    "HS256 by a shared key of the file": lambda: _by_hand(
        {"alg": "HS256", "kid": "shared"}, claims(), b"secret-secret-secret-secret-s"
    ),
    "another algorithm than the key's": lambda: _by_hand(
        {"alg": "ES256", "kid": "rsa"}, claims(), b"x"
    ),
    "PS256": lambda: signed(RSA, "PS256"),
    "unknown kid": lambda: signed(kid="other"),
    "no kid": lambda: signed(kid=None),
    "a key's kid, another key": lambda: signed(rsa.generate_private_key(65537, 2048)),
    "wrong issuer": lambda: signed(iss="https://other.example"),
    "no issuer": lambda: signed(iss=None),
    "wrong audience": lambda: signed(aud="other"),
    "no audience": lambda: signed(aud=None),
    "over": lambda: signed(exp=time.time() - 60),
    "never over": lambda: signed(exp=None),
    "not yet": lambda: signed(nbf=time.time() + 60),
    "nobody": lambda: signed(sub=None),
    "an empty name": lambda: signed(sub=""),
    "no grants": lambda: signed(penstock=None),
    "an empty list of grants": lambda: signed(penstock={"grants": []}),
    "an unknown verb": lambda: signed(penstock={"grants": [{"verbs": ["write"]}]}),
    "a limit that is misspelt": lambda: signed(penstock={"grants": [{"collection": ["a"]}]}),
    "an empty name in a limit": lambda: signed(penstock={"grants": [{"collections": [""]}]}),
    "a field that cannot be hidden": lambda: signed(penstock={"grants": [{"hidden": ["a.0"]}]}),
    "grants as text": lambda: signed(penstock="read"),
    "far too long": lambda: signed(more="x" * 20_000),
    "key within": lambda: jwt.encode(
        claims(), ED, "EdDSA", headers={"kid": "x", "jwk": jwk(ED, "x"), "jku": "https://x"}
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_jwt_that_is_not_right_in_everything_is_refused(access: Access, what: str) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        known(access, BAD[what]())
    assert str(caught.value) == str(UnauthenticatedError())


def test_who_came_with_a_jwt_stays_until_it_is_over_or_its_key_is_gone(keys: Path) -> None:
    wall, clock = Clock(time.time()), Clock()
    access = Access(_config(keys), wall=wall, clock=clock)
    found = known(access, signed())
    assert access.holds(found)
    wall.now += 71
    assert not access.holds(found)
    wall.now -= 71
    keys.write_text(json.dumps({"keys": [jwk(EC, "ec")]}))
    clock.now += 1
    assert not access.holds(found)
    assert known(access, signed(EC, "ES256", "ec")).name == "app"
    keys.write_text('{"keys": []}')
    clock.now += 1
    with pytest.raises(UnauthenticatedError):
        known(access, signed(EC, "ES256", "ec"))


@pytest.mark.parametrize(
    "written", ["", "not a key set", "[]", '{"keys": {}}', "{}", '{"keys": [', None]
)
def test_a_changed_file_that_cannot_be_read_leaves_the_keys_before_in_force(
    keys: Path, written: str | None
) -> None:
    clock = Clock()
    access = Access(_config(keys), clock=clock)
    found, before = known(access, signed()), keys.read_text()
    with capture_logs() as lines:
        keys.unlink()
        if written is not None:
            keys.write_text(written)
        for _ in range(3):
            clock.now += 1
            assert access.holds(found)
            assert known(access, signed()).name == "app"
    (warned,) = [one for one in lines if one["log_level"] == "warning"]
    assert "jwks.json" in warned["reason"]
    assert _unused() == 1
    keys.write_text(before)
    clock.now += 1
    assert access.holds(found)
    assert _unused() == 0


def test_members_and_keys_that_are_not_understood_are_ignored(keys: Path) -> None:
    clock = Clock()
    found = [*json.loads(keys.read_text())["keys"], {"kty": "new", "kid": ["rsa"]}, "rsa", None, 7]
    more: dict[str, Any] = {
        "spiffe_sequence": 7,
        "spiffe_refresh_hint": 300,
        "x": {"keys": []},
        "y": None,
    }
    access = Access(_config(keys), clock=clock)
    keys.write_text(json.dumps({**more, "keys": found}))
    clock.now += 1
    assert known(access, signed()).name == "app"
    assert known(Access(_config(keys)), signed()).name == "app", "and from the start"


def test_two_keys_of_one_id_are_both_taken_and_each_ends_by_itself(keys: Path) -> None:
    """Of one kind, as while a key is exchanged, and of two."""
    clock, other = Clock(), rsa.generate_private_key(65537, 2048)
    ways = ((RSA, "RS256"), (other, "RS256"), (EC, "ES256"))
    written = [jwk(key, "a") for key, _ in ways]
    keys.write_text(json.dumps({"keys": written}))
    access = Access(_config(keys), clock=clock)
    found = [known(access, signed(key, algorithm, "a")) for key, algorithm in ways]
    assert all(map(access.holds, found))
    keys.write_text(json.dumps({"keys": written[1:]}))
    clock.now += 1
    assert [access.holds(one) for one in found] == [False, True, True]
    with pytest.raises(UnauthenticatedError):
        known(access, signed(RSA, "RS256", "a"))
    stranger = rsa.generate_private_key(65537, 2048)
    with pytest.raises(UnauthenticatedError):
        known(access, signed(stranger, "RS256", "a"))


def test_a_jwt_is_as_good_for_staying_as_for_coming_in(keys: Path) -> None:
    """Else a stream is let in, and cut, where a call is answered 401."""
    wall = Clock(time.time())
    access = Access(_config(keys), wall=wall)
    late = known(access, signed(exp=time.time() - LEEWAY_SECONDS / 2))
    assert access.holds(late)
    wall.now += LEEWAY_SECONDS
    assert not access.holds(late)
    with pytest.raises(UnauthenticatedError):
        known(access, signed(exp=time.time() - LEEWAY_SECONDS - 1))


def _unused() -> float | None:
    return SERVE_REGISTRY.get_sample_value("penstock_files_unused", {"setting": "access.jwks"})


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{}",
        '{"keys": []}',
        json.dumps({"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}]}),
        json.dumps({"keys": [jwk(RSA, "a", use="enc")]}),
        json.dumps({"keys": [jwk(RSA, "a", alg="PS256")]}),
        json.dumps({"keys": [jwk(rsa.generate_private_key(65537, 1024), "a")]}),
    ],
)
def test_a_file_without_a_key_of_use_starts_nothing(tmp_path: Path, written: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(written)
    with pytest.raises(ConfigError, match=r"access\.jwks"):
        Access(_config(path))


def test_a_jwt_is_bound_to_who_made_it_and_for_whom(keys: Path) -> None:
    with pytest.raises(ValueError, match="issuer and audience"):
        AccessConfig(jwks=keys, issuer="x")


def test_a_key_that_is_exchanged_under_its_name_ends_who_came_with_the_old_one(keys: Path) -> None:
    clock = Clock()
    access = Access(_config(keys), clock=clock)
    principal = known(access, signed())
    assert access.holds(principal)
    other = rsa.generate_private_key(65537, 2048)
    keys.write_text(json.dumps({"keys": [jwk(other, "rsa")]}))
    clock.now += 1
    assert not access.holds(principal)
