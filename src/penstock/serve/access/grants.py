"""Grants as they are written down: in the file of tokens, and in the claim of a JWT. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from penstock.subscribe.scope import Grant, Verb


class WrittenGrant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One grant in JSON. What is left out is not limited, but for the verbs: those are `read`."""

    verbs: tuple[Verb, ...] = (Verb.READ,)
    sources: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    def grant(self) -> Grant:
        """What it grants. Raises ValueError for a field that cannot be hidden."""
        for names in (self.sources, self.tenants, self.collections):
            if "" in names:
                # An empty list is everything; an empty name was meant to be one.
                raise ValueError("a grant has an empty name; leave the list out to mean all")
        return Grant(
            verbs=frozenset(self.verbs),
            sources=frozenset(self.sources),
            tenants=frozenset(self.tenants),
            collections=frozenset(self.collections),
            hidden=frozenset(self.hidden),
        )


def written(grant: Grant) -> WrittenGrant:
    """A grant, to be written down."""
    return WrittenGrant(
        verbs=tuple(sorted(grant.verbs)),
        sources=tuple(sorted(grant.sources)),
        tenants=tuple(sorted(grant.tenants)),
        collections=tuple(sorted(grant.collections)),
        hidden=tuple(sorted(grant.hidden)),
    )


def grants_of(claim: Any) -> tuple[Grant, ...]:
    """The grants in `{"grants": [...]}`, decoded JSON. Raises ValueError for anything else, also
    for a word that it does not know: a limit that was misspelt would be no limit."""
    found: _Claim = msgspec.convert(claim, _Claim)
    return read(found.grants)


def read(grants: Sequence[WrittenGrant]) -> tuple[Grant, ...]:
    """What written grants grant; at least one. Raises ValueError."""
    if not grants:
        raise ValueError("there is no grant")
    return tuple(one.grant() for one in grants)


class _Claim(Struct, frozen=True, forbid_unknown_fields=True):
    grants: tuple[WrittenGrant, ...]
