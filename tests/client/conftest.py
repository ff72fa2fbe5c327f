"""The same logs and servers as for the servers' own tests."""

from tests.serve.conftest import log, serve

__all__ = ["log", "serve"]
