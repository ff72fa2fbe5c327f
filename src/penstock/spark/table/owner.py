"""Whose a Delta table in a folder is: its commits name their pipeline."""

# The stubs of pyarrow leave file systems and element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

_APP: Final = "penstock/"
RECENT_COMMITS: Final = 100
"""Among so many a RESTORE is looked for, behind which others may have written or tidied."""


def owners_of(table: DeltaTable, *, storage: Mapping[str, str]) -> set[str]:
    """The pipelines that have committed to `table`; none for one that its users made."""
    said = {str(commit.get("penstock.pipeline", "")) for commit in table.history()}
    return {name for name in said if name} or set(_in_checkpoint(table, storage))


def ends_restored(commits: Iterable[tuple[str, bool]]) -> bool:
    """Whether among a table's commits, the newest first, a RESTORE comes before any of a pipeline.
    Each is told by its operation, and whether it is a pipeline's. Pure."""
    for operation, is_ours in commits:
        if operation == "RESTORE" or is_ours:
            return not is_ours
    return False


def _in_checkpoint(table: DeltaTable, storage: Mapping[str, str]) -> Iterator[str]:
    """Those whose app transactions it has, where the commits themselves were cleaned up."""
    handler: Any = DeltaStorageHandler(table.table_uri, dict(storage) or None)
    files: Any = pafs.PyFileSystem(handler)
    last = files.get_file_info("_delta_log/_last_checkpoint")
    if last.type is not pafs.FileType.File:
        return
    with files.open_input_stream(last.path) as stream:
        version = json.loads(stream.read())["version"]
    start = f"{version:020d}.checkpoint."
    for info in files.get_file_info(pafs.FileSelector("_delta_log")):
        name = info.path.rpartition("/")[2]
        if name.startswith(start) and name.endswith(".parquet"):
            rows = pq.read_table(info.path, columns=["txn"], filesystem=files)
            for row in rows.to_pylist():
                app = (row.get("txn") or {}).get("appId") or ""
                if app.startswith(_APP):
                    yield app.removeprefix(_APP).removesuffix("/log").partition("/view/")[0]
