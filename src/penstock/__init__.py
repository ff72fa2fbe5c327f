"""Penstock captures every committed change of a database once and serves it to anyone."""

__version__ = "0.1.0.dev0"
