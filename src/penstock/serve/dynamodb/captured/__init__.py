"""DynamoDB Streams of whatever the log holds: every captured collection is a table with a stream.

    names.py      collections as tables, sequences as sequence numbers, both ways
    values.py     documents and keys (Extended JSON) as AttributeValues
    changes.py    an event as records, and which views it can fill
    facts.py      what is known of streams and shards, and what each entry makes of it: pure
    index.py      that, kept beside the log by a reader of the log
    endpoint.py   the index and the log, as the operations see them
    operations.py the operations

Decisions: docs/decisions/0019-captured-streams.md.
"""
