"""Capture: the engine that moves every change of a source into the log.

It opens no socket, thread or file and reads no clock: `pump` moves, `supervise` decides what an
error means, and both are plain asyncio over the ports that they are given.
"""

from penstock.capture.pump import PumpLimits, PumpProgress, pump
from penstock.capture.status import Health, SourceStatus, State, health_of, worst
from penstock.capture.supervise import Backoff, Clock, Supervised, Supervisor

__all__ = [
    "Backoff",
    "Clock",
    "Health",
    "PumpLimits",
    "PumpProgress",
    "SourceStatus",
    "State",
    "Supervised",
    "Supervisor",
    "health_of",
    "pump",
    "worst",
]
