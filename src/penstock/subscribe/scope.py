"""What somebody may see of the log. Pure.

Whoever connects is a principal, and has a scope: the sum of its grants. Every transport asks here,
so all of them show the same. What a scope does not allow looks as if it were not there.

A grant that hides fields never covers dead letters, whose rows hold the bytes of any collection:
those need a grant that hides nothing, or one that names the collection.
"""

import re
from enum import StrEnum
from typing import Final

from msgspec import Struct

from penstock.wire import Mask, Stream, plain_path

DEAD_LETTERS: Final = "penstock_dead_letters"
"""The collection of what could not be decoded: see `capture.deadletter`."""


class Verb(StrEnum):
    """What a grant allows."""

    READ = "read"
    """Changes of data and their documents, and the current rows."""
    BEFORE_IMAGES = "before-images"
    """What documents were before; of what may be read."""
    SCHEMA = "schema"
    """Changes of shape, and what Penstock says of a source."""
    ADMIN = "admin"
    """Operating the service: status, metrics, pausing; and the text of statements, which may hold
    values of any table."""


class Grant(Struct, frozen=True, kw_only=True):
    """Some verbs, on some streams. An empty set of names is all of them.

    Raises ValueError for a hidden field that could not be hidden everywhere: one with an empty
    step, a `$`, or a number behind its first step, which in an update is a place in an array.
    """

    verbs: frozenset[Verb] = frozenset({Verb.READ})
    sources: frozenset[str] = frozenset()
    tenants: frozenset[str] = frozenset()
    collections: frozenset[str] = frozenset()
    """Names as "collection" or "source/collection"."""
    hidden: frozenset[str] = frozenset()
    """Fields that are left out of documents, keys and updates, by name; dots lead inside, also
    into the elements of arrays."""

    def __post_init__(self) -> None:
        for name in self.hidden:
            first, *rest = name.split(".")
            if not first or "\\" in name or any(not _STEP.fullmatch(step) for step in rest):
                raise ValueError(
                    f"{name!r} cannot be hidden: write the names that lead to a field with dots "
                    f"between them, as address.street; none but the first may be a number"
                )
            if first.startswith("$"):
                raise ValueError(f"{name!r} cannot be hidden: no field's name begins with $")

    @property
    def is_limited(self) -> bool:
        """Whether it is on some streams only."""
        return bool(self.sources or self.tenants or self.collections)

    def covers(self, stream: Stream) -> bool:
        """Whether it is about `stream`. One without a collection is about a whole source, and is
        covered by whoever may see something of it."""
        if self.sources and stream.source not in self.sources:
            return False
        if not stream.collection:
            return self._may_cover(stream)
        if self.tenants and stream.tenant not in self.tenants:
            return False
        return self.covers_collection(stream.source, stream.collection)

    def covers_collection(self, source: str, collection: str) -> bool:
        """Whether it is about a collection, as far as that can be said for all tenants at once."""
        if self.sources and source not in self.sources:
            return False
        if not self.collections:
            return collection != DEAD_LETTERS or not self.hidden
        return collection in self.collections or f"{source}/{collection}" in self.collections

    def covers_source(self, source: str) -> bool:
        """Whether it is about something of a source, perhaps."""
        if self.sources and source not in self.sources:
            return False
        return not self.collections or any(
            "/" not in name or name.startswith(f"{source}/") for name in self.collections
        )

    def _may_cover(self, stream: Stream) -> bool:
        if self.tenants and stream.database and stream.tenant not in self.tenants:
            return False
        return self.covers_source(stream.source)


class Scope(Struct, frozen=True):
    """The grants of one principal."""

    grants: tuple[Grant, ...]
    secret: bytes = b""
    """By which keys are replaced that have a hidden field; the same for the whole service."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing at all is kept from its principal."""
        return any(
            grant.verbs >= _ALL and not grant.is_limited and not grant.hidden
            for grant in self.grants
        )

    def shows_all_of(self, source: str) -> bool:
        """Whether nothing of a source is kept from its principal: then its commits prove it."""
        return source in self.whole_sources or self.is_everything

    @property
    def whole_sources(self) -> frozenset[str]:
        """The sources, named by grants, of which nothing is kept from its principal."""
        return frozenset[str]().union(
            *(
                grant.sources
                for grant in self.grants
                if grant.verbs >= _ALL and not (grant.tenants or grant.collections or grant.hidden)
            )
        )

    @property
    def administers(self) -> bool:
        """Whether its principal may operate the service as a whole."""
        return any(Verb.ADMIN in grant.verbs and not grant.is_limited for grant in self.grants)

    @property
    def reads_something(self) -> bool:
        """Whether there may be data that its principal sees."""
        return any(Verb.READ in grant.verbs for grant in self.grants)

    def allows(self, verb: Verb, stream: Stream) -> bool:
        """Whether its principal may do `verb` on `stream`."""
        return any(verb in grant.verbs and grant.covers(stream) for grant in self.grants)

    def shows(self, stream: Stream) -> bool:
        """Whether its principal may see that something happened in `stream`."""
        return self.allows(Verb.READ, stream) or self.allows(Verb.SCHEMA, stream)

    @property
    def follows_something(self) -> bool:
        """Whether there may be captures for its principal."""
        return any(grant.verbs & {Verb.READ, Verb.SCHEMA} for grant in self.grants)

    def allows_collection(self, source: str, collection: str) -> bool:
        """Whether its principal may read a collection, of some tenant at least."""
        return any(
            Verb.READ in grant.verbs and grant.covers_collection(source, collection)
            for grant in self.grants
        )

    def allows_source(self, source: str) -> bool:
        """Whether its principal may read something of a source, perhaps."""
        return any(
            Verb.READ in grant.verbs and grant.covers_source(source) for grant in self.grants
        )

    def hidden(self, stream: Stream, verb: Verb = Verb.READ) -> frozenset[str]:
        """The fields of `stream` that none of the grants of `verb` on it shows."""
        found = [
            grant.hidden for grant in self.grants if verb in grant.verbs and grant.covers(stream)
        ]
        every = frozenset[str]().union(*found)
        # One grant may hide `a`, and another `a.b`: both hide `a.b`, and only one hides `a`.
        return frozenset(name for name in every if all(_hides(one, name) for one in found))

    def mask(self, stream: Stream) -> Mask | None:
        """What is left out of the events of `stream` for its principal; None for nothing."""
        if self.shows_all_of(stream.source):
            return None
        hidden = self.hidden(stream)
        return Mask(
            hidden=hidden,
            before_images=self.allows(Verb.BEFORE_IMAGES, stream),
            hidden_before=hidden | self.hidden(stream, Verb.BEFORE_IMAGES),
            statements=not hidden and self.allows(Verb.ADMIN, stream),
            definitions=not hidden and self.allows(Verb.SCHEMA, stream),
            secret=self.secret,
        )

    def may_hide(self, name: str) -> bool:
        """Whether a field is hidden somewhere, in whole or in part; however its path is written."""
        if self.is_everything:
            return False
        paths = {name.replace("\\", ""), plain_path(name)}
        return any(
            path == one or path.startswith(f"{one}.") or one.startswith(f"{path}.")
            for path in paths
            for grant in self.grants
            for one in grant.hidden
        )


def _hides(names: frozenset[str], name: str) -> bool:
    return name in names or any(name.startswith(f"{one}.") for one in names)


_STEP: Final = re.compile(r"[^.]*[^.0-9][^.]*")
_ALL: Final = frozenset(Verb)
EVERYTHING: Final = Scope((Grant(verbs=_ALL),))
"""Whoever may do anything: a service on loopback that asks nobody who they are."""
