"""A log and the index of its streams, as the operations see them."""

from copy import copy
from typing import Final

from msgspec import structs

from penstock.clocks import Clock, SystemClock
from penstock.serve.dynamodb.captured.facts import Stream, tail_of
from penstock.serve.dynamodb.captured.index import CapturedIndex, CapturedLog, Shown
from penstock.serve.dynamodb.config import CapturedConfig
from penstock.serve.dynamodb.errors import not_found, unavailable, validation
from penstock.serve.dynamodb.iterators import Minter, iterator_key
from penstock.serve.dynamodb.names import Names, is_stream_arn
from penstock.subscribe.scope import EVERYTHING, Scope, Verb

_CATCH_UP_SECONDS: Final = 1.0
_OLD_IMAGES: Final = frozenset({"OLD_IMAGE", "NEW_AND_OLD_IMAGES"})


class CapturedEndpoint:
    """What is captured, as it is seen over the protocol."""

    def __init__(
        self,
        log: CapturedLog,
        index: CapturedIndex,
        config: CapturedConfig,
        clock: Clock | None = None,
    ) -> None:
        self.log = log
        self.index = index
        self.config = config
        self.names = Names(config.region, config.account)
        self.minter = Minter(iterator_key(index.path), seconds=config.iterator_seconds)
        self._clock = clock or SystemClock()
        self._scope = EVERYTHING
        self._seen: tuple[Shown, Shown] | None = None

    @property
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._clock.wall_ms()

    def seen_by(self, scope: Scope) -> "CapturedEndpoint":
        """The same for who may not see everything: a table is there if all of its records are.

        That is, if no tenant and no field of it is kept back, and images before are shown wherever
        its stream has them. Any other is as if it were not there.
        """
        if scope.is_everything:
            return self
        found = copy(self)
        found._scope = scope
        found._seen = None
        return found

    def shown(self) -> Shown:
        """What the index shows; raises WireError while it is that of another log than is there."""
        shown = self._allowed(self.index.shown)
        if shown.log_id != self.log.bounds_now().log_id:
            raise unavailable("The log was replaced, and its streams are not known yet. Try again.")
        return shown

    def _allowed(self, shown: Shown) -> Shown:
        if self._scope.is_everything:
            return shown
        if self._seen is None or self._seen[0] is not shown:
            allowed = {
                number: stream
                for number, stream in shown.streams.items()
                if _is_seen(self._scope, stream)
            }
            self._seen = (shown, structs.replace(shown, streams=allowed))
        return self._seen[1]

    def catch_up(self) -> None:
        """Give the index a moment to come to the log's end; it may be far behind all the same."""
        self.index.wait(self.log.bounds_now().head, seconds=_CATCH_UP_SECONDS)

    def arn(self, stream: Stream) -> str:
        """The ARN of a stream."""
        return self.names.table_arn(tail_of(stream))

    def stream(self, shown: Shown, arn: str) -> Stream:
        """The stream with this ARN. Raises WireError."""
        if not is_stream_arn(arn):
            raise validation("Invalid StreamArn")
        prefix = self.names.table_arn("")
        found = shown.by_tail.get(arn.removeprefix(prefix)) if arn.startswith(prefix) else None
        if found is None:
            raise not_found(f"Stream: {arn} not found")
        return found


def _is_seen(scope: Scope, stream: Stream) -> bool:
    needed = {Verb.READ}
    if stream.view in _OLD_IMAGES:
        needed.add(Verb.BEFORE_IMAGES)
    verbs = set[Verb]()
    for grant in scope.grants:
        limited = grant.tenants or grant.hidden
        if not limited and grant.covers_collection(stream.name.source, stream.name.collection):
            verbs |= grant.verbs
    return needed <= verbs
