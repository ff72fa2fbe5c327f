"""An embedded store (`penstock.store`) as a source: its tables' changes into the log."""

from penstock.sources.store.config import StoreSourceConfig
from penstock.sources.store.source import StoreSource

__all__ = ["StoreSource", "StoreSourceConfig"]
