"""The durable, ordered log: in LMDB, and in memory for tests and demonstrations."""
