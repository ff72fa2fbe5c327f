"""Certificates, for each of the servers; read again without a restart where the server can.

gRPC reads the files at each handshake that finds them changed, HTTP when it is told to. Flight has
no way to: a new certificate holds there after a restart.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import ConfigError
from penstock.serve.access.config import TlsConfig
from penstock.telemetry import FILES_UNUSED

log = structlog.get_logger(__name__)

_ADVICE: Final = "Nothing was started. Look at certificate, key and client_ca under [serve.tls]."


def contents(path: Path) -> bytes:
    """A file of [serve.tls]. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. {_ADVICE}") from None


def http_context(tls: TlsConfig) -> ssl.SSLContext:
    """TLS 1.2 and above, with a client's certificate if `tls` wants one. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_into(context, tls)
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=contents(tls.client_ca).decode("ascii"))
        except (ssl.SSLError, UnicodeError):
            raise ConfigError(f"{tls.client_ca} holds no certificates. {_ADVICE}") from None
    return context


def load_into(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Show the certificate that the files hold. Raises ConfigError, with nothing changed."""
    try:
        # Tried out first: one whose key is of another must not take the place of one that works.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            tls.certificate, tls.key, _no_password
        )
        context.load_cert_chain(tls.certificate, tls.key, _no_password)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the key is encrypted"
        raise ConfigError(
            f"the certificate {tls.certificate} and its key {tls.key} cannot be used: "
            f"{reason or type(error).__name__}. {_ADVICE}"
        ) from None


def _no_password() -> str:
    # Else a key that is encrypted would be asked for on the terminal.
    raise ValueError("the key is encrypted")


def grpc_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Credentials that follow the files. Raises ConfigError if they cannot be used now."""
    http_context(tls)
    seen = _read(tls)
    untyped: Any = grpc

    def configuration(found: tuple[bytes, bytes, bytes | None]) -> Any:
        certificate, key, roots = found
        return untyped.ssl_server_certificate_configuration([(key, certificate)], roots)

    def fetch() -> Any:
        nonlocal seen
        try:
            found = _read(tls)
            if found == seen:
                return None
            http_context(tls)
        except ConfigError as error:
            FILES_UNUSED.labels("serve.tls").set(1)
            log.error("the changed certificate is not used", reason=str(error))  # noqa: TRY400
            return None
        seen = found
        FILES_UNUSED.labels("serve.tls").set(0)
        return configuration(found)

    made: grpc.ServerCredentials = untyped.dynamic_ssl_server_credentials(
        configuration(seen), fetch, require_client_authentication=tls.require_client_certificate
    )
    return made


def _read(tls: TlsConfig) -> tuple[bytes, bytes, bytes | None]:
    roots = None if tls.client_ca is None else contents(tls.client_ca)
    return contents(tls.certificate), contents(tls.key), roots


class Proven(H11Protocol):
    """HTTP of one connection, which knows the names of its client's certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        proven = transport.get_extra_info("peercert")
        if proven:
            # A socket that takes the connection over gets it too.
            self.app_state = {**self.app_state, "client_certificate": _names(proven)}


def _names(proven: dict[str, Any]) -> list[str]:
    """Common names and alternative names, as `ssl.SSLSocket.getpeercert` has them."""
    subject = [pair for part in proven.get("subject", ()) for pair in part]
    common = [str(value) for name, value in subject if name == "commonName"]
    return common + [str(value) for _, value in proven.get("subjectAltName", ())]
