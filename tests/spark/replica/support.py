"""What the tests of replicas share: a driver without Spark, and other clients' eyes."""

import base64
import itertools
import json
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
from bson import json_util
from msgspec import structs
from pymongo import MongoClient

from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import Destination, ReplicaPatience
from penstock.spark.replica.place import Place, decide_start
from penstock.spark.replica.steps import Done, Steps, refused_of, steps_of
from penstock.spark.replicate import destination_of
from penstock.spark.table.arrow import compute
from penstock.spark.table.chunk import (
    INPUT_COLUMNS,
    Collected,
    Control,
    Decode,
    from_chunks,
    join,
    to_chunks,
)
from penstock.spark.table.declared import Declarations
from penstock.spark.table.writing import cuts_of
from tests.spark.stepped import entries_at, stepped
from tests.spark.tables import LOG_ID, Entries

Document = dict[str, Any]


def config_at(uri: str, **more: Any) -> ReplicatePipelineConfig:
    """Of a pipeline that replicates to a URI, and gives its server a second for an answer."""
    return ReplicatePipelineConfig.model_validate(
        {"to": "replicate", "source": "shop", "uri": uri, "answer_seconds": 1, **more}
    )


class Replica(ABC):
    """One destination, empty, and what another client sees in it."""

    exact = False
    """Whether a document is there as it was, and not as columns."""

    @property
    @abstractmethod
    def uri(self) -> str: ...

    @abstractmethod
    def rows(self, table: str) -> dict[Any, Document]:
        """The rows of a table by `_id`; nulls are left out. Empty where there is no table."""

    @abstractmethod
    def names(self) -> set[str]:
        """All tables that there are."""

    @abstractmethod
    def count(self, table: str) -> int:
        """How many rows a table has."""

    @abstractmethod
    def rejects(self) -> list[Document]:
        """By sequence: {sequence, table, key, reason, healed}."""

    @abstractmethod
    def put(self, table: str, key: int) -> None:
        """Make a table, with a row that no pipeline has written."""

    @abstractmethod
    def drop(self, table: str) -> None: ...

    @abstractmethod
    def totals(self, field: str, *tables: str) -> list[int]:
        """The sum of a column of each table, in one transaction of a reader."""

    @abstractmethod
    def expected(self, document: Document) -> Document:
        """How a document, as decoded from Extended JSON, is seen here."""

    def config(self, *collections: str, **more: Any) -> ReplicatePipelineConfig:
        return ReplicatePipelineConfig.model_validate(
            {
                "to": "replicate",
                "source": "shop",
                "uri": self.uri,
                "collections": collections,
                "retry_first": 0.01,
                "circuit_seconds": 0.2,
                **more,
            }
        )


class SqlReplica(Replica):
    quote = '"'
    schema = "'public'"

    @abstractmethod
    def ask(self, statement: str) -> list[Document]:
        """The rows of an answer; raises LookupError where there is no table."""

    @abstractmethod
    def value(self, value: Any) -> Any:
        """A value as Python has it."""

    def rows(self, table: str) -> dict[Any, Document]:
        try:
            found = self.ask(f"SELECT * FROM {self.quote}{table}{self.quote}")
        except LookupError:
            return {}
        rows = [
            {name: self.value(value) for name, value in row.items() if value is not None}
            for row in found
        ]
        return {row["_id"]: row for row in rows}

    def names(self) -> set[str]:
        statement = "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = "
        return {row["name"] for row in self.ask(statement + self.schema)}

    def count(self, table: str) -> int:
        (found,) = self.ask(f"SELECT count(*) AS n FROM {self.quote}{table}{self.quote}")
        return int(found["n"])

    def rejects(self) -> list[Document]:
        return sorted(
            self.ask("SELECT sequence, table_name AS tab, reason, healed FROM _penstock_rejects"),
            key=lambda row: row["sequence"],
        )

    def put(self, table: str, key: int) -> None:
        self.ask(f"CREATE TABLE {table} (_id int PRIMARY KEY)")
        self.ask(f"INSERT INTO {table} VALUES ({key})")

    def drop(self, table: str) -> None:
        self.ask(f"DROP TABLE {table}")

    def expected(self, document: Document) -> Document:
        return {name: python(value) for name, value in document.items() if value is not None}


class PostgresReplica(SqlReplica):
    def __init__(self, uri: str) -> None:
        self._uri = uri

    @property
    def uri(self) -> str:
        return self._uri

    def ask(self, statement: str) -> list[Document]:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute("SET TIME ZONE 'UTC'")
            try:
                cursor = connection.execute(statement.encode())
            except psycopg.errors.UndefinedTable as error:
                raise LookupError from error
            if cursor.description is None:
                return []
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def totals(self, field: str, *tables: str) -> list[int]:
        with psycopg.connect(self._uri) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            return [
                connection.execute(f"SELECT sum({field}) FROM {one}".encode()).fetchall()[0][0]
                for one in tables
            ]

    def value(self, value: Any) -> Any:
        return value


class MysqlReplica(SqlReplica):
    def __init__(self, host: str, port: int, database: str) -> None:
        self._host, self._port, self._database = host, port, database

    @property
    def uri(self) -> str:
        return f"mysql://root@{self._host}:{self._port}/{self._database}"

    def connect(self) -> Any:
        return pymysql.connect(
            host=self._host,
            port=self._port,
            user="root",
            database=self._database,
            charset="utf8mb4",
            autocommit=True,
            cursorclass=pymysql.cursors.DictCursor,
            ssl_disabled=True,
        )

    def totals(self, field: str, *tables: str) -> list[int]:
        found: list[int] = []
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            for one in tables:
                cursor.execute(f"SELECT sum({field}) AS total FROM `{one}`")
                found.append(int(cursor.fetchone()["total"]))
        return found

    def ask(self, statement: str) -> list[Document]:
        with self.connect() as connection, connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except pymysql.ProgrammingError as error:
                if error.args[0] == 1146:
                    raise LookupError from error
                raise
            return list(cursor.fetchall())

    quote = "`"
    schema = "DATABASE()"

    def value(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC)
        if isinstance(value, str) and value[:1] in {"{", "["}:
            return json.loads(value)
        return value


class MongoReplica(Replica):
    exact = True

    def __init__(self, uri: str, database: str) -> None:
        self._uri, self._database = uri, database
        self._client = MongoClient[Document](uri, retryReads=True)
        self.database = self._client[database]

    @property
    def uri(self) -> str:
        head, _, tail = self._uri.partition("/?")
        return f"{head}/{self._database}?{tail}"

    def close(self) -> None:
        self._client.close()

    def rows(self, table: str) -> dict[Any, Document]:
        return {row["_id"]: row for row in self.database[table].find()}

    def names(self) -> set[str]:
        return set(self.database.list_collection_names())

    def count(self, table: str) -> int:
        return self.database[table].count_documents({})

    def rejects(self) -> list[Document]:
        found = self.database["_penstock_rejects"].find().sort("sequence", 1)
        return [{**row, "tab": row["table"]} for row in found]

    def put(self, table: str, key: int) -> None:
        self.database[table].insert_one({"_id": key})

    def drop(self, table: str) -> None:
        self.database.drop_collection(table)

    def totals(self, field: str, *tables: str) -> list[int]:
        grouped = [{"$group": {"_id": None, "total": {"$sum": f"${field}"}}}]
        with self._client.start_session(snapshot=True) as session:
            found = [self.database[one].aggregate(grouped, session=session) for one in tables]
            return [int(row["total"]) for cursor in found for row in cursor]

    def expected(self, document: Document) -> Document:
        made: Document = json_util.loads(
            json.dumps(document), json_options=json_util.JSONOptions(tz_aware=False)
        )
        return made


def python(value: Any) -> Any:
    """A value of Extended JSON as Python's clients give it; objects and arrays as JSON."""
    match value:
        case {"$oid": text}:
            return text
        case {"$numberLong": text} | {"$numberInt": text}:
            return int(text)
        case {"$numberDouble": text}:
            return float(text)
        case {"$numberDecimal": text}:
            return Decimal(text)
        case {"$date": str(text)}:
            return datetime.fromisoformat(text)
        case {"$binary": {"base64": text}}:
            return base64.b64decode(text)
        case _:
            return value


class Driver:
    """A driver of one pipeline: what `ReplicaTarget` does, with batches of our own and no Spark."""

    def __init__(self, entries: Entries, config: ReplicatePipelineConfig, name: str = "p") -> None:
        self.name = name
        self.entries = entries
        self.config = config
        self.destination: Destination = destination_of(name, config)
        self.patience = ReplicaPatience(name, config, self.destination, stopping=threading.Event())
        self.place: Place | None = None
        self.declarations = Declarations()
        self._controls: Sequence[Control] = ()

    def start(self, *, log_id: int = LOG_ID, trimmed: int = 0) -> int:
        """Claim the place; the sequence behind which it goes on."""
        bounds = Bounds(
            log_id=log_id,
            trimmed=trimmed,
            trimmed_check=0,
            head=self.entries.head,
            head_commit=0,
            head_check=0,
        )

        def decide(place: Place | None, tables: Any, gone: Any) -> Place:
            return decide_start(
                self.name, self.config, place=place, tables=tables, gone=gone, bounds=bounds
            )

        self.place = self.patience.call(lambda: self.destination.claim(decide))
        return self.place.progress.sequence

    def apply(self, after: int = 0, until: int | None = None, *, parts: int = 1) -> Done:
        """Apply the entries of (after, until], as a batch."""
        assert self.place is not None
        last = self.entries.head if until is None else until
        if last <= self.place.progress.sequence:
            return Done()
        table = self.entries.table(after, last)
        if self.config.collections:
            wanted = compute.is_in(table["collection"], pa.array([*self.config.collections, ""]))
            table = table.filter(compute.or_(wanted, compute.equal(table["kind"], 3)))
        table, refused = stepped(table, self.config, self.name)
        steps = self.steps(table, parts)
        stop = steps.stop
        if stop is not None:
            sequences, commits = table["sequence"], table["commit"]
            stopping = commits.filter(compute.equal(sequences, stop.sequence))[0]
            table = table.filter(compute.less(commits, stopping))
            last = compute.max(table["sequence"]).as_py() or 0
            if last <= self.place.progress.sequence:
                raise stop.error
            steps = self.steps(table, parts)
        noted = refused_of(refused, after=self.place.progress.sequence, until=last)
        done = self.write([*steps.steps, *noted], last, table)
        self.declarations.note(self._controls)
        if stop is not None:
            raise stop.error
        return done

    def steps(self, table: pa.Table, parts: int) -> Steps:
        assert self.place is not None
        batch = collected(table, self.destination.decode, parts=parts)
        self._controls = batch.controls
        return steps_of(
            batch,
            pipeline=self.name,
            config=self.config,
            after=self.place.progress.sequence,
            declarations=self.declarations,
        )

    def write(self, steps: Sequence[Any], end: int, table: pa.Table) -> Done:
        assert self.place is not None
        before = self.place
        behind = structs.replace(before, progress=Progress(LOG_ID, end, 0))

        done = self.patience.call(
            lambda: self.destination.apply(
                steps, before=before, until=behind, entries_at=entries_at(table)
            )
        )
        self.place = behind
        return done

    def close(self) -> None:
        self.destination.reset()


def replay_beside(driver: Driver, after: int, until: int) -> None:
    """Write the rows of (after, until] as a replay does: beside the driver, at its place."""
    assert driver.place is not None
    destination = destination_of(driver.name, driver.config)
    table = driver.entries.table(after, until)
    batch = collected(table, destination.decode)
    steps = steps_of(batch, pipeline=driver.name, config=driver.config, after=after)
    try:
        destination.apply(
            steps.steps, before=driver.place, until=driver.place, entries_at=entries_at(table)
        )
    finally:
        destination.reset()


def collected(entries: pa.Table, decode: Decode, *, parts: int = 1) -> Collected:
    """A batch as workers and the driver reduce it."""
    edges = [entries.num_rows * part // parts for part in range(parts + 1)]
    ranges = [entries.slice(a, b - a) for a, b in itertools.pairwise(edges) if b > a]

    def collect(cuts: Sequence[int]) -> Collected:
        opened = [
            chunk
            for part in ranges
            for made in to_chunks(
                part.select(INPUT_COLUMNS).to_batches(), cuts=cuts, scratch=None, decode=decode
            )
            for chunk, _ in from_chunks(pa.Table.from_batches([made]))
        ]
        return Collected(chunk=join(opened, cuts=cuts), after=0, entries=entries.num_rows)

    first = collect(())
    cuts = cuts_of(first.controls)
    return collect(cuts) if cuts else first


def database() -> str:
    """A name that is no other test's."""
    return f"test_{uuid.uuid4().hex[:12]}"
