"""Any server of Zero's change source protocol as a source (record 0025)."""

from penstock.sources.zero.config import ZeroSourceConfig
from penstock.sources.zero.source import ZeroSource

__all__ = ["ZeroSource", "ZeroSourceConfig"]
