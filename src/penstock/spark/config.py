"""What a pipeline is: one source, some of its collections, and where they go."""

import re
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from penstock.audit.config import TrailConfig
from penstock.client.patience import PatienceConfig
from penstock.config import Bytes, Config, Seconds
from penstock.errors import ConfigError
from penstock.spark.transform.config import ELEMENT, ExpectConfig, TransformConfig

_PLAIN = re.compile(r"[A-Za-z0-9_.-]")
_WORD = re.compile(r"\w", re.ASCII)
_CATALOG = re.compile(r"\w[\w-]*(\.\w[\w-]*)?", re.ASCII)


class ReadingConfig(Config):
    """What a pipeline reads, and how fast."""

    source: str = Field(description="The source whose changes are applied.", min_length=1)
    collections: tuple[str, ...] = Field(
        (),
        description="Only these collections, as `name` or `source/name`; empty for all of the "
        "source. A pipeline that runs cannot be given more: they need a new one.",
    )
    trigger: Literal["availableNow"] | Seconds = Field(
        1.0, description="Seconds between batches, or `availableNow`: apply what there is, and end."
    )
    max_events_per_batch: int = Field(
        250_000, gt=0, description="Events per batch; a larger commit comes whole all the same."
    )
    start: Literal["beginning", "oldest"] = Field(
        "beginning",
        description="Where a new pipeline starts: at the log's first entry, and not at all if that "
        "is gone; or knowingly at the oldest that is left. Where a pipeline stands it goes on.",
    )
    metrics: str = Field(
        "off",
        description="Where the pipeline's process shows its metrics (`/metrics`), as "
        "127.0.0.1:9464; on this machine only.",
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The collections, each with its source: a "/" in a name is not what separates them."""
        return tuple(f"{self.source}/{name}" for name in self.collections)

    @field_validator("metrics")
    @classmethod
    def _on_this_machine(cls, metrics: str) -> str:
        if metrics == "off":
            return metrics
        host, colon, port = metrics.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{metrics!r} is not an address; write host:port, or off")
        if host not in {"localhost", "127.0.0.1", "[::1]"}:
            raise ValueError(f"{metrics!r} is not of this machine; write 127.0.0.1:{port}")
        return metrics

    @field_validator("collections")
    @classmethod
    def _collections_are_plain(
        cls, collections: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        """Collections by their own names, which is what events call them."""
        source = str(info.data.get("source", ""))
        names = tuple(name.removeprefix(f"{source}/") for name in collections)
        for given, name in zip(collections, names, strict=True):
            if not name or name != name.strip() or "," in name:
                raise ValueError(f"{given!r} cannot be the name of a collection here")
            if "/" in name and name == given:
                raise ValueError(
                    f"{given!r} names a collection of another source; for one of that very name "
                    f"write {f'{source}/{name}'!r}"
                )
        if len(set(names)) < len(names):
            raise ValueError("a collection is named twice")
        return names


class SteppedPipelineConfig(ReadingConfig):
    """What is made of documents that may pass through steps first."""

    transform: tuple[TransformConfig, ...] = Field(
        (), description="What is done to documents before they are written, step by step."
    )
    expect: tuple[ExpectConfig, ...] = Field(
        (), description="What is expected of documents when all steps are done."
    )

    @model_validator(mode="after")
    def _steps_are_of_collections(self) -> Self:
        if len({one.name for one in self.expect}) < len(self.expect):
            raise ValueError("two expectations have one name")
        named = {name for step in self.transform for name in step.collections}
        named |= {name for one in self.expect for name in one.collections}
        if self.collections and (others := sorted(named.difference(self.collections))):
            raise ValueError(f"a step names {', '.join(others)}, no collection of the pipeline")
        self._check_explode()
        return self

    def _check_explode(self) -> None:
        """Raise ValueError where a document cannot become several rows."""
        if any(step.explode for step in self.transform):
            raise ValueError(
                "explode makes several rows of a document, and rows here are told apart by the "
                "document's key alone: which of them go with a change that does not say the whole "
                "array cannot be known. Pipelines to 'table' and 'changelog' have it"
            )

    def _check_last_explode(self) -> None:
        """Raise ValueError where it is not the last step, or a document has two."""
        steps = [bool(step.explode) for step in self.transform]
        if steps != sorted(steps):
            raise ValueError("explode is the last step")
        exploded = [step.collections for step in self.explodes]
        names = [name for collections in exploded for name in collections]
        if len(exploded) > 1 and (not all(exploded) or len(set(names)) < len(names)):
            raise ValueError("one field of a collection can be exploded")

    @property
    def explodes(self) -> tuple[TransformConfig, ...]:
        """The steps that make rows of elements."""
        return tuple(step for step in self.transform if step.explode)


class LakePipelineConfig(SteppedPipelineConfig):
    """What is kept as files at a path, and looked after."""

    path: str = Field(
        description="Where the Delta table is, a folder or a URL. With one collection the table "
        "itself; otherwise each collection is a table in the folder of its name below.",
        min_length=1,
    )
    standing: str | None = Field(
        None,
        description="The Delta table of one row that says how far the pipeline has come. Default: "
        "`_penstock_standing` in the path. It belongs to the tables: a pipeline without it is "
        "new, and starts where `start` says; its tables ignore what they have.",
    )
    rejects: str | None = Field(
        None,
        description="The Delta table of the changes that were rejected. Default: the path with "
        "`_rejects` at its end.",
    )
    on_gap: Literal["halt", "record"] = Field(
        "halt",
        description="What to do where changes were lost upstream: stop, or write the gap to the "
        "rejects and go on.",
    )
    history: Seconds = Field(
        3600.0, gt=0, description="How long replaced files of a table are kept for its readers."
    )
    compact_every: int = Field(
        100,
        ge=0,
        description="Commits of a table after which its small files are joined, between two "
        "batches; 0: never. `penstock pipeline tidy` does it by hand.",
    )
    vacuum_every: int = Field(
        100,
        ge=0,
        description="Commits of a table after which replaced files older than `history` are "
        "deleted, between two batches; 0: never. `penstock pipeline tidy` does it by hand.",
    )
    storage_options: dict[str, SecretStr] = Field(
        default_factory=dict, description="Credentials and settings of the object store."
    )

    @property
    def standing_path(self) -> str:
        """The Delta table that says how far the pipeline has come."""
        return self.standing or f"{self.path.rstrip('/')}/_penstock_standing"

    @property
    def rejects_path(self) -> str:
        """The Delta table of rejected changes."""
        return self.rejects or f"{self.path.rstrip('/')}_rejects"

    @property
    def in_one_table(self) -> bool:
        """Whether all collections are in one table, so that none can be begun anew in it."""
        return False

    def table_path(self, collection: str) -> str:
        """Where the table of a collection is."""
        if len(self.collections) == 1:
            return self.path.rstrip("/")
        return f"{self.path.rstrip('/')}/{folder_of(collection)}"


class DeltaPipelineConfig(LakePipelineConfig):
    """What is kept in Delta tables, whatever it is."""

    max_bytes_per_batch: Bytes = Field(
        2 << 30,
        gt=0,
        description="The driver holds a batch's last change of each row. One that comes to more "
        "bytes than this stops the pipeline, by name, instead of exhausting memory.",
    )


class TablePipelineConfig(DeltaPipelineConfig):
    """Keep tables equal to collections, with Spark."""

    to: Literal["table"] = Field(
        "table", description="What is made of the changes: `table` keeps current rows in Delta."
    )
    path: str = Field(
        "",
        description="Where the Delta table is, a folder or a URL. With one collection the table "
        "itself; otherwise each collection is a table in the folder of its name below. Not with "
        "`catalog`.",
    )
    catalog: str | None = Field(
        None,
        description="In place of `path`: the schema in which the collections' tables are, as "
        "`main.sales` for one of a catalog, or `sales`. Spark writes them, with Delta's own jars, "
        "by the catalog that its session is set up with. What is kept beside them is there too.",
    )
    nested: Literal["json"] = Field(
        "json", description="How objects and arrays are kept: as Extended JSON text."
    )
    first_load: Literal["off", "source"] = Field(
        "off",
        description="`source`: rows that were there before the log are read from the source "
        "itself, by Spark's tasks, while changes go on being applied. Driver and workers must "
        "reach the source, with the settings of its [sources.NAME].",
    )
    first_load_rows: int = Field(
        20_000, gt=0, description="Rows of a range that one task reads, about; fewer large ones."
    )
    verify_every: Seconds = Field(
        0.0,
        description="Compare the tables with the log so often while the pipeline runs, as 6h; 0: "
        "never. It reads the whole log again, and its archive. What differs is told, and not "
        "repaired: `penstock pipeline verify --repair` does.",
    )
    verify_against: Literal["log", "source"] = Field(
        "log",
        description="What `verify_every` compares with. `source`: every row is read there again, "
        "as for a first load, and tables that had one are compared too. Not with `catalog`.",
    )

    def _check_explode(self) -> None:
        self._check_last_explode()
        if self.explodes and self.catalog is not None:
            raise ValueError(
                "explode writes to folders, not by a catalog: set path instead, or leave the step "
                "out and have Spark SQL's explode over from_json make a view of the table"
            )
        if any(step.explode.lower() == ELEMENT for step in self.explodes):
            raise ValueError(
                f"explode makes a column {ELEMENT}, the place in the array, and the array has that "
                f"name too; put a step before it: rename = {{ {ELEMENT} = 'NAME' }}"
            )

    def exploded_field(self, collection: str) -> str:
        """The field of whose elements a collection's rows are; empty for rows of documents."""
        return next((step.explode for step in self.explodes if step.concerns(collection)), "")

    @field_validator("catalog")
    @classmethod
    def _names_a_schema(cls, catalog: str | None) -> str | None:
        if catalog is not None and not _CATALOG.fullmatch(catalog):
            raise ValueError(f"{catalog!r} is no schema; write it as main.sales, or sales")
        return catalog

    @model_validator(mode="after")
    def _in_folders_or_in_a_catalog(self) -> Self:
        if self.catalog is None:
            if not self.path:
                raise ValueError("path is missing: where the tables are; or set catalog")
            return self
        for name in ("path", "standing", "rejects", "storage_options"):
            if name in self.model_fields_set:
                raise ValueError(
                    f"{name} is for tables in folders, and with catalog = {self.catalog!r} all "
                    f"tables are in that schema; leave {name} out"
                )
        if self.first_load != "off":
            raise ValueError(
                "first_load = 'source' writes to folders, not by a catalog: leave it out, and have "
                "the service copy the rows through the log (penstock snapshot)"
            )
        if self.verify_every and self.verify_against == "source":
            raise ValueError(
                "verify_against = 'source' compares tables in folders; with catalog leave it out, "
                "and have them compared with the log"
            )
        names: dict[str, str] = {}
        for one in self.collections:
            other = names.setdefault(table_name_of(one).lower(), one)
            if other != one:
                raise ValueError(
                    f"{other} and {one} would be one table, for catalogs do not tell upper case "
                    f"from lower; put one of them into another pipeline, with another schema"
                )
        return self

    @property
    def standing_path(self) -> str:
        """As of any pipeline. Raises ConfigError where the tables are in a catalog."""
        self._require_folder()
        return super().standing_path

    @property
    def rejects_path(self) -> str:
        """As of any pipeline. Raises ConfigError where the tables are in a catalog."""
        self._require_folder()
        return super().rejects_path

    def table_path(self, collection: str) -> str:
        """As of any pipeline. Raises ConfigError where the tables are in a catalog."""
        self._require_folder()
        return super().table_path(collection)

    def _require_folder(self) -> None:
        if self.catalog is not None:
            raise ConfigError(
                f"the tables of this pipeline are in the catalog, in {self.catalog}, and this is "
                f"done for tables in folders only. Nothing was changed. Use Spark SQL there."
            )

    @property
    def load_path(self) -> str:
        """The Delta table that says how far the first load has come."""
        return f"{self.standing_path.rstrip('/')}_load"

    @property
    def verified_path(self) -> str:
        """The Delta table of one row that says when `verify_every` was last done."""
        return f"{self.standing_path.rstrip('/')}_verified"

    @model_validator(mode="after")
    def _loads_documents_as_they_are(self) -> Self:
        if self.first_load == "source" and (self.transform or self.expect):
            raise ValueError(
                "first_load = 'source' brings rows without steps or expectations: leave them out, "
                "or have the service copy the rows through the log (penstock snapshot)"
            )
        return self

    @model_validator(mode="after")
    def _can_be_verified(self) -> Self:
        if self.verify_every and (self.transform or self.expect):
            raise ValueError(
                "verify_every compares tables with log or source, and these alone do not tell what "
                "steps and expectations make of them; leave verify_every out"
            )
        if self.verify_every and self.first_load != "off" and self.verify_against == "log":
            raise ValueError(
                "verify_every compares tables with the log, and the log does not tell what a first "
                "load read from the source; set verify_against = 'source', or leave verify_every "
                "out"
            )
        return self


class AuditPipelineConfig(ReadingConfig, TrailConfig):
    """Keep an audit trail of a source in MongoDB, with Spark."""

    to: Literal["audit"] = Field(
        description="What is made of the changes: `audit` keeps every one of them, in order."
    )
    max_events_per_batch: int = Field(
        100_000, gt=0, description="Events per batch; a larger commit comes whole all the same."
    )
    on_gap: Literal["halt", "record"] = Field(
        "record",
        description="What to do where changes were lost upstream: write the gap to the trail, in "
        "its place, and go on; or stop before it.",
    )


class HistoryPipelineConfig(DeltaPipelineConfig):
    """Keep every version of every row in tables, with Spark."""

    to: Literal["history"] = Field(
        description="What is made of the changes: `history` keeps all versions of rows in Delta."
    )
    max_bytes_per_batch: Bytes = Field(
        2 << 30,
        gt=0,
        description="The driver holds a batch's changes and the open versions of their rows. More "
        "bytes than this stop the pipeline, by name, instead of exhausting memory.",
    )
    nested: Literal["json"] = Field(
        "json", description="How objects and arrays are kept: as Extended JSON text."
    )
    track_history_column_list: tuple[str, ...] = Field(
        (),
        description="Only a change of these fields makes a new version; one of others sets them in "
        "the open version. Empty for all fields.",
    )
    track_history_except_column_list: tuple[str, ...] = Field(
        (), description="A change of these fields alone makes no new version."
    )

    @model_validator(mode="after")
    def _one_list(self) -> Self:
        if self.track_history_column_list and self.track_history_except_column_list:
            raise ValueError(
                "set track_history_column_list or track_history_except_column_list, not both"
            )
        return self


class ReplicatePipelineConfig(SteppedPipelineConfig, PatienceConfig):
    """Keep tables or collections of another database equal to a source's, with Spark."""

    to: Literal["replicate"] = Field(
        description="What is made of the changes: `replicate` keeps another database equal."
    )
    uri: SecretStr = Field(
        description="Where that is: mongodb://, mongodb+srv://, postgresql://, mysql:// or "
        "mariadb://, with user, password and, for SQL, the database."
    )
    database: str | None = Field(
        None,
        min_length=1,
        description="The database of MongoDB, or the schema of PostgreSQL, in which tables are. "
        "Default: the database that the URI names; in PostgreSQL its schema `public`.",
    )
    table: str = Field(
        "{collection}",
        min_length=1,
        description="The name of a collection's table, with {collection} and {database} for its "
        "own and its database's name.",
    )
    tls: Literal["off", "unverified", "verify"] | None = Field(
        None,
        description="Encrypt the connection: not at all, without looking at who answers, or only "
        "with the server whose certificate is of this host. Default: as the URI says; off for "
        "MySQL, whose URI cannot.",
    )
    ca: Path | None = Field(
        None, description="File with the authority that signed the server's certificate."
    )
    certificate: Path | None = Field(
        None, description="File with our own certificate; for MongoDB, with its key in it."
    )
    key: Path | None = Field(None, description="File with our certificate's key.")
    max_events_per_batch: int = Field(
        50_000,
        gt=0,
        description="Events per batch, which is one transaction of the destination; a larger "
        "commit comes whole all the same.",
    )
    max_bytes_per_batch: Bytes = Field(
        1 << 30,
        gt=0,
        description="The driver holds a batch's last change of each row. One that comes to more "
        "bytes than this stops the pipeline, by name, instead of exhausting memory.",
    )
    on_gap: Literal["halt", "record"] = Field(
        "halt",
        description="What to do where changes were lost upstream: stop, or write the gap to the "
        "rejects and go on.",
    )
    answer_seconds: Seconds = Field(
        120.0, gt=0, le=3600, description="Wait so long for an answer of the destination."
    )

    @field_validator("uri")
    @classmethod
    def _known(cls, uri: SecretStr) -> SecretStr:
        scheme = uri.get_secret_value().partition("://")[0]
        if scheme not in DESTINATIONS:
            raise ValueError(f"it must begin with one of {', '.join(DESTINATIONS)}, and ://")
        return uri

    @field_validator("table")
    @classmethod
    def _of_collection(cls, table: str) -> str:
        if "{collection}" not in table or re.sub(r"\{(collection|database)\}", "", table) != (
            re.sub(r"[{}]", "", re.sub(r"\{(collection|database)\}", "", table))
        ):
            raise ValueError("it needs {collection}, and knows {database} beside it")
        return table

    @model_validator(mode="after")
    def _consistent(self) -> "ReplicatePipelineConfig":
        if self.tls in {None, "off"} and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key need tls = 'verify' or 'unverified'")
        if self.key is not None and self.certificate is None:
            raise ValueError("key needs the certificate that it is of")
        return self

    @property
    def kind(self) -> str:
        """The scheme of the URI."""
        return self.uri.get_secret_value().partition("://")[0]

    def table_of(self, database: str, collection: str) -> str:
        """The name of a collection's table."""
        names = {"{database}": database, "{collection}": collection}
        return re.sub(r"\{database\}|\{collection\}", lambda found: names[found[0]], self.table)


DESTINATIONS: Final = (
    "mongodb",
    "mongodb+srv",
    "postgresql",
    "postgres",
    "mysql",
    "mariadb",
)
"""What the URI of a destination may begin with."""


class ViewPipelineConfig(DeltaPipelineConfig):
    """Keep the result of a SQL aggregate over collections, with Spark."""

    to: Literal["view"] = Field(
        description="What is made of the changes: `view` keeps what a query gives of current rows."
    )
    path: str = Field(
        description="Where the view is, a Delta table: a folder or a URL. The current rows that it "
        "is made of are beside it, in the path with `_state` at its end.",
        min_length=1,
    )
    collections: tuple[str, ...] = Field(
        (),
        validate_default=True,
        description="The collections of the query, which it names itself; need not be written.",
    )
    query: str = Field(
        description="SELECT ... FROM a collection, JOIN or LEFT JOIN others, WHERE and GROUP BY, "
        "in Spark's SQL, with count, sum, avg, min and max.",
        min_length=1,
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="By collection: columns that it has from the start, as "
        '`orders = "total BIGINT, status STRING"`. Others have the type of their first value.',
    )

    @property
    def state_path(self) -> str:
        """The folder of the tables of current rows."""
        return f"{self.path.rstrip('/')}_state"

    @model_validator(mode="before")
    @classmethod
    def _of_its_query(cls, written: Any) -> Any:
        """The collections are those of the query."""
        fields = cast("dict[str, Any]", written)
        if not isinstance(written, dict) or not isinstance(fields.get("query"), str):
            return fields
        try:
            from penstock.spark.view.query import check_columns, parse_columns, parse_query
        except ModuleNotFoundError:
            # A service needs no Spark; the pipeline's own process does, and has what reads SQL.
            return fields
        query = parse_query(fields["query"])
        given = cast("list[str]", fields.get("collections") or list(query.collections))
        plain = {str(name).removeprefix(f"{fields.get('source')}/") for name in given}
        if plain != set(query.collections):
            raise ValueError(
                f"collections says {', '.join(sorted(plain))}, and the query reads "
                f"{', '.join(query.collections)}; leave collections out"
            )
        ddl = cast("dict[str, str]", fields.get("schema") or {})
        if isinstance(ddl, dict):
            check_columns(query, {name: parse_columns(name, ddl[name]) for name in ddl})
        return {**fields, "collections": query.collections}


class ChangelogPipelineConfig(LakePipelineConfig):
    """Keep every change of a source, append-only, with Spark."""

    to: Literal["changelog"] = Field(
        description="What is made of the changes: `changelog` keeps every one of them, unaltered."
    )
    path: str = Field(
        description="Where the changelog is, a folder or a URL: one Delta table, or one folder of "
        "Parquet files.",
        min_length=1,
    )
    format: Literal["delta", "parquet"] = Field(
        "delta",
        description="`delta`: a Delta table, compacted as it grows. `parquet`: plain files, for "
        "readers that know nothing of Delta; what they contain is in the Delta table at the path "
        "with `_manifest` at its end.",
    )
    partition_by: tuple[Literal["date", "collection"], ...] = Field(
        ("date", "collection"),
        description="The folders that the files lie in. `date` is the day of the commit in UTC; "
        "`collection` is the column `collection_folder`, its name as a folder's. It cannot be "
        "changed once there is a changelog.",
    )
    standing: str | None = Field(
        None,
        description="The Delta table of one row that says how far the pipeline has come. Default: "
        "`_penstock_standing` in the Delta table, which for `parquet` is the manifest.",
    )
    on_gap: Literal["halt", "record"] = Field(
        "record",
        description="What to do where changes were lost upstream: write the gap to the changelog, "
        "in its place, and go on; or stop before it.",
    )
    history: Seconds = Field(
        3600.0,
        gt=0,
        description="How long files that compaction has replaced are kept for readers. No change "
        "is ever deleted.",
    )

    @field_validator("partition_by")
    @classmethod
    def _names_are_different(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a column is named twice")
        return names

    def _check_explode(self) -> None:
        self._check_last_explode()
        if self.explodes and self.format != "delta":
            raise ValueError("explode adds columns, which plain Parquet files have no table for")

    @property
    def standing_path(self) -> str:
        """As of any pipeline, beside the one Delta table."""
        return self.standing or f"{self.table_path('')}/_penstock_standing"

    @property
    def in_one_table(self) -> bool:
        """All collections are."""
        return True

    def table_path(self, collection: str) -> str:  # noqa: ARG002 - all are in one
        """The Delta table: the changelog, or the manifest of its files."""
        path = self.path.rstrip("/")
        return path if self.format == "delta" else f"{path}_manifest"


PipelineConfig = (
    TablePipelineConfig
    | AuditPipelineConfig
    | HistoryPipelineConfig
    | ReplicatePipelineConfig
    | ViewPipelineConfig
    | ChangelogPipelineConfig
)
TARGETS: Final[dict[str, type[PipelineConfig]]] = {
    "table": TablePipelineConfig,
    "audit": AuditPipelineConfig,
    "history": HistoryPipelineConfig,
    "replicate": ReplicatePipelineConfig,
    "view": ViewPipelineConfig,
    "changelog": ChangelogPipelineConfig,
}
"""By what a pipeline's `to` says: how it is configured."""


def config_class(to: object) -> type[PipelineConfig]:
    """How a pipeline with that `to` is configured. Raises ValueError for what does not exist."""
    if not isinstance(to, str) or to not in TARGETS:
        raise ValueError(
            f"a pipeline cannot go to {to!r}; what exists is: {', '.join(map(repr, TARGETS))}"
        )
    return TARGETS[to]


def folder_of(collection: str) -> str:
    """A folder name that no file system, URL or table format reads in a way of its own.

    Anything but ASCII letters, digits, `_`, `-` and `.` is `~` and its UTF-8 in hex; so is a first
    `_` or `.`, which would hide the folder. Names that differ stay different, but for case.
    """
    return "".join(
        chr(byte) if _PLAIN.match(chr(byte)) and (at or byte not in b"_.") else f"~{byte:02x}"
        for at, byte in enumerate(collection.encode())
    )


def table_name_of(collection: str) -> str:
    """A table's name that every catalog takes: ASCII letters, digits and `_`.

    Any other is `__` and its UTF-8 in hex. Two collections may come to one name, as they may where
    a catalog does not tell upper case from lower: a table says whose it is.
    """
    return "".join(
        chr(byte) if _WORD.match(chr(byte)) else f"__{byte:02x}" for byte in collection.encode()
    )
