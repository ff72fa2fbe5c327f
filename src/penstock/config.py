"""Primitives of configuration: sizes, durations, secrets and addresses.

Each adapter declares its own `Config` from these; docs, `--help` and the checks come from there.
"""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "K": 1 << 10,
    "KIB": 1 << 10,
    "KB": 1000,
    "M": 1 << 20,
    "MIB": 1 << 20,
    "MB": 1000**2,
    "G": 1 << 30,
    "GIB": 1 << 30,
    "GB": 1000**3,
    "T": 1 << 40,
    "TIB": 1 << 40,
    "TB": 1000**4,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: Any) -> Any:
    """Bytes from "10GiB", "10G", "1TB" or a plain number. K, M, G, T are powers of 1024 (P23).

    Raises ValueError for an unknown unit.
    """
    if not isinstance(text, str):
        return text
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ValueError(
            f"{text!r} is not a size; write a number with B, KiB, MiB, GiB, TiB (powers of 1024; "
            f"K, M, G, T mean the same) or KB, MB, GB, TB (powers of 1000)"
        )
    return int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit


def parse_duration(text: Any) -> Any:
    """Seconds from "500ms", "30s", "5m", "7d" or a plain number of seconds.

    Raises ValueError for an unknown unit.
    """
    if not isinstance(text, str):
        return text
    found = _DURATION.fullmatch(text.strip())
    if found is None or found[2] not in _DURATION_UNITS:
        raise ValueError(f"{text!r} is not a duration; write a number with ms, s, m, h or d")
    return float(found[1]) * _DURATION_UNITS[found[2]]


Bytes = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]


class Config(BaseModel):
    """The base of every configuration: frozen, and a typo is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
