"""What a client shows of itself, and whom it trusts: a token, certificates."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

from penstock.errors import ConfigError

TOKEN_VARIABLE: Final = "PENSTOCK_TOKEN"  # noqa: S105 - its name
CA_VARIABLE: Final = "PENSTOCK_TLS_CA"
CERTIFICATE_VARIABLE: Final = "PENSTOCK_TLS_CERTIFICATE"
KEY_VARIABLE: Final = "PENSTOCK_TLS_KEY"


class Credentials(Struct, frozen=True, kw_only=True):
    """What to show a service. Without `ca` nothing is encrypted.

    A token goes to another machine over TLS only: asked to do otherwise, a client raises
    ConfigError before it connects.
    """

    token: str = ""
    ca: bytes = b""
    """Certificates, PEM: the service's must be signed by one of them."""
    certificate: bytes = b""
    """Our own, for mutual TLS."""
    key: bytes = b""

    @classmethod
    def read(
        cls,
        *,
        token: str = "",
        token_file: Path | str | None = None,
        ca: Path | str | None = None,
        certificate: Path | str | None = None,
        key: Path | str | None = None,
    ) -> Self:
        """From files; what begins with -----BEGIN is taken for their text.

        Raises ConfigError if one cannot be read.
        """
        if token_file is not None:
            token = _text(Path(token_file), "the token").strip()
        if (certificate is None) is not (key is None):
            raise ConfigError("a certificate and its key belong together. Nothing was sent.")
        if certificate is not None and ca is None:
            raise ConfigError(
                "a certificate is shown over TLS only, and whom to trust is not said. Nothing was "
                "sent. Give the certificates that the service's is signed by (tls_ca)."
            )
        return cls(
            token=token,
            ca=_bytes(ca, "the certificates"),
            certificate=_bytes(certificate, "the certificate"),
            key=_bytes(key, "its key"),
        )

    @classmethod
    def from_environment(
        cls,
        *,
        token_file: Path | str | None = None,
        ca: Path | str | None = None,
        certificate: Path | str | None = None,
        key: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """PENSTOCK_TOKEN, PENSTOCK_TLS_CA, PENSTOCK_TLS_CERTIFICATE and PENSTOCK_TLS_KEY (the last
        three name files), where no file is given instead. A certificate that is given is not
        mixed with a key of the environment."""
        found = os.environ if environment is None else environment
        if certificate is None and key is None:
            certificate = found.get(CERTIFICATE_VARIABLE) or None
            key = found.get(KEY_VARIABLE) or None
        return cls.read(
            token="" if token_file is not None else found.get(TOKEN_VARIABLE, "").strip(),
            token_file=token_file,
            ca=ca or found.get(CA_VARIABLE) or None,
            certificate=certificate,
            key=key,
        )

    def __repr__(self) -> str:
        # The fields are secrets.
        return f"Credentials(token={bool(self.token)}, tls={bool(self.ca)})"

    @property
    def are_shown(self) -> bool:
        """Whether the service learns who we are."""
        return bool(self.token or self.certificate)

    def headers(self, target: str) -> list[tuple[str, str]]:
        """What goes with every call to `target`, "host:port". Raises ConfigError rather than send
        a token in the clear."""
        if not self.token:
            return []
        if not self.ca and not _is_near(target):
            raise ConfigError(
                f"a token would go to {target} unencrypted, where others could take it. Nothing "
                f"was sent. Give the certificates that the service's is signed by (tls_ca)."
            )
        if not self.token.isascii() or not self.token.isprintable():
            raise ConfigError("the token has characters that no token has. Nothing was sent.")
        return [("authorization", f"Bearer {self.token}")]


NOBODY: Final = Credentials()
"""Shows nothing, and encrypts nothing: for a service on loopback that asks nobody."""


def _is_near(target: str) -> bool:
    from ipaddress import ip_address

    host = target.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return target.startswith("unix:")


def _bytes(given: Path | str | None, what: str) -> bytes:
    if isinstance(given, str) and given.lstrip().startswith("-----BEGIN"):
        return given.encode()
    return b"" if given is None else _text(Path(given), what).encode()


def _text(path: Path, what: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise ConfigError(f"{what} cannot be read from {path}. Nothing was sent.") from None
