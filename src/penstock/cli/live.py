"""What a running service takes over of a changed configuration, and who does."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.cli.config import Settings

LIVE: Final[dict[str, frozenset[str] | None]] = {
    "log": frozenset({"retention", "retention_bytes", "retention_events"}),
    "capture": None,
    "alerts": None,
    "logging": None,
    "checkpoint": frozenset({"interval", "event_count", "on_shutdown"}),
    "serve": frozenset(
        {
            "health_lag_max",
            "max_connections",
            "heartbeat_interval",
            "batch_events_max",
            "batch_bytes_max",
            "captures",
            "outbox_bytes_max",
            "catch_up_threshold",
            "coalesce_insert_delete",
            "coalesce_window_events",
            "coalesce_window_bytes",
        }
    ),
}
"""By section, the settings that hold without a restart; None: all of them. Of [serve], the ones of
a stream hold for readers who connect from then on."""


class Reloads:
    """Tells whoever runs in this process of a configuration that was taken over."""

    def __init__(self) -> None:
        self._takers: list[Callable[[Settings], None]] = []

    def on_reload(self, taker: "Callable[[Settings], None]") -> None:
        """Have `taker` get the settings from now on. It takes what it can, and raises nothing."""
        self._takers.append(taker)

    def take(self, settings: "Settings") -> None:
        """Tell them all."""
        for taker in self._takers:
            taker(settings)
