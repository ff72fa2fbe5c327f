"""What the collection, the consumer and the table each say, in one form that can be compared.

The oracle is MongoDB's own canonical Extended JSON (`bson.json_util`), not our encoder: it names
the type of every number.
"""

import json
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from bson import Decimal128, json_util
from deltalake import DeltaTable
from pymongo.collection import Collection

Document = dict[str, Any]
OWN_COLUMNS = {"_key", "_source", "_database", "_sequence", "_rejected_sequence"}
"""What the table says beside the document."""
NESTED = frozenset({"lines", "address"})
"""Columns of Extended JSON."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# --- the collection ---------------------------------------------------------------------------


def canonical_of(value: Any) -> str:
    """The canonical text of what the driver read."""
    return json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS)


def stored_collection(collection: Collection[Document]) -> dict[str, str]:
    """Every document by its `_id`, both in canonical text."""
    return {canonical_of(document["_id"]): canonical_of(document) for document in collection.find()}


# --- the consumer -----------------------------------------------------------------------------


def canonical(text: bytes | str) -> Any:
    """Our Extended JSON, parsed, as canonical: every number with its type."""
    return json.loads(text, parse_int=_integer, parse_float=_double, object_hook=_dated)


def _integer(digits: str) -> Document:
    return {"$numberInt" if -(1 << 31) <= int(digits) < 1 << 31 else "$numberLong": digits}


def _double(digits: str) -> Document:
    return {"$numberDouble": repr(float(digits))}


def _dated(value: Document) -> Document:
    if set(value) != {"$date"} or not isinstance(value["$date"], str):
        return value
    moment = datetime.fromisoformat(value["$date"])
    milliseconds = round((moment - _EPOCH).total_seconds() * 1000)
    return {"$date": {"$numberLong": str(milliseconds)}}


class Rows:
    """The documents that changes add up to, applied in the order in which they are given."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], dict[str, str]] = {}

    def apply(self, change: Document, typed: Document) -> None:
        """Apply a change; `typed` is the same in canonical Extended JSON."""
        source, collection = change["source"], change["collection"]
        if change["kind"] == "data":
            documents = self._documents.setdefault((source, collection), {})
            key = json.dumps(typed["key"]["_id"])
            if change["operationType"] == "delete":
                documents.pop(key, None)
            elif "fullDocument" in change:
                documents[key] = json.dumps(typed["fullDocument"])
        elif change["operationType"] == "drop":
            self._documents.pop((source, collection), None)
        elif change["operationType"] == "rename":
            to = change["fullDocument"]["to"]["coll"]
            self._documents[source, to] = self._documents.pop((source, collection), {})

    def documents(self, source: str, collection: str) -> dict[str, str]:
        """Every document by its `_id`, both in canonical text."""
        return self._documents.get((source, collection), {})


class Fold:
    """A consumer's changes, each sequence once, and the documents that they add up to.

    A sequence that came again was said twice: it is one event, and what was said last counts.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.arrived: list[Document] = []
        """Every line, in the order of the file."""
        self.by_sequence: dict[int, Document] = {}
        typed: dict[int, Document] = {}
        in_order_of_arrival = Rows()
        for line in lines:
            change: Document = json.loads(line)
            sequence: int = change["sequence"]
            known = self.by_sequence.get(sequence, change)
            assert known["eventId"] == change["eventId"], "a repeat is another event"
            self.arrived.append(change)
            self.by_sequence[sequence] = change
            typed[sequence] = canonical(line)
            in_order_of_arrival.apply(change, typed[sequence])
        in_order = Rows()
        for sequence, change in sorted(self.by_sequence.items()):
            in_order.apply(change, typed[sequence])
        self.documents = in_order.documents
        """Of (source, collection), by the order of the log."""
        self.documents_as_they_came = in_order_of_arrival.documents
        """The same of whoever applies each line when it comes, repeats too. Right where no repeat
        is a rename, which would take later rows along."""

    def last_sequence_of(self, *collections: str) -> int:
        return max(
            s for s, change in self.by_sequence.items() if change["collection"] in collections
        )

    def check_order(self) -> None:
        """Dense sequences, unique event ids, whole commits in order (invariant 3)."""
        sequences = sorted(self.by_sequence)
        assert sequences == list(range(1, len(sequences) + 1)), "a sequence is missing"
        changes = [self.by_sequence[sequence] for sequence in sequences]
        assert len({change["eventId"] for change in changes}) == len(changes)
        expected_commit, ordinal = 1, 0
        for change in changes:
            assert (change["commit"], change["ordinal"]) == (expected_commit, ordinal)
            ordinal += 1
            assert change["endsCommit"] == (ordinal == change["commitRows"])
            if change["endsCommit"]:
                expected_commit, ordinal = expected_commit + 1, 0
        assert ordinal == 0, "the last commit was seen in part"


def folded(path: Path) -> Fold:
    """What the consumer has filed so far; a line being written does not count."""
    data = path.read_bytes()
    return Fold(line for line in data[: data.rfind(b"\n") + 1].splitlines())


# --- the table --------------------------------------------------------------------------------


def _cell(value: Any) -> str:
    """One value of a document or a cell, as text that tells every difference apart."""
    if isinstance(value, Decimal128):
        value = value.to_decimal()
    if isinstance(value, Decimal):
        # A column has one scale, so 1.10 and 1.1 are one value; nothing else may differ.
        return f"decimal {value.normalize():f}"
    if isinstance(value, datetime):
        return f"instant {value.astimezone(UTC).isoformat()}"
    if isinstance(value, float):
        return f"double {'nan' if math.isnan(value) else value.hex()}"
    if isinstance(value, bool):
        return f"bool {value}"
    if isinstance(value, int):
        return f"int {int(value)}"
    if isinstance(value, bytes):
        return f"binary {bytes(value).hex()}"
    return f"text {value}"


def collection_rows(
    collection: Collection[Document], *, json_columns: frozenset[str] = NESTED
) -> dict[str, dict[str, str]]:
    """Every document as the row it should be, by its key; null and absent are the same."""
    return {
        canonical_of(document["_id"]): {
            name: _nested(canonical_of(value)) if name in json_columns else _cell(value)
            for name, value in document.items()
            if value is not None
        }
        for document in collection.find()
    }


def table_rows(path: Path, *, json_columns: frozenset[str] = NESTED) -> dict[str, dict[str, str]]:
    """Every row of the table, its cells in the same form; our own columns left out."""
    table: pa.Table = DeltaTable(path).to_pyarrow_table()
    rows: dict[str, dict[str, str]] = {}
    for row in table.to_pylist():
        key = json.dumps(canonical(row["_key"])["_id"])
        assert key not in rows, f"two rows for {key}"
        rows[key] = {
            name: _nested(json.dumps(canonical(value))) if name in json_columns else _cell(value)
            for name, value in row.items()
            if value is not None and name not in OWN_COLUMNS
        }
    return rows


def _nested(text: str) -> str:
    """Canonical text; of a decimal its value, as in a column."""
    return json.dumps(json.loads(text, object_hook=_one_scale), sort_keys=True)


def _one_scale(value: Document) -> Document:
    decimal = value.get("$numberDecimal")
    return value if decimal is None else {"$numberDecimal": f"{Decimal(decimal).normalize():f}"}


def rejects(path: Path) -> list[dict[str, Any]]:
    """The rows of a rejects table; none where there is no table."""
    if not path.exists():
        return []
    table: pa.Table = DeltaTable(path).to_pyarrow_table()
    return table.to_pylist()


def balances_of_every_version(path: Path) -> Iterator[int]:
    """The sum of all balances in each version of the accounts table that holds any."""
    newest = DeltaTable(path)
    for version in range(newest.version() + 1):
        newest.load_as_version(version)
        table: pa.Table = newest.to_pyarrow_table()
        if "balance" in table.column_names:
            balances: list[int] = [row["balance"] for row in table.select(["balance"]).to_pylist()]
            yield sum(balances)
