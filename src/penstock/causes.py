"""What a database's error is about."""

from enum import Enum, auto
from typing import NamedTuple


class Outlook(Enum):
    """What can be done about it."""

    AWAY = auto()
    """It may pass."""
    REFUSED = auto()
    """Somebody must change the configuration, or the server's."""
    OTHER = auto()


class Cause(NamedTuple):
    """What happened, and the next step, as a sentence."""

    outlook: Outlook
    what: str
    remedy: str
