"""Whether a store is the one that was captured, and its tables can be captured as they are."""

import structlog

from penstock.capture.tenant import Tenant, TenantRule
from penstock.errors import ConfigError, SourceChangedError
from penstock.sources.store.copying import unfollowed
from penstock.sources.store.positions import Scope, StorePosition
from penstock.store import View
from penstock.store.schema import Stream

logger = structlog.get_logger(__name__)


def require_same(source: str, view: View, known: StorePosition) -> bool:
    """Raise SourceChangedError for a position of another store, or of one that was restored since.

    False where that cannot be told: who wrote the record is forgotten, with all that it wrote.
    """
    ours = f"the store {known.store}, and stands behind its record {known.sequence}"
    if known.store != view.store_id:
        raise SourceChangedError(source=source, expected=ours, found=f"the store {view.store_id}")
    life = view.life(known.sequence)
    proven = bool(life) or known.sequence == 0
    if known.sequence > view.sequence or (proven and life != known.life):
        raise SourceChangedError(
            source=source,
            expected=ours,
            found="that store as it was before, restored from a backup, which has gone on in "
            "another way",
        )
    return proven


def require_images(source: str, view: View, scope: Scope, rule: Tenant) -> None:
    """Raise ConfigError for a stream that is enabled, in scope, and holds too little."""
    by_field = isinstance(rule, TenantRule) and rule.field is not None
    for stream in view.streams():
        if stream.table not in scope or stream.closed_ms is not None:
            continue
        lacks = "" if stream.view.has_new else "no item after a change, so no table can be fed"
        if by_field and not stream.view.has_old:
            lacks = lacks or "no item before a delete, so tenant.field cannot tell whose it was"
        if lacks:
            raise ConfigError(
                f"{source}: the stream of table {stream.table!r} is {stream.view.value} and holds "
                f"{lacks}. Nothing of it was captured. Run disable_stream and enable_stream with "
                f"NEW_AND_OLD_IMAGES, or leave the table out: exclude = [{stream.table!r}]."
            )


def warn(source: str, view: View, scope: Scope) -> None:
    """Say which tables are not captured because they have no stream."""
    left_out = unfollowed(view, scope)
    if left_out:
        logger.warning(
            "tables without a change stream are not captured; enable_stream begins one",
            source=source,
            tables=list(left_out),
        )


def key_names(stream: Stream) -> tuple[str, ...]:
    """The names of the key attributes of a stream's table, in order."""
    if stream.sort_key is None:
        return (stream.partition_key.name,)
    return (stream.partition_key.name, stream.sort_key.name)
