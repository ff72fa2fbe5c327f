"""Capture: the engine that moves every change of a source into the log.

It opens no socket, thread or file and reads no clock: `pump` moves, `supervise` decides what an
error means, and both are plain asyncio over the ports that they are given.
"""

from penstock.capture.pump import PumpLimits, PumpProgress, pump
from penstock.capture.supervise import (
    Backoff,
    Clock,
    SourceStatus,
    Supervised,
    Supervisor,
)

__all__ = [
    "Backoff",
    "Clock",
    "PumpLimits",
    "PumpProgress",
    "SourceStatus",
    "Supervised",
    "Supervisor",
    "pump",
]
