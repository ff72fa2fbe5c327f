"""Names in a grant that nothing has: a field that is hidden by a wrong name is shown."""

# What a document holds has no type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import checks
from penstock.errors import PenstockError
from penstock.state.browsing import browse
from penstock.state.tables import known_collections

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.serve.access.grants import WrittenGrant

_ROWS_MAX: Final = 1_000
"""Of each collection in which a hidden field is looked for."""


def unmatched(settings: "Settings", grant: "WrittenGrant") -> list[str]:
    """A sentence for each source, collection and hidden field that is not there, with the nearest
    names; of collections and fields as far as the current rows beside the log show them."""
    told = checks.unmatched(
        [("--source", one) for one in grant.sources],
        settings.sources,
        settings.sources.__contains__,
        what="that is configured",
    )
    seen = [one for one in settings.sources if not grant.sources or one in grant.sources]
    with suppress(PenstockError):  # the rows that cannot be read are told by others
        told += _of_rows(settings, grant, seen)
    return told


def _of_rows(settings: "Settings", grant: "WrittenGrant", sources: list[str]) -> Iterator[str]:
    log = settings.log.path
    known = {
        (source, collection)
        for source in sources
        for _, collection in known_collections(log, source)
    }
    if not known:
        return
    names = {collection for _, collection in known} | {"/".join(one) for one in known}
    asked = [("--collection", one) for one in grant.collections]
    yield from checks.unmatched(asked, names, names.__contains__, what="that the log has told of")
    wanted = frozenset(grant.collections)
    documents = (
        msgspec.json.decode(row.full_document)
        for source in sources
        for row in browse(log, source, rows_max=_ROWS_MAX)
        if row.full_document is not None
        and (not wanted or wanted & {row.collection, f"{source}/{row.collection}"})
    )
    left, fields = set(grant.hidden), set[str]()
    for document in documents:
        if not left:
            break
        fields.update(document)
        left = {one for one in left if not _leads_somewhere(document, one.split("."))}
    if fields:
        yield from checks.unmatched(
            [("--hide", one) for one in grant.hidden if one in left],
            fields,
            lambda _: False,
            what=f"in the first {_ROWS_MAX:,} rows of each collection",
        )


def _leads_somewhere(value: Any, path: list[str]) -> bool:
    """Whether a value has a field at the path, also in the elements of arrays."""
    if isinstance(value, list):
        return any(_leads_somewhere(one, path) for one in value)
    if not path:
        return True
    return (
        isinstance(value, dict) and path[0] in value and _leads_somewhere(value[path[0]], path[1:])
    )
