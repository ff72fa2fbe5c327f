"""Whose a Delta table in a folder is: its commits name their pipeline."""

# The stubs of pyarrow leave file systems and element types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from msgspec import Struct

_APP: Final = "penstock/"
RECENT_COMMITS: Final = 100
"""Among so many a RESTORE is looked for, behind which others may have written or tidied."""


def owners_of(table: DeltaTable, *, storage: Mapping[str, str]) -> set[str]:
    """The pipelines that have committed to `table`; none for one that its users made."""
    said = {str(commit.get("penstock.pipeline", "")) for commit in table.history()}
    return {name for name in said if name} or set(_in_checkpoint(table, storage))


class Commit(Struct, frozen=True, kw_only=True):
    """What a commit of a table says of itself."""

    version: int
    at_ms: int
    operation: str
    parameters: Mapping[str, Any]
    is_ours: bool
    """A pipeline's."""

    def restored(self, earlier: Iterable["Commit"]) -> int:
        """The version to which a RESTORE took the table; -1 where that cannot be told."""
        if (version := self.parameters.get("version")) is not None:
            return int(version)
        if (moment := self.parameters.get("datetime")) is not None:
            return max((one.version for one in earlier if one.at_ms <= int(moment)), default=-1)
        return -1


def is_short(commits: Sequence[Commit]) -> bool:
    """Whether a table, which has made these commits, the newest first, lacks one of a pipeline
    since somebody took it back by RESTORE. Pure."""
    upto, lacks = sys.maxsize, False
    for at, commit in enumerate(commits):
        if commit.version > upto:
            lacks = lacks or commit.is_ours
        elif commit.operation == "RESTORE":
            upto = commit.restored(commits[at + 1 :])
        elif commit.is_ours:
            return lacks
    # What it was taken back to is further away than these.
    return lacks or upto < sys.maxsize


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
