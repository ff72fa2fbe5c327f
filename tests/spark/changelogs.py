"""What the tests of changelogs share: applying batches without Spark, and reading what is there."""

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.changelogs import ChangelogTarget, Work
from penstock.spark.config import ChangelogPipelineConfig
from penstock.spark.target import Applied
from tests.spark.tables import LOG_ID

Row = dict[str, Any]
UNSIGNED = ("commit_digest", "check", "key_hash")


def changelog(path: Path, *collections: str, **more: Any) -> ChangelogPipelineConfig:
    """A pipeline into `path`."""
    said = {"to": "changelog", "source": "shop", "collections": collections, "path": str(path)}
    return ChangelogPipelineConfig.model_validate(said | more)


def bounds(head: int, *, trimmed: int = 0, log_id: int = LOG_ID) -> Bounds:
    """Of a log that ends at `head`."""
    return Bounds(
        log_id=log_id,
        trimmed=trimmed,
        trimmed_check=0,
        head=head,
        head_commit=head,
        head_check=0,
        ancestors=(),
    )


def started(
    config: ChangelogPipelineConfig, head: int = 1000, *, name: str = "p"
) -> ChangelogTarget:
    """A run that begins now."""
    target = ChangelogTarget(name, config)
    target.start(bounds(head))
    return target


def add(
    target: ChangelogTarget,
    entries: pa.Table,
    *,
    until: int | None = None,
    parts: int = 1,
    log_id: int = LOG_ID,
) -> Applied:
    """Apply one batch as Spark would, in `parts` partitions, in this process."""
    rows = entries.num_rows
    edges = [rows * part // parts for part in range(parts + 1)]

    def run(work: Work) -> pa.Table:
        return pa.Table.from_batches(
            made
            for start, stop in itertools.pairwise(edges)
            for made in work(entries.slice(start, stop - start).to_batches())
        )

    sequences: list[Any] = entries["sequence"].to_pylist()
    last = until if until is not None else sequences[-1]
    return target.add(run, 0, until=Progress(log_id, last, 1))


def expected(entries: pa.Table) -> list[Row]:
    """What a changelog has of `entries`: each as it is, 64 unsigned bits read as signed."""
    rows: list[Row] = entries.to_pylist()
    for row in rows:
        for name in UNSIGNED:
            if row[name] is not None and row[name] >= 1 << 63:
                row[name] -= 1 << 64
    return rows


def rows_of(config: ChangelogPipelineConfig) -> list[Row]:
    """The changelog's entries by sequence, without the columns of its folders."""
    if config.format == "delta":
        if not DeltaTable.is_deltatable(config.path):
            return []
        table = DeltaTable(config.path).to_pyarrow_table()
        own = {"date", "collection_folder"}
        folders = [str(name) for name in table.column_names if name in own]
        rows: list[Row] = table.drop_columns(folders).to_pylist()
    else:
        # As whoever knows nothing of Penstock: every Parquet file that is there.
        files: list[Any] = [pq.ParquetFile(one) for one in Path(config.path).glob("**/*.parquet")]
        rows = [row for file in files for row in file.read().to_pylist()]
    return sorted(rows, key=lambda row: row["sequence"])


def files_of(config: ChangelogPipelineConfig) -> list[str]:
    """All of a folder's files but Delta's, by name."""
    root = Path(config.path)
    names = [file.relative_to(root) for file in root.rglob("*") if file.is_file()]
    return sorted(str(name) for name in names if not name.parts[0].startswith("_"))


def counted(config: ChangelogPipelineConfig) -> list[str]:
    """The files that the Delta log, or the manifest, says are in it."""
    table = DeltaTable(config.table_path(""))
    if config.format == "parquet":
        paths: list[Any] = table.to_pyarrow_table()["path"].to_pylist()
        return sorted(paths)
    return sorted(uri.removeprefix(f"{config.path}/") for uri in table.file_uris())


def sequences_of(file: Path) -> list[int]:
    """Those of the entries in one file."""
    read: Any = pq.ParquetFile(file)
    sequences: list[int] = read.read()["sequence"].to_pylist()
    return sequences
