"""What a server's error is about. Pure."""

import os
import re
import socket
import ssl
from collections.abc import Iterator
from enum import Enum, auto
from errno import ECONNREFUSED
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")
"""The system's; those below 0 are of names, and come as errors of their own."""


class Outlook(Enum):
    """What can be done about it."""

    AWAY = auto()
    """It may pass."""
    REFUSED = auto()
    """Somebody must change the configuration, or the server's."""
    OTHER = auto()


class Cause(NamedTuple):
    """What happened, and the next step, as a sentence."""

    outlook: Outlook
    what: str
    remedy: str


def unreached(host: str, port: int, error: BaseException) -> Cause | None:
    """Why no connection to a server came about, as far as the system says so; None for a server
    that does not answer in time, or not as we expect.

    By the classes and numbers of `error` and of what it came from: a text may have a URL.
    """
    where = f"{host}:{port}"
    for one in _chain(error):
        if isinstance(one, socket.gaierror):
            return Cause(
                Outlook.AWAY,
                f"the host name {host} is not known ({one.strerror})",
                "Correct the host, or the name service of this machine.",
            )
        if isinstance(one, ssl.SSLError):
            return _no_tls(where, one)
        if not isinstance(one, OSError) or isinstance(one, TimeoutError) or one.filename:
            continue
        # asyncio says it of each address of a host, in one text.
        numbers = {one.errno} if one.errno else {int(told) for told in _NUMBER.findall(str(one))}
        if ECONNREFUSED in numbers:
            return Cause(
                Outlook.AWAY,
                f"nothing listens at {where} (connection refused)",
                "Start the server, or correct host and port.",
            )
        if numbers:
            why = ", ".join(sorted(os.strerror(number) for number in numbers))
            return Cause(
                Outlook.AWAY,
                f"{where} cannot be reached ({why})",
                "Correct host and port, or the network between.",
            )
    return None


def _no_tls(where: str, error: ssl.SSLError) -> Cause:
    """No retry mends it but one with other files: they are read each time, and are renewed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Cause(
            Outlook.AWAY,
            f"the certificate of {where} is not trusted ({error.verify_message})",
            "Correct the host to a name that the certificate has, or the certificate.",
        )
    return Cause(
        Outlook.AWAY,
        f"no TLS with the server at {where} ({error.reason})",
        "Correct the port, or whether TLS is asked for, or the server's certificate.",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it came from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        yield one
        seen.add(id(one))
        one = one.__cause__ or one.__context__
