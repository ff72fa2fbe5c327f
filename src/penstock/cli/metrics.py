"""Capture's metrics, as they come to the serve process, whose page shows them.

In a module of their own: capture has no page, and would import all of HTTP for it.
"""

import base64
import zlib
from typing import Any

from penstock.telemetry import REGISTRY, exposition


async def metrics(_: dict[str, Any]) -> dict[str, Any]:
    """The answer of capture to the request `metrics`: compressed, for an answer has a limit."""
    return {"exposition": base64.b64encode(zlib.compress(exposition(REGISTRY))).decode()}


def told(answer: dict[str, Any]) -> bytes:
    """What such an answer tells, in Prometheus's text format."""
    return zlib.decompress(base64.b64decode(answer["exposition"]))
