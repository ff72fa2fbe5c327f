"""How capture treats its sources, whatever their kind."""

from typing import Any

from pydantic import Field, field_validator

from penstock.config import Bytes, Config, Seconds


class CaptureConfig(Config):
    """Retries, and when a source is no longer called healthy."""

    retry_delay: Seconds = Field(
        0.25,
        gt=0,
        le=600,
        description="Wait after a source's first failure; it doubles with each one in a row.",
    )
    retry_delay_max: Seconds = Field(
        30.0, gt=0, le=3600, description="The longest such wait. A source is retried for ever."
    )
    breaker_failures: int = Field(
        5,
        ge=1,
        description="After so many failures in a row a source is left alone for breaker_pause, and "
        "then tried once at a time until a change is durable again.",
    )
    breaker_pause: Seconds = Field(
        30.0,
        ge=0,
        le=3600,
        description="For how long, and up to a half longer: "
        "sources that failed together come back apart.",
    )
    unhealthy_failures: int = Field(
        10,
        ge=1,
        description="A source that failed so often in a row makes the service unhealthy. It is "
        "retried all the same: to stop trying would be an outage too.",
    )
    silent_after: Seconds | None = Field(
        300.0,
        gt=0,
        description="A source that has had no change for so long is called silent: degraded, for a "
        "look at whether it should be. It is no gap: nothing is missing. 'none' turns it off.",
    )
    time_to_loss_min: Seconds = Field(
        3600.0,
        ge=0,
        description="When a source will discard what we have not captured yet in less than this, "
        "it is degraded, and an alert is sent. 0 turns it off.",
    )

    quotas: dict[str, Bytes] = Field(
        default={},
        description="By source: at most this many bytes within [log] retention, so that it cannot "
        "push out the others' history. A source that has written them waits, and is degraded.",
    )

    @field_validator("silent_after", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return None if value == "none" else value
