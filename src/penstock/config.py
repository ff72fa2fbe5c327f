"""Primitives of configuration: sizes, durations, secrets and addresses.

Each adapter declares its own `Config` from these; docs, `--help` and the checks come from there.
"""

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
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
_SIZE_MAX = (1 << 63) - 1
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_DURATION_UNITS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}
_DURATION_MAX = 36_500 * 86_400


def require_mongodb(uri: SecretStr) -> SecretStr:
    """Raises ValueError, which quotes nothing, for what is no connection string of MongoDB."""
    if not uri.get_secret_value().startswith(("mongodb://", "mongodb+srv://")):
        raise ValueError("it must begin with mongodb:// or mongodb+srv://")
    return uri


def parse_size(value: Any) -> Any:
    """Bytes from "10GiB", "10G", "1TB" or a plain number. K, M, G, T are powers of 1024 (P23).

    A fraction of a byte is cut off. Raises ValueError for an unknown unit, a negative number, one
    of 64 bits and more, and for true and false; what is no text or number is left to pydantic.
    """
    size = value
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        unit = _SIZE_UNITS.get(found[2].upper()) if found else None
        if found is None or unit is None:
            raise ValueError(
                f"{value!r} is not a size; write a number with B, KiB, MiB, GiB, TiB (powers of "
                f"1024; K, M, G, T mean the same) or KB, MB, GB, TB (powers of 1000)"
            )
        size = int(Fraction(found[1]) * unit)
    if isinstance(size, bool) or (isinstance(size, int) and not 0 <= size <= _SIZE_MAX):
        raise ValueError(f"{value!r} is not a size; it must be from 0 to {_SIZE_MAX} bytes")
    return size


def parse_duration(value: Any) -> Any:
    """Seconds from "500ms", "30s", "5m", "7d" or a plain number of seconds.

    Raises ValueError for an unknown unit, a negative number, more than 36500 days, and for true
    and false; what is no text or number is left to pydantic.
    """
    seconds = value
    if isinstance(value, str):
        found = _DURATION.fullmatch(value.strip())
        if found is None or found[2] not in _DURATION_UNITS:
            raise ValueError(f"{value!r} is not a duration; write a number with ms, s, m, h or d")
        seconds = Fraction(found[1]) * _DURATION_UNITS[found[2]]
    if isinstance(seconds, bool) or (
        # Written so that it refuses NaN too, which compares with nothing.
        isinstance(seconds, int | float | Fraction) and not 0 <= seconds <= _DURATION_MAX
    ):
        raise ValueError(f"{value!r} is not a duration; it must be from 0 to 36500 days")
    return float(seconds) if isinstance(seconds, Fraction) else seconds


Bytes = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]


class Config(BaseModel):
    """The base of every configuration: frozen, and a typo is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
