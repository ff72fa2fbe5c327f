"""The archive: what the log held, as Parquet files with a manifest, after retention removed it.

    config.py    [archive]
    log.py       what it needs of a log
    manifest.py  what an archive says of itself; pure
    planning.py  which ranges are due, and where they end; pure
    place.py     the folder or bucket
    writing.py   log -> archive, a pass at a time
    reading.py   archive -> Arrow batches
    selecting.py which rows a reader wants; pure
    joining.py   where reading passes from it to its log
    tiered.py    archive and live log behind one client; log/tiered.py within the service
    opening.py   which client: that one, or the log's alone

What is promised, and why it is so: docs/decisions/0030-archive.md.
"""
