"""The door: who asks, whether they may come in, and whether they may stay.

Safe for any number of threads, but for `over`, which belongs to an event loop.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

import structlog
from msgspec import Struct

from penstock.errors import (
    PenstockError,
    RateLimitedError,
    UnauthenticatedError,
)
from penstock.serve.access import returning
from penstock.serve.access.actions import Need, refusal
from penstock.serve.access.book import Book
from penstock.serve.access.config import AccessConfig
from penstock.serve.access.grants import read
from penstock.serve.access.jwt import Jwts, Keys
from penstock.serve.access.limits import Places, Rates
from penstock.serve.access.principals import ANYONE, Presented, Principal
from penstock.serve.access.record import AccessLog
from penstock.serve.access.tickets import Tickets
from penstock.serve.access.tokens import PREFIX, Record, id_of, matches
from penstock.subscribe.scope import Scope

log = structlog.get_logger(__name__)

WATCH_SECONDS: Final = 1.0
"""How often it is asked whether somebody who streams may stay."""
_HEADER_BYTES_MAX: Final = 32 << 10


class Access:
    """Who may do what at one service."""

    def __init__(
        self,
        config: AccessConfig,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wall` is in Unix seconds, `clock` only moves forward. Raises ConfigError for files that
        cannot be read."""
        self.config = config
        self._wall = wall
        self._book = Book(config.tokens, clock=clock)
        self._jwts: Jwts | None = None
        if config.jwks is not None:
            keys = Keys(config.jwks, clock=clock)
            self._jwts = Jwts(
                keys,
                issuer=config.issuer,
                audience=config.audience,
                secret=lambda: self._book.secret,
            )
        self._tickets = Tickets(seconds=config.ticket_seconds, most=config.tickets_max, clock=clock)
        self._rates = Rates(config.requests_per_second, config.requests_burst, clock)
        refusals = config.refusals_per_second
        self._refusals = Rates(refusals, max(1, int(5 * refusals)), clock)
        self._places = Places(config.connections_max)
        self._waiting = Places(config.connections_max)
        self._subscriptions = Places(config.subscriptions_max)
        self._record = AccessLog(config.log, refusals_per_second=refusals, clock=clock)

    def close(self) -> None:
        """Let go of the file of the record."""
        self._record.close()

    @property
    def is_on(self) -> bool:
        """Whether anybody is asked who they are."""
        return self.config.is_on

    @property
    def is_guarded(self) -> bool:
        """Whether everybody must say who they are."""
        return not self.config.admits_strangers

    # --- coming in ------------------------------------------------------------------------------

    def authenticate(self, presented: Presented, endpoint: str) -> Principal:
        """Who brings what is `presented`, to ask for `endpoint`; and that is recorded.

        Raises UnauthenticatedError for whoever brings nothing that is valid, in one sentence for
        every reason, and RateLimitedError for who asks too often.
        """
        if not self.is_on:
            return ANYONE
        return self._admitted(self._known(presented), presented, endpoint)

    def refuse(self, presented: Presented, endpoint: str) -> None:
        """Record that a protocol's own proof was none. Raises RateLimitedError for who brings too
        many of them."""
        if self.is_on:
            with suppress(UnauthenticatedError):
                self._admitted(None, presented, endpoint)

    def of_key(self, key: str, presented: Presented, endpoint: str) -> Principal:
        """As `authenticate`, of a DynamoDB access key whose signature was right."""
        if not self.is_on:
            return ANYONE
        record = self._book.by_name(self.config.keys.get(key, ""))
        principal = self._of_record(record, "key") if record is not None else None
        return self._admitted(principal, presented, endpoint)

    def _admitted(
        self, principal: Principal | None, presented: Presented, endpoint: str
    ) -> Principal:
        """`principal`, if that is somebody, and not too often; recorded either way."""
        try:
            if principal is None:
                raise self._refusal(presented)
            self._rates.take(principal.who)
        except PenstockError as error:
            self._record.tell(principal, presented, endpoint, code=error.code)
            raise
        self._record.tell(principal, presented, endpoint)
        return principal

    def require(
        self, principal: Principal, needs: Need, presented: Presented, endpoint: str
    ) -> None:
        """Raises ForbiddenError, and records it, for who may not call what `needs` so much."""
        error = refusal(needs, principal.scope)
        if error is not None:
            self._record.tell(principal, presented, endpoint, code=error.code)
            raise error

    @property
    def visitors(self) -> int:
        """How many places are taken, by everybody who said who they are."""
        return self._places.taken

    @contextmanager
    def visiting(
        self, principal: Principal, presented: Presented, endpoint: str
    ) -> Generator[None]:
        """Hold one of the places of `principal` inside the block.

        Raises RateLimitedError, and records it, if there is none.
        """
        with self._held(self._places, principal, presented, endpoint):
            yield

    @contextmanager
    def subscribing(self, visitor: "Visitor") -> Generator[None]:
        """Hold one of the subscriptions of a visitor inside the block.

        Raises RateLimitedError, and records it, if there is none.
        """
        with self._held(
            self._subscriptions, visitor.principal, visitor.presented, visitor.endpoint
        ):
            yield

    @contextmanager
    def _held(
        self, places: Places, principal: Principal, presented: Presented, endpoint: str
    ) -> Generator[None]:
        if principal.way == "nobody":
            yield
            return
        try:
            places.enter(principal.who)
        except RateLimitedError as error:
            self._record.tell(principal, presented, endpoint, code=error.code)
            raise
        try:
            yield
        finally:
            places.leave(principal.who)

    @contextmanager
    def waiting(self, presented: Presented, endpoint: str) -> Generator[None]:
        """Hold one of the places of an address inside the block, for somebody of whom it is not
        known yet who they are; there are as many as one client has.

        Raises RateLimitedError, and records it, if there is none.
        """
        try:
            self._waiting.enter(presented.peer)
        except RateLimitedError as error:
            self._record.tell(None, presented, endpoint, code=error.code)
            raise
        try:
            yield
        finally:
            self._waiting.leave(presented.peer)

    def gone(self, presented: Presented, endpoint: str) -> None:
        """Record somebody who was let wait, and never said who they are."""
        self._record.tell(None, presented, endpoint, code=UnauthenticatedError.code)

    # --- staying --------------------------------------------------------------------------------

    def holds(self, principal: Principal) -> bool:
        """Whether `principal` may stay: not revoked, and not over."""
        if principal.way == "nobody":
            return True
        if principal.expires_at is not None and self._wall() >= principal.expires_at:
            return False
        if principal.way == "jwt":
            return self._jwts is not None and self._jwts.holds(principal.id)
        record = self._book.by_id(principal.id)
        return record is not None and record.is_valid(self._wall())

    def check(self, principal: Principal) -> None:
        """Raises UnauthenticatedError once `principal` may not stay."""
        if not self.holds(principal):
            raise UnauthenticatedError

    async def over(self, principal: Principal) -> None:
        """Wait until `principal` may not stay any more, which is seen within two seconds."""
        if principal.way == "nobody":
            await asyncio.Event().wait()
        while self.holds(principal):  # noqa: ASYNC110 - a file and a clock signal nobody
            await asyncio.sleep(WATCH_SECONDS)

    # --- browsers -------------------------------------------------------------------------------

    def ticket(self, principal: Principal) -> tuple[str, float]:
        """A one-time ticket of `principal`, and for how many seconds it may be used.

        Raises RateLimitedError while too many are unused.
        """
        mark = returning.mark_of(principal, self._book.secret)
        return self._tickets.give(principal, mark), self._tickets.seconds

    def cookie(self, principal: Principal) -> str | None:
        """With what a stream of `principal` that a ticket opened may come back; None if it may
        not."""
        seconds = self.config.reconnect_seconds
        if not seconds or principal.way == "nobody":
            return None
        return returning.signed(principal, self._book.secret, until=self._wall() + seconds)

    def allows_origin(self, origin: str | None) -> bool:
        """Whether a page of `origin` may connect. What is no browser sends none."""
        return origin is None or origin in self.config.origins

    # --- deciding -------------------------------------------------------------------------------

    def _known(self, presented: Presented) -> Principal | None:
        if presented.authorization is not None:
            return self._bearer(presented.authorization)
        if presented.ticket is not None:
            found = self._tickets.use(presented.ticket)
            if found is None and presented.cookie is not None:
                found = self._returning(presented.ticket, presented.cookie)
            return found if found is not None and self.holds(found) else None
        for name in presented.certificate:
            record = self._book.by_subject(name)
            if record is not None:
                return self._of_record(record, "certificate")
        return None if self.config.required else ANYONE

    def _bearer(self, header: str) -> Principal | None:
        scheme, _, token = header.partition(" ")
        token = token.strip(" ")
        if scheme.lower() != "bearer" or not token.isascii() or len(token) > _HEADER_BYTES_MAX:
            return None
        if not token.startswith(PREFIX):
            return None if self._jwts is None else self._jwts.principal(token)
        number = id_of(token)
        record = None if number is None else self._book.by_id(number)
        return self._of_record(record, "token") if matches(token, record) else None

    def _of_record(self, record: Record | None, way: str) -> Principal | None:
        if record is None or not record.is_valid(self._wall()):
            return None
        with suppress(ValueError):
            return Principal(
                name=record.name,
                scope=Scope(read(record.grants), self._book.secret),
                way=way,  # type: ignore[arg-type]
                id=record.id,
                expires_at=record.expires_at,
            )
        log.error("a token's grants cannot be read; it lets nobody in", credential=record.id)
        return None

    def _returning(self, ticket: str, cookie: str) -> Principal | None:
        """Who comes back with the cookie of a ticket that was used."""
        said = returning.read(cookie, self._book.secret, now=self._wall())
        if said is None:
            return None
        if said.way == "jwt":
            found: Principal | None = Principal(
                name=said.name,
                scope=Scope(read(said.grants), self._book.secret),
                way="jwt",
                id=said.id,
                expires_at=said.expires_at,
            )
        else:
            found = self._of_record(self._book.by_id(said.id), said.way)
        if found is None or ticket[: returning.MARK_LENGTH] != returning.mark_of(
            found, self._book.secret
        ):
            return None
        return found

    def _refusal(self, presented: Presented) -> PenstockError:
        """The answer to who is not known: the same for all, until there are too many of them."""
        try:
            self._refusals.take(presented.peer)
        except RateLimitedError as error:
            return error
        return UnauthenticatedError()


class Visitor(Struct, frozen=True, kw_only=True, eq=False):
    """Somebody who was let in, and for what."""

    access: Access
    principal: Principal
    presented: Presented
    endpoint: str

    @contextmanager
    def subscribing(self) -> Generator[None]:
        """As `Access.subscribing`."""
        with self.access.subscribing(self):
            yield


_VISITOR: ContextVar[Visitor | None] = ContextVar("penstock_visitor", default=None)


def receive(visitor: Visitor) -> None:
    """From now on this task, and those that it begins, answer `visitor`."""
    _VISITOR.set(visitor)


def visitor() -> Visitor | None:
    """Whom this task answers; None where nobody is asked."""
    return _VISITOR.get()


def names_of(certificate: Sequence[str]) -> tuple[str, ...]:
    """The names of a certificate, each once, without empty ones."""
    return tuple(dict.fromkeys(name for name in certificate if name))
