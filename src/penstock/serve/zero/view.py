"""What one shard is shown: its tables as configured, and what its principal may see. Pure."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from penstock.errors import RequestError
from penstock.serve.zero.config import ZeroConfig
from penstock.serve.zero.request import Shard
from penstock.subscribe import Criteria
from penstock.subscribe.scope import Scope
from penstock.zero.config import ZeroSourceConfig, ZeroTablesConfig
from penstock.zero.mapping import Mapping, permissions
from penstock.zero.messages import Data, Insert, downstream_text
from penstock.zero.tables import split_collection

_encode: Final = msgspec.json.Encoder().encode


class View(Struct, frozen=True):
    """The tables of a shard, before anything is known of their rows."""

    mapping: Mapping
    sources: frozenset[str]
    """Those that its tables are made of."""
    scope: Scope
    criteria: Criteria
    """Whose rows it takes."""
    fingerprint: str
    """Another one is of other tables: a replica of those is not to be gone on with."""
    permissions_row: bytes
    """The message of the only row of its permissions (Z6)."""


def view_of(
    config: ZeroConfig,
    permission_values: dict[str, Any] | None,
    shard: Shard,
    publications: Iterable[str],
    scope: Scope,
) -> View:
    """What a shard is shown that names `publications`.

    Raises RequestError for one that is not configured, and ConfigError for tables that cannot be.
    """
    chosen = _chosen(config, publications)
    shown = ZeroTablesConfig(
        tables={
            name: one
            for name, one in config.tables.items()
            if (chosen is None or name in chosen)
            and scope.allows_collection(one.source, split_collection(one.collection)[1])
        },
        sources={
            name: _without_tables(one, name, config)
            for name, one in config.sources.items()
            if (chosen is None or name in chosen) and scope.allows_source(name)
        },
        clients=config.clients,
        mutations=config.mutations,
    )
    mapping = Mapping(shown, app_id=shard.app, shard_num=shard.number, hidden=scope.hidden)
    sources = frozenset(draft.source for draft in mapping.drafts) | shown.sources.keys()
    row = _permissions_row(shard, permission_values)
    limits = msgspec.json.encode([_plain(grant) for grant in scope.grants], order="sorted")
    parts = (mapping.fingerprint.encode(), row, b"" if scope.is_everything else limits)
    return View(
        mapping=mapping,
        sources=sources,
        scope=scope,
        criteria=_criteria(mapping, shown, sources, scope),
        fingerprint=hashlib.sha256(b"\0".join(parts)).hexdigest()[:32],
        permissions_row=row,
    )


def _without_tables(whole: ZeroSourceConfig, source: str, config: ZeroConfig) -> ZeroSourceConfig:
    """A whole source but for what tables are made of, also those that are not shown: their columns
    and filters would be gone with them."""
    made = {one.collection for one in config.tables.values() if one.source == source}
    return whole.model_copy(update={"exclude": [*whole.exclude, *sorted(made)]})


def _plain(grant: Any) -> dict[str, Any]:
    return {name: sorted(getattr(grant, name)) for name in grant.__struct_fields__}


def _chosen(config: ZeroConfig, publications: Iterable[str]) -> frozenset[str] | None:
    tables: set[str] = set()
    named = False
    for name in publications:
        named = True
        if name not in config.publications:
            raise RequestError(
                "a publication is named that is not configured. Nothing was sent. Name those of "
                "[serve.zero.publications] in ZERO_APP_PUBLICATIONS, or none for all tables."
            )
        tables.update(config.publications[name])
    return frozenset(tables) if named else None


def _criteria(
    mapping: Mapping, shown: ZeroTablesConfig, sources: frozenset[str], scope: Scope
) -> Criteria:
    names = frozenset(f"{one.source}/{one.collection}" for one in mapping.drafts)
    # Which collections a whole source has is not known beforehand.
    collections = frozenset[str]() if shown.sources else names
    return Criteria(sources=sources, collections=collections, scope=scope)


def _permissions_row(shard: Shard, values: dict[str, Any] | None) -> bytes:
    said = None if values is None else _encode(values)
    digest = None if said is None else hashlib.sha256(said).hexdigest()
    new = {
        "lock": Raw(b"true"),
        "permissions": Raw(b"null" if said is None else said),
        "hash": Raw(_encode(digest)),
    }
    relation = permissions(shard.app).relation
    return downstream_text(Data(Insert(relation=relation, new=new)))
