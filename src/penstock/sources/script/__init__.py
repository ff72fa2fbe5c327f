"""The simulated shop as a source: for demos, tests and benchmarks; it needs no database."""

from penstock.sources.script.shop import COLLECTIONS, Shop
from penstock.sources.script.source import ScriptSource, ScriptSourceConfig

__all__ = ["COLLECTIONS", "ScriptSource", "ScriptSourceConfig", "Shop"]
