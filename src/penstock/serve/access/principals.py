"""Who somebody is, and what they bring to say so."""

from typing import Final, Literal

from msgspec import Struct

from penstock.subscribe.scope import EVERYTHING, Scope

Way = Literal["nobody", "token", "jwt", "certificate", "key"]


class Presented(Struct, frozen=True, kw_only=True):
    """What came with a request. The first that is there counts; the others are not looked at."""

    authorization: str | None = None
    """The header, as it came."""
    ticket: str | None = None
    cookie: str | None = None
    """Of a stream that a ticket opened before, and that comes back."""
    certificate: tuple[str, ...] = ()
    """The names of the certificate that TLS proved: common name and alternative names."""
    peer: str = ""
    """The address, for limits and the record; without a port."""

    def __repr__(self) -> str:
        # The others are secrets.
        return f"Presented(peer={self.peer!r})"


class Principal(Struct, frozen=True, kw_only=True):
    """Somebody known."""

    name: str
    scope: Scope
    way: Way
    id: str = ""
    """Of the line in the file; of a JWT, the id of the key that signed it."""
    expires_at: float | None = None
    """Unix seconds."""

    @property
    def who(self) -> str:
        """For limits and the record: one word for one client."""
        return f"{self.way}:{self.name}"


NOT_YET: Final = Principal(name="", scope=Scope(()), way="nobody")
"""Who has not said who they are, and still may: sees nothing."""
ANYONE: Final = Principal(name="", scope=EVERYTHING, way="nobody")
"""Whoever asks a service that asks nobody who they are."""
