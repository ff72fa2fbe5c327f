"""Which store a configuration means."""

from penstock.checkpoints.config import CheckpointConfig
from penstock.ports import CheckpointStore


def open_store(config: CheckpointConfig) -> CheckpointStore | None:
    """The configured store, or None without one; it connects only when it is used.

    Raises ImportError for a store whose extra is not installed.
    """
    if config.store == "etcd":
        from penstock.checkpoints.etcd import EtcdCheckpoints

        return EtcdCheckpoints(config)
    if config.store == "mongodb":
        from penstock.checkpoints.mongodb import MongoCheckpoints

        return MongoCheckpoints(config)
    return None
