"""The section [processes]: how the processes of `penstock run` watch each other."""

from typing import Final

from pydantic import Field

from penstock.config import Config, Seconds

BEAT_SECONDS: Final = 1.0
"""How often a process says that it does something."""


class ProcessesConfig(Config):
    """The processes of `penstock run`."""

    hung_after: Seconds = Field(
        60.0,
        ge=5 * BEAT_SECONDS,
        le=3600,
        description="A process that lives but does nothing for so long is killed and started "
        "again; nothing is lost by it.",
    )
