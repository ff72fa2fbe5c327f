"""A pipeline as a project of Spark Declarative Pipelines, for engines that run those. Pure.

The project reads the same service with `format("penstock")` and leaves the rest to the engine's
AUTO CDC flow: its tables, its checkpoint, its exactly-once. What such a flow has no word for is not
passed over: rows that a drop, a rename or a gap concerns, and updates that come without their whole
document, stop it with an error that names the sequence. A row is what it is in a pipeline's table:
one key of one database of one source.
Source: pyspark.pipelines of Spark 4.2 (`create_auto_cdc_flow`) and of 4.3, which keeps versions,
too; and its `spark-pipelines` command.
"""

# The stubs of pyarrow leave element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.spark.config import HistoryPipelineConfig, PipelineConfig, TablePipelineConfig
from penstock.spark.options import BEGINNING
from penstock.spark.table.kinds import DECIMAL_SCALE, Kind, document_field, kind_of_column

_NAME = re.compile(r"[^0-9A-Za-z_]")
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DDL = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<(>),]|[^\s`'<>(),:]+")

SPEC: Final = "spark-pipeline.yml"

_TYPES: Final = {
    Kind.BOOL: "BOOLEAN",
    Kind.INT32: "INT",
    Kind.INT64: "BIGINT",
    Kind.DOUBLE: "DOUBLE",
    Kind.DECIMAL: f"DECIMAL(38,{DECIMAL_SCALE})",
    Kind.STRING: "STRING",
    Kind.OBJECT_ID: "STRING",
    Kind.TIMESTAMP: "TIMESTAMP",
    Kind.BINARY: "BINARY",
}

_MODULE: Final = '''"""Changes that Penstock captures, applied by the engine's AUTO CDC.

Set PENSTOCK_TOKEN_FILE where the service asks for a token, and PENSTOCK_TLS_CA where it has TLS.
"""

{imports}

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from penstock.spark import register

spark = SparkSession.active()
register(spark)

ENDPOINT = os.environ.get("PENSTOCK_ENDPOINT", {endpoint})
{archive}
SECRETS = {{
    option: os.environ[name]
    for option, name in (("tokenFile", "PENSTOCK_TOKEN_FILE"), ("tlsCa", "PENSTOCK_TLS_CA"))
    if name in os.environ
}}

# A flow knows upserts of whole rows, and deletes. What is neither is an error, but for what changes
# no row: a document without its unchanged fields would make them null.
ROWS = """
CASE
  WHEN kind = 0 AND operation_type = 'delete' THEN true
  WHEN kind = 0 AND full_document IS NOT NULL AND coalesce(size(unchanged), 0) <= 0 THEN true
  WHEN kind IN (1, 4) OR (kind = 3 AND operation_type IN ({harmless})) THEN false
  ELSE raise_error(concat(
    'an AUTO CDC flow cannot apply ', operation_type, ' at sequence ', sequence,
    if(kind = 0, ', which comes without its whole document', ''),
    '; nothing behind it was applied. Use penstock pipeline run, or refresh the table.'))
END
"""
'''

_ARCHIVE: Final = """\
# Where the service's archive is; without one, empty. What retention removed is read from there.
ARCHIVE = os.environ.get("PENSTOCK_ARCHIVE", {archive})"""

_ARCHIVE_UNTOLD: Final = """\
# Where the service's archive is. Its URL has a secret, and so it is not written here: say it.
ARCHIVE = os.environ["PENSTOCK_ARCHIVE"]"""

_VERSIONS: Final = """
# The engine keeps the versions, in columns of its own: __START_AT is the place in the log of the
# change that opened one, __END_AT that of the change that ended it, null while it is open. They are
# what _from_sequence and _to_sequence are in a history that Penstock keeps. What else that has is
# not here: times (_valid_from, _valid_to), what opened a version (_operation), and whether the row
# surely was so (_as_of_event).
if "track_history_column_list" not in inspect.signature(dp.create_auto_cdc_flow).parameters:
    raise RuntimeError(
        "this project keeps every version of rows, for which AUTO CDC of this PySpark has no word. "
        "Nothing was applied. Run it with PySpark 4.3 or newer, or use penstock pipeline run."
    )
"""

_FLOW: Final = """

@dp.temporary_view(name={view})
def {view_function}():
    return (
        spark.readStream.format("penstock")
        .options(
            endpoint=ENDPOINT,
            source={source},
            collections={collections},
            documents="struct",
            documentSchema={schema},
            archive=ARCHIVE,
            startingOffsets={start},
            maxOffsetsPerTrigger={most},
            failOnDataLoss="true",
            **SECRETS,
        )
        .load()
        .where(ROWS)
        .selectExpr(
            "key AS _key",
            "source AS _source",
            "database AS _database",
            "sequence AS _sequence",
            "operation_type = 'delete' AS _deleted",
            "full_document.*",
        )
    )


dp.create_streaming_table({table})
dp.create_auto_cdc_flow(
    target={table},
    source={view},
    keys=["_key", "_source", "_database"],
    sequence_by="_sequence",
    apply_as_deletes={deletes},
    except_column_list=["_deleted"],
{stored})
"""

_SPEC_TEXT: Final = """# Run with: spark-pipelines run
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""


def project(
    name: str,
    config: PipelineConfig,
    *,
    endpoint: str,
    storage: str,
    schemas: Mapping[str, str],
    harmless: frozenset[str],
    archive: str = "",
    archive_is_secret: bool = False,
) -> dict[str, str]:
    """The project's files, by their path in its folder.

    `storage` is the URI where the engine keeps what it must remember. `schemas` are the documents'
    columns (DDL) by collection; `harmless` are the schema events that change no row.
    `archive` is where the service's archive is; where that is secret, as a URL with a key is,
    whoever runs the project says it.

    Raises ConfigError for a pipeline that is no such flow.
    """
    if not isinstance(config, TablePipelineConfig | HistoryPipelineConfig):
        raise ConfigError(
            f"pipeline {name} goes to {config.to!r}, for which declarative pipelines have no flow. "
            f"Nothing was written. Pipelines to 'table' and 'history' can be exported."
        )
    if config.transform or config.expect:
        raise ConfigError(
            f"pipeline {name} has steps or expectations, which a declarative project would leave "
            f"out. Nothing was written. Write them in that project, or use penstock pipeline run."
        )
    if isinstance(config, TablePipelineConfig) and config.first_load != "off":
        raise ConfigError(
            f"pipeline {name} has a first load, which a declarative project would leave out. "
            f"Nothing was written. Use penstock pipeline run, or leave first_load out and have the "
            f"service copy the rows through the log: penstock snapshot {config.source}."
        )
    if not config.collections:
        raise ConfigError(
            f"pipeline {name} follows whatever collections its source has, and a declarative "
            f"project names its tables. Nothing was written. Name them under `collections`."
        )
    lacking = [one for one in config.collections if not schemas.get(one, "").strip()]
    if lacking:
        example = f"--schema '{lacking[0]}=_id STRING, total DECIMAL(38,18)'"
        raise ConfigError(
            f"a declarative project says its columns beforehand, and those of "
            f"{', '.join(lacking)} are not known. Nothing was written. Say them, as with {example}."
        )
    versions = isinstance(config, HistoryPipelineConfig)
    module = _MODULE.format(
        imports="import inspect\nimport os" if versions else "import os",
        endpoint=repr(endpoint),
        archive=_ARCHIVE_UNTOLD if archive_is_secret else _ARCHIVE.format(archive=repr(archive)),
        harmless=", ".join(f"'{one}'" for one in sorted(harmless)),
    )
    tables = [_identifier(one) for one in config.collections]
    if len(set(tables)) < len(tables):
        raise ConfigError(
            f"the collections of pipeline {name} would have one table's name: {', '.join(tables)}. "
            f"Nothing was written. Give each a pipeline of its own."
        )
    if versions:
        module += _VERSIONS
    for collection, table in zip(config.collections, tables, strict=True):
        schema = schemas[collection].strip()
        module += _FLOW.format(
            view=repr(f"{table}_changes"),
            view_function=f"{table}_changes",
            source=repr(config.source),
            collections=repr(f"{config.source}/{collection}"),
            schema=repr(schema),
            start=repr("earliest" if config.start == "oldest" else BEGINNING),
            most=config.max_events_per_batch,
            table=repr(table),
            deletes=json.dumps(_deletes(name, config, collection, schema), ensure_ascii=False),
            stored=_stored(name, config, collection, schema),
        )
    spec = _SPEC_TEXT.format(name=json.dumps(name), storage=json.dumps(storage))
    return {SPEC: spec, f"transformations/{_identifier(name)}.py": module}


def columns_of(table: pa.Schema) -> str:
    """The columns of a table that a pipeline keeps, as DDL; empty where one has no such type, as
    those that hold JSON."""
    found: list[str] = []
    for column in table:
        kind = kind_of_column(column)
        if kind is None or kind not in _TYPES:
            return ""
        name = document_field(column).replace("`", "``")
        found.append(f"`{name}` {_TYPES[kind]}")
    return ", ".join(found)


def _deletes(
    name: str, config: TablePipelineConfig | HistoryPipelineConfig, collection: str, schema: str
) -> str:
    """The condition of a delete: one of the source, or one that `apply_as_deletes` takes for it."""
    if not config.apply_as_deletes.strip():
        return "_deleted"
    columns = _names_in(schema)
    lacking = [one for one in _names_in(config.document_schema.strip()) if one not in columns]
    if lacking:
        raise ConfigError(
            f"apply_as_deletes of pipeline {name} reads {', '.join(lacking)}, and of {collection} "
            f"there is no such column: {schema}. Nothing was written. Say all with --schema."
        )
    return f"_deleted OR CASE WHEN ({config.apply_as_deletes}) THEN true ELSE false END"


def _stored(
    name: str, config: TablePipelineConfig | HistoryPipelineConfig, collection: str, schema: str
) -> str:
    """What the flow keeps of rows, as arguments: how they are, or every version of them."""
    if isinstance(config, TablePipelineConfig):
        return "    stored_as_scd_type=1,\n"
    columns = _names_in(schema)
    tracked = [one for one in config.track_history_column_list if one in columns]
    if config.track_history_column_list and not tracked:
        raise ConfigError(
            f"pipeline {name} tracks {', '.join(config.track_history_column_list)}, and of "
            f"{collection} there is no such column: {schema}. Nothing was written. Name one that "
            f"it has, or give the collection a pipeline of its own."
        )
    # A change has a sequence of its own: were that tracked, each would make a version.
    left = [one for one in config.track_history_except_column_list if one in columns]
    word = "track_history_column_list" if tracked else "track_history_except_column_list"
    names = [_column(one) for one in tracked or ("_sequence", *left)]
    return f"    stored_as_scd_type=2,\n    {word}={json.dumps(names, ensure_ascii=False)},\n"


def _names_in(schema: str) -> list[str]:
    """The columns of a schema as Spark reads it: DDL, or JSON."""
    if schema.startswith("{"):
        return [str(one["name"]) for one in json.loads(schema)["fields"]]
    names: list[str] = []
    depth, first = 0, True
    for word in _DDL.findall(schema):
        if first:
            names.append(word[1:-1].replace("``", "`") if word.startswith("`") else word)
        depth += (word in "<(") - (word in ">)")
        first = word == "," and not depth
    return names


def _column(name: str) -> str:
    """A column as Spark's names of columns are written."""
    return name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _identifier(name: str) -> str:
    """A name that Python and SQL take without quotes."""
    plain = _NAME.sub("_", name)
    return plain if plain[:1].isalpha() else f"t_{plain}"
