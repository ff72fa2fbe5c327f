"""A changelog's driver without Spark, to be killed: adding.py PATH FORMAT ENTRIES.

It goes on where the changelog is and adds one commit after the other, tidying all the time.
"""

import sys
from pathlib import Path

import pyarrow as pa

from penstock.spark.changelogs import ChangelogTarget
from tests.spark.changelogs import add, bounds, changelog

if __name__ == "__main__":
    path, form, file = sys.argv[1:]
    entries = pa.ipc.open_file(file).read_all()
    config = changelog(Path(path), format=form, compact_every=3, vacuum_every=3)
    target = ChangelogTarget("p", config)
    after = target.start(bounds(entries.num_rows)).sequence
    print(after, flush=True)
    ends = entries["ends_commit"].to_pylist()
    for end, last in enumerate(ends, start=1):
        if end > after and last:
            add(target, entries.slice(after, end - after), parts=2)
            target.save(0)
            after = end
