"""The columns of a table of versions beside the documents' own."""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from typing import Final

import pyarrow as pa

from penstock.spark.table.arrow import arrow
from penstock.spark.table.plan import DATABASE, KEY, REJECTED, SEQUENCE, SOURCE, Naming

VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
FROM_SEQUENCE: Final = "_from_sequence"
TO_SEQUENCE: Final = "_to_sequence"
CURRENT: Final = "_current"
OPERATION: Final = "_operation"
AS_OF_EVENT: Final = "_as_of_event"

INSTANT: Final = pa.timestamp("us", "UTC")

VERSION_COLUMNS: Final = arrow.schema(
    [
        arrow.field(KEY, pa.string(), nullable=False),
        arrow.field(SOURCE, pa.string(), nullable=False),
        arrow.field(DATABASE, pa.string(), nullable=False),
        arrow.field(OPERATION, pa.string(), nullable=False),
        arrow.field(VALID_FROM, INSTANT, nullable=False),
        arrow.field(VALID_TO, INSTANT),
        arrow.field(FROM_SEQUENCE, pa.int64(), nullable=False),
        arrow.field(TO_SEQUENCE, pa.int64()),
        arrow.field(CURRENT, pa.bool_(), nullable=False),
        arrow.field(SEQUENCE, pa.int64(), nullable=False),
        arrow.field(AS_OF_EVENT, pa.bool_(), nullable=False),
        arrow.field(REJECTED, pa.int64()),
    ]
)
"""A version is valid from the change at `_from_sequence` up to the one at `_to_sequence`, which is
null while it is open (`_current`). `_valid_from` and `_valid_to` are when those were committed, by
the source's clock: several versions can share an instant, and only sequences order them.

`_operation` is what opened it: insert, update, replace, `snapshot` (a copy that told the row, which
was there before) or `rename` (of its collection). `_sequence` is that of the last change of its
values, later than `_from_sequence` only where columns are not tracked. `_as_of_event` says whether
they surely were so. A document that the source looked up after its change may have what later ones
wrote (P25), and so may a row that was made from such a one: then states in between may be missing.
What tells the same values for sure begins a version of its own. `_rejected_sequence` is null
but where a later change of the row is in the rejects: from the first such on, the row was another
at the source, until this version ends.
"""

IDENTITY: Final = (KEY, SOURCE, DATABASE, FROM_SEQUENCE)
"""What tells a version from all others of its table."""

VERSION_NAMING: Final = Naming(own=tuple(VERSION_COLUMNS.names))
"""What the documents' columns can be called beside those."""
