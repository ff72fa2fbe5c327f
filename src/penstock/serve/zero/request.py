"""What a client of `/changes/v0/stream` asks for, by its URL. Pure.

Two dialects, told apart by their parameters: that of zero-cache as it ships (`appID`, `shardNum`,
`publications`, and `lastWatermark` with `replicaVersion`), and that of the first design of custom
backends (`shardID` and `lastWatermark`). Whatever else is in the URL is its user's own: an access
token, for example. No error repeats a value of the URL (Z9).
"""

import re
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import parse_qsl

from msgspec import Struct

from penstock.errors import RequestError
from penstock.serve.zero.watermarks import Watermark, read_watermark
from penstock.zero.lexi import number_of

VERSIONS: Final = ("v0",)
PATHS: Final = "/changes/"
Dialect = Literal["shipped", "design"]

_APP: Final = re.compile(r"[a-z0-9_]{1,63}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SHARD: Final = re.compile(r"[A-Za-z0-9_]{1,63}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NAMES_MAX: Final = 64
_ONCE: Final = ("shardID", "appID", "shardNum", "lastWatermark", "replicaVersion")
_DESIGN_APP: Final = "zero"
"""The application of who names none."""


class Shard(Struct, frozen=True):
    """Who asks, as it calls itself; its principal tells apart those of one name."""

    dialect: Dialect
    app: str
    number: str

    @property
    def name(self) -> str:
        """For people, and for the record: no two shards of a principal have the same."""
        return f"{self.app}/{self.number}" if self.dialect == "shipped" else self.number

    @property
    def schema(self) -> str:
        """Of the tables that are its own."""
        return f"{self.app}_{self.number}"


class ZeroRequest(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    shard: Shard
    publications: tuple[str, ...] = ()
    """Names of views, sorted; none: everything."""
    last: Watermark | None = None
    """The commit that it has last; None for all rows anew."""
    replica: str = ""
    """The watermark of the snapshot that it began with, where it says so."""


def refused_version(path: str) -> str | None:
    """Why there is nothing at a path below /changes; None where there is."""
    _, _, rest = path.partition(PATHS)
    version, _, stream = rest.partition("/")
    if stream != "stream":
        return "there is nothing here: the change stream is at /changes/v0/stream"
    if version not in VERSIONS:
        return (
            f"this endpoint speaks version {' and '.join(VERSIONS)} of Zero's change source "
            f"protocol, at /changes/v0/stream, and no other. Upgrade Penstock, or use a zero-cache "
            f"that speaks one of these"
        )
    return None


def parse_request(query: str) -> ZeroRequest:
    """The request that a query string is. Raises RequestError, which says what is wrong with it."""
    pairs = parse_qsl(query, keep_blank_values=True)
    once: dict[str, str] = {}
    for name, value in pairs:
        if name in once:
            raise _wrong(f"{name} is given more than once")
        if name in _ONCE:
            once[name] = value
    shard = _shard(once)
    names = {value for name, value in pairs if name == "publications"} - {""}
    if len(names) > _NAMES_MAX or any(not _NAME.fullmatch(name) for name in names):
        raise _wrong(
            f"publications must be names of [serve.zero.publications], at most {_NAMES_MAX}"
        )
    last, replica = _place(once, shard)
    return ZeroRequest(shard=shard, publications=tuple(sorted(names)), last=last, replica=replica)


def _shard(once: Mapping[str, str]) -> Shard:
    if "shardID" in once:
        if "appID" in once or "shardNum" in once:
            raise _wrong("shardID, and appID with shardNum, are two ways to name a shard: give one")
        if not _SHARD.fullmatch(once["shardID"]):
            raise _wrong("shardID must be letters, digits and '_', at most 63")
        return Shard("design", _DESIGN_APP, once["shardID"])
    missing = [name for name in ("appID", "shardNum") if name not in once]
    if missing:
        raise _wrong(
            f"{' and '.join(missing)} must say which shard asks, as zero-cache does by itself"
        )
    if not _APP.fullmatch(once["appID"]):
        raise _wrong("appID must be small letters, digits and '_', at most 63")
    if not _NUMBER.fullmatch(once["shardNum"]):
        raise _wrong("shardNum must be a number")
    return Shard("shipped", once["appID"], once["shardNum"])


def _place(once: Mapping[str, str], shard: Shard) -> tuple[Watermark | None, str]:
    given = once.get("lastWatermark")
    # Anybody's own parameter, in the other dialect.
    replica = once.get("replicaVersion") if shard.dialect == "shipped" else None
    if shard.dialect == "shipped" and (given is None) is not (replica is None):
        raise _wrong("lastWatermark and replicaVersion belong together: give both, or neither")
    for name, value in (("lastWatermark", given), ("replicaVersion", replica)):
        if value is not None and not _is_watermark(value):
            raise _wrong(f"{name} is no watermark: those are LexiVersions, as 01 or 1rs")
    # No other endpoint's watermark of two parts is one of ours, and neither is 0.
    return None if given is None else _last(given), replica or ""


def _is_watermark(text: str) -> bool:
    try:
        for part in text.split(".", 1):
            number_of(part)
    except ValueError:
        return False
    return True


def _last(watermark: str) -> Watermark:
    return Watermark(0, None) if "." in watermark else read_watermark(watermark)


def _wrong(why: str) -> RequestError:
    return RequestError(f"{why}. Nothing was sent. See the reference of Zero for the parameters.")
