"""The contracts of the ports: what an adapter promises, as tests to inherit.

    class TestMyLog(ChangeLogContract):
        def open_log(self, folder, *, config, clock): return MyLog(folder)

Importing this package needs pytest and hypothesis.
"""

from penstock.testing.contracts.above import AboveContract
from penstock.testing.contracts.captures import CaptureServerContract
from penstock.testing.contracts.checkpoints import CheckpointStoreContract
from penstock.testing.contracts.copies import CopyContract
from penstock.testing.contracts.durable import DurableLogContract
from penstock.testing.contracts.log import ChangeLogContract, ManualClock
from penstock.testing.contracts.ranges import RangeContract
from penstock.testing.contracts.source import SourceContract
from penstock.testing.contracts.store import StoreContract
from penstock.testing.contracts.store_indexes import StoreIndexContract

__all__ = [
    "AboveContract",
    "CaptureServerContract",
    "ChangeLogContract",
    "CheckpointStoreContract",
    "CopyContract",
    "DurableLogContract",
    "ManualClock",
    "RangeContract",
    "SourceContract",
    "StoreContract",
    "StoreIndexContract",
]
