"""What a destination knows of the tables of its database."""

from msgspec import Struct

from penstock.spark.replica.keys import Forms
from penstock.spark.replica.place import Stream


class Known(Struct, kw_only=True):
    """What was read when the connection was opened, and written since.

    Tables and forms are read again in each transaction: a replay may run beside the pipeline.
    """

    streams: dict[str, tuple[str, Stream]] = {}
    """By table: its pipeline, and what is replicated into it."""
    stale: dict[str, dict[str, int]] = {}
    """By table and key: the sequence of the change that the row lacks."""
    forms: dict[str, Forms] = {}
    """By table: what its key holds."""

    def copy(self) -> "Known":
        """For a transaction, which may be undone."""
        return Known(
            streams=dict(self.streams),
            stale={name: dict(keys) for name, keys in self.stale.items()},
            forms=dict(self.forms),
        )

    def owned(self, pipeline: str) -> dict[str, Stream]:
        """The pipeline's own tables."""
        return {name: stream for name, (owner, stream) in self.streams.items() if owner == pipeline}
