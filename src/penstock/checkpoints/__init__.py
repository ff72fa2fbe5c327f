"""Published copies of where a log and its sources stand, kept away from the log's disk.

The truth is the position beside the events, in the log itself: a published copy may lag it and
never leads it. It is what is left when the disk is gone. `open_store` opens the configured one.
"""

from penstock.checkpoints.config import CheckpointConfig
from penstock.checkpoints.opening import open_store

__all__ = ["CheckpointConfig", "open_store"]
