"""Why a store and we do not trust each other, told from what TLS says.

A store that refuses our certificate may say so only after the handshake (TLS 1.3), when we have
begun to write: then our write fails and the reason is lost. So a connection that broke off without
one is made once more, only to listen.
"""

import ssl
from pathlib import Path
from socket import create_connection
from typing import Final

from msgspec import Struct
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from penstock.errors import CheckpointUntrustedError

LISTEN_SECONDS_MAX: Final = 2.0
"""A refusal comes at once; a store that does not refuse us says nothing before it is asked."""

# X509_V_ERR_*, https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/
_UNTRUSTED: Final = {
    9: "it is not valid yet",
    10: "it has expired",
    62: "it is for another host name",
    64: "it is for another address",
}
_UNSIGNED: Final = "no certificate authority that we know has signed it"


class TlsFiles(Struct, frozen=True, kw_only=True):
    """What we go by and what we show, as PEM files."""

    ca: Path | None
    certificate: Path | None
    key: Path | None

    def context(self) -> ssl.SSLContext:
        """For connections to a store. Raises OSError, which SSLError is, for files of no use."""
        context = ssl.create_default_context(cafile=str(self.ca or DEFAULT_CA_BUNDLE_PATH))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


def untrusted(
    host: str, port: int, files: TlsFiles, *, timeout_seconds: float
) -> CheckpointUntrustedError | None:
    """Connect, and say why one of us does not trust the other; None if that is not what is wrong.

    Blocks for at most about twice `timeout_seconds`, which counts for each of connecting and
    listening. Nothing of what TLS says is quoted: it may name a host.
    """
    try:
        context = files.context()
    except OSError:
        return CheckpointUntrustedError(
            "a file that [checkpoint] ca, certificate or key names is not there, cannot be read, "
            "is no PEM file, or is not the other's pair"
        )
    seconds = min(timeout_seconds, LISTEN_SECONDS_MAX)
    try:
        with (
            create_connection((host, port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            secure.recv(1)
    except ssl.SSLCertVerificationError as error:
        why = _UNTRUSTED.get(error.verify_code, _UNSIGNED)
        return CheckpointUntrustedError(f"the store's certificate is not trusted: {why}")
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            shown = "we show none" if files.certificate is None else "it does not trust ours"
            return CheckpointUntrustedError(f"the store wants a certificate of us, and {shown}")
    except OSError:
        pass  # it does not answer at all, or waits to be asked, as it should
    return None
