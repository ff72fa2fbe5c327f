"""The door of Flight: the header `authorization`, or the certificate of mutual TLS.

Middleware only keeps what came; each method asks `Access`, on the thread that answers it.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow.flight as fl

from penstock.serve.access.config import TlsConfig
from penstock.serve.access.door import names_of
from penstock.serve.access.principals import Presented
from penstock.serve.access.tls import contents, http_context

MIDDLEWARE: Final = "penstock-access"


class _Came(fl.ServerMiddleware):
    def __init__(self, authorization: str | None) -> None:
        self.authorization = authorization


class Headers(fl.ServerMiddlewareFactory):
    """Keeps the header of a call."""

    def start_call(
        self,
        info: fl.CallInfo,  # noqa: ARG002
        headers: Mapping[str, Sequence[str | bytes]],
    ) -> fl.ServerMiddleware:
        """What `presented_by` reads."""
        found = [
            one for name, values in headers.items() if name == "authorization" for one in values
        ]
        header = found[0] if len(found) == 1 else "" if found else None
        return _Came(header if header is None or isinstance(header, str) else "")


def presented_by(context: fl.ServerCallContext, address: str) -> Presented:
    """What came with a call from an address."""
    came: Any = context.get_middleware(MIDDLEWARE)
    identity: Any = context.peer_identity()
    name = identity.decode(errors="replace") if isinstance(identity, bytes) else str(identity or "")
    return Presented(
        authorization=None if came is None else came.authorization,
        certificate=names_of([name]),
        peer=address,
    )


def server_arguments(tls: TlsConfig | None) -> dict[str, Any]:
    """What `FlightServerBase` needs for TLS. Raises ConfigError if the files cannot be used."""
    if tls is None:
        return {}
    http_context(tls)
    found: dict[str, Any] = {
        "tls_certificates": [(contents(tls.certificate), contents(tls.key))],
        "verify_client": tls.require_client_certificate,
    }
    if tls.client_ca is not None:
        found["root_certificates"] = contents(tls.client_ca)
    return found
