"""Our own tables in an SQL database: places, what tables are for, and rejects."""

# Names of tables and columns are quoted by the dialect; values are never in the text.
# ruff: noqa: S608

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.progress import parse_progress
from penstock.spark.replica.destination import COLUMNS, PLACES, REJECTS, TABLES
from penstock.spark.replica.dialect import Dialect
from penstock.spark.replica.keys import Forms
from penstock.spark.replica.known import Known
from penstock.spark.replica.place import Place, Stream
from penstock.spark.replica.rejecting import Written
from penstock.spark.replica.slices import key_slices
from penstock.spark.table.rejects import ENTRY_COLUMNS, GAP

_REJECT_COLUMNS: Final = ("pipeline", *ENTRY_COLUMNS, "field", "reason", "healed")


class Ledger:
    """Reads and writes them for one pipeline, in the transaction of the cursor that is given."""

    def __init__(self, pipeline: str, dialect: Dialect) -> None:
        self._pipeline = pipeline
        self._dialect = dialect

    def has(self, cursor: Any, name: str) -> bool:
        """Whether there is that one of our tables."""
        return self._dialect.describe(cursor, name) is not None

    def make(self, cursor: Any) -> None:
        """Have the tables."""
        for statement in self._dialect.own_tables():
            cursor.execute(statement, ())
        self._dialect.renew_own_tables(cursor)

    def known(self, cursor: Any) -> Known:
        """What tables are for, what their keys hold, and which rows lack a change."""
        streams, forms = self.tables(cursor)
        key = self._dialect.quoted("key")
        cursor.execute(
            f"SELECT table_name, {key}, sequence FROM {self._dialect.table(REJECTS)} "
            f"WHERE pipeline = %s AND healed IS NULL AND {key} IS NOT NULL ORDER BY sequence",
            (self._pipeline,),
        )
        stale: dict[str, dict[str, int]] = {}
        for name, own, sequence in cursor.fetchall():
            stale.setdefault(name, {})[own] = sequence
        return Known(streams=streams, stale=stale, forms=forms)

    def gaps(self, cursor: Any) -> frozenset[int]:
        """The sequences of the events at which the pipeline noted a gap."""
        cursor.execute(
            f"SELECT sequence FROM {self._dialect.table(REJECTS)} "
            f"WHERE pipeline = %s AND reason LIKE %s",
            (self._pipeline, f"{GAP}%"),
        )
        return frozenset(int(sequence) for (sequence,) in cursor.fetchall())

    def tables(self, cursor: Any) -> tuple[dict[str, tuple[str, Stream]], dict[str, Forms]]:
        """What tables are for, and what their keys hold; as in `Known`."""
        database = self._dialect.quoted("database")
        cursor.execute(
            f"SELECT name, pipeline, {database}, collection, key_forms "
            f"FROM {self._dialect.table(TABLES)}",
            (),
        )
        found = cursor.fetchall()
        streams = {
            name: (pipeline, Stream(there, collection))
            for name, pipeline, there, collection, _ in found
        }
        forms: dict[str, Forms] = {
            name: msgspec.json.decode(written, type=dict[str, str])
            for name, *_, written in found
            if written is not None
        }
        return streams, forms

    def locked_place(self, cursor: Any) -> Place | None:
        """Where the pipeline stands; nobody else moves it before the transaction's end."""
        return self._place(cursor, " FOR UPDATE")

    def place(self, cursor: Any) -> Place | None:
        """Where the pipeline stands, as of now."""
        return self._place(cursor, "")

    def _place(self, cursor: Any, lock: str) -> Place | None:
        cursor.execute(
            f"SELECT source, collections, epoch, progress FROM {self._dialect.table(PLACES)} "
            f"WHERE pipeline = %s{lock}",
            (self._pipeline,),
        )
        found = cursor.fetchone()
        if found is None:
            return None
        source, collections, epoch, progress = found
        return Place(
            pipeline=self._pipeline,
            source=source,
            collections=msgspec.json.decode(collections, type=tuple[str, ...]),
            epoch=epoch,
            progress=parse_progress(progress),
        )

    def store(self, cursor: Any, place: Place, *, new: bool) -> None:
        """Write where it stands."""
        values = (
            place.source,
            msgspec.json.encode(place.collections).decode(),
            place.epoch,
            str(place.progress),
            place.progress.sequence,
            place.pipeline,
        )
        table = self._dialect.table(PLACES)
        if new:
            cursor.execute(
                f"INSERT INTO {table} (source, collections, epoch, progress, sequence, pipeline) "
                f"VALUES (%s, %s, %s, %s, %s, %s)",
                values,
            )
            return
        cursor.execute(
            f"UPDATE {table} SET source = %s, collections = %s, epoch = %s, progress = %s, "
            f"sequence = %s, written = now() WHERE pipeline = %s",
            values,
        )

    def own(self, cursor: Any, name: str, stream: Stream) -> None:
        """A table is the pipeline's from now on."""
        cursor.execute(
            f"INSERT INTO {self._dialect.table(TABLES)} "
            f"(name, pipeline, {self._dialect.quoted('database')}, collection) "
            f"VALUES (%s, %s, %s, %s)",
            (name, self._pipeline, stream.database, stream.collection),
        )
        # Of a table that had the name before, and was dropped to begin anew.
        cursor.execute(f"DELETE FROM {self._dialect.table(COLUMNS)} WHERE table_name = %s", (name,))

    def columns(self, cursor: Any, name: str) -> frozenset[str]:
        """The table's columns that are the pipeline's, as `keep_columns` was told."""
        cursor.execute(
            f"SELECT column_name FROM {self._dialect.table(COLUMNS)} WHERE table_name = %s", (name,)
        )
        return frozenset(column for (column,) in cursor.fetchall())

    def keep_columns(self, cursor: Any, name: str, columns: Sequence[str]) -> None:
        """These columns of the table, which were not, are the pipeline's from now on."""
        for column in columns:
            cursor.execute(
                f"INSERT INTO {self._dialect.table(COLUMNS)} (table_name, column_name) "
                f"VALUES (%s, %s)",
                (name, column),
            )

    def rename(self, cursor: Any, name: str, stream: Stream) -> None:
        """A table's rows are those of a collection of that name in another database."""
        cursor.execute(
            f"UPDATE {self._dialect.table(TABLES)} SET {self._dialect.quoted('database')} = %s "
            f"WHERE name = %s",
            (stream.database, name),
        )

    def hand_over(self, cursor: Any, old: str, new: str) -> None:
        """Rejects of rows of one table are of rows of another one."""
        cursor.execute(
            f"UPDATE {self._dialect.table(REJECTS)} SET table_name = %s "
            f"WHERE pipeline = %s AND table_name = %s AND healed IS NULL",
            (new, self._pipeline, old),
        )

    def keep_forms(self, cursor: Any, name: str, forms: Forms, written: Written) -> None:
        """What the table's key holds is this from now on."""
        if forms == written.known.forms.get(name, {}):
            return
        cursor.execute(
            f"UPDATE {self._dialect.table(TABLES)} SET key_forms = %s WHERE name = %s",
            (msgspec.json.encode(forms).decode(), name),
        )
        written.known.forms[name] = forms

    def pending(self, cursor: Any) -> list[dict[str, Any]]:
        """As `Destination.pending`."""
        names = (*ENTRY_COLUMNS, "reason", "field", "table_name")
        cursor.execute(
            f"SELECT {', '.join(map(self._dialect.quoted, names))} "
            f"FROM {self._dialect.table(REJECTS)} WHERE pipeline = %s AND healed IS NULL "
            f"AND {self._dialect.quoted('key')} IS NOT NULL ORDER BY sequence",
            (self._pipeline,),
        )
        told: list[str] = [*names[:-1], "table"]
        return [dict(zip(told, row, strict=True)) for row in cursor.fetchall()]

    def reject(self, cursor: Any, rows: Sequence[dict[str, Any]]) -> None:
        """Write changes that were rejected, as `Written.rejected` gives them."""
        names = ", ".join(map(self._dialect.quoted, (*_REJECT_COLUMNS, "table_name")))
        places = ", ".join(["%s"] * (len(_REJECT_COLUMNS) + 1))
        for row in rows:
            values = [row[name] for name in _REJECT_COLUMNS]
            cursor.execute(
                f"INSERT INTO {self._dialect.table(REJECTS)} ({names}) VALUES ({places})",
                (*map(_plain, values), row["table"]),
            )

    def heal(self, cursor: Any, name: str, keys: Sequence[str] | None, *, until: int) -> None:
        """The rows with these keys, or all, are what they are at the source again."""
        statement = (
            f"UPDATE {self._dialect.table(REJECTS)} SET healed = %s "
            f"WHERE pipeline = %s AND table_name = %s AND healed IS NULL"
        )
        if keys is None:
            cursor.execute(statement, (until, self._pipeline, name))
        for part in key_slices(keys or ()):
            places = ", ".join(["%s"] * len(part))
            own = f" AND {self._dialect.quoted('key')} IN ({places})"
            cursor.execute(statement + own, (until, self._pipeline, name, *part))


def _plain(value: Any) -> Any:
    # PostgreSQL keeps no NUL in text; JSON's own texts have it as an escape.
    return value.replace("\0", "\\u0000") if isinstance(value, str) else value
