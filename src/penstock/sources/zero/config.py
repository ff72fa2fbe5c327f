"""What a source of Zero's protocol can be told."""

import re
from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator

from penstock.capture.tenant import TenantRule
from penstock.config import Bytes, Config, Seconds
from penstock.sources.zero.scope import Scope
from penstock.zero.messages import PATH

RESERVED: Final = frozenset(
    {"appID", "shardNum", "publications", "lastWatermark", "replicaVersion", "shardID"}
)
_SCHEMES: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_VERSIONED: Final = re.compile("/changes/v([0-9]+)/stream")


class ZeroSourceConfig(Config):
    """Capture what a server of Zero's change source protocol streams."""

    type: Literal["zero"] = "zero"
    url: SecretStr = Field(
        description="Where it is: `wss://host/changes/v0/stream`, with parameters of its own, such "
        "as a key of access. Those that the protocol has are ours to set."
    )
    app_id: str = Field(
        "penstock",
        pattern="^[a-z0-9_]+$",
        max_length=60,
        description="Who we are to the server: with `shard`, the view of its data that we follow. "
        "Nobody else may have both.",
    )
    shard: int = Field(0, ge=0, le=9999, description="As `app_id`.")
    publications: tuple[str, ...] = Field(
        (), description="What to ask the server for, where it has several offers."
    )
    dialect: Literal["shipped", "first"] = Field(
        "shipped",
        description="How to ask and acknowledge: as zero-cache does, or as in the protocol's first "
        "design (`shardID`, `ack`).",
    )
    include: tuple[str, ...] = Field(
        (),
        description="Tables to capture: `public.item`, with * and ? as wildcards. Empty: all but "
        "Zero's own. What is included is captured even if it is excluded.",
    )
    exclude: tuple[str, ...] = Field((), description="Tables to leave out; as `include`.")
    tenant: Annotated[str, Field(min_length=1)] | TenantRule | None = Field(
        None,
        description="Whose an event is: a constant, or `{field = ...}` of the row, "
        "`{id_prefix = ...}` or `{id_field = ...}` of its key. Default: the table's schema.",
    )
    start: Literal["snapshot", "now"] = Field(
        "snapshot",
        description="Where to start without a position: with a copy of what is there, or at the "
        "next transaction. The server sends its rows in either case.",
    )
    on_position_lost: Literal["halt", "snapshot", "gap"] = Field(
        "halt",
        description="When the server says that we must begin anew: a gap is recorded, and capture "
        "stops, copies everything again, or goes on from now.",
    )
    heartbeat_seconds: Seconds = Field(
        5.0, gt=0, le=600, description="Say that the server is quiet at least so often."
    )
    ping_seconds: Seconds = Field(
        20.0, gt=0, le=3600, description="Ask so often whether the server is there,"
    )
    ping_timeout: Seconds = Field(
        20.0, gt=0, le=3600, description="and take it for gone when it does not say for so long."
    )
    connect_timeout: Seconds = Field(
        10.0, gt=0, le=3600, description="Wait so long for a connection."
    )
    message_bytes_max: Bytes = Field(
        100 << 20, ge=1 << 10, le=1 << 30, description="A longer message is refused."
    )

    @field_validator("url")
    @classmethod
    def _checked(cls, url: SecretStr) -> SecretStr:
        # No part of it may be in a message but what is not secret: its query has keys of access.
        try:
            parts = urlsplit(url.get_secret_value())
            valid = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
            (parts.hostname or "").encode("idna")  # as whoever looks it up does
        except ValueError:
            raise ValueError("it is no URL; write wss://host/changes/v0/stream") from None
        if not valid:
            raise ValueError("it must begin with ws:// or wss://, and name a host")
        if parts.fragment:
            raise ValueError("a part behind # is never sent to the server; leave it out")
        if parts.path != PATH:
            other = _VERSIONED.fullmatch(parts.path)
            which = f"version {other[1]} of the protocol" if other else "another path"
            raise ValueError(f"its path must be {PATH}, and it has {which}")
        taken = RESERVED & {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
        if taken:
            raise ValueError(
                f"{', '.join(sorted(taken))} is set by Penstock itself (app_id, shard, "
                f"publications); take it out of the URL"
            )
        return url

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if not all(pattern.partition(".")[::2]):
                raise ValueError(f"{pattern!r} names no table; write schema.table")
        return patterns

    @property
    def scope(self) -> Scope:
        """Which tables are captured, as a position keeps it."""
        # In the first design's dialect the server chooses the application's name.
        app = "*" if self.dialect == "first" else self.app_id
        shard = f"{self.app_id}_{self.shard}"
        own = (f"{shard}.*", f"{app}_{shard}.*", f"{app}.permissions")
        return Scope(tuple(sorted(set(self.include))), tuple(sorted(set(self.exclude))), own=own)

    @property
    def has_tls(self) -> bool:
        """Whether the URL asks for TLS."""
        return _SCHEMES[urlsplit(self.url.get_secret_value()).scheme] == "wss"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urlsplit(self.url.get_secret_value())
        return parts.hostname or "", parts.port or (443 if self.has_tls else 80)

    def address(self, *, watermark: str | None, replica: str) -> str:
        """What to connect to: for everything, or for what follows a commit. It has secrets."""
        parts = urlsplit(self.url.get_secret_value())
        asked = [("appID", self.app_id), ("shardNum", str(self.shard))]
        asked += [("publications", one) for one in self.publications]
        if self.dialect == "first":
            asked = [("shardID", f"{self.app_id}_{self.shard}")]
        if watermark is not None:
            asked.append(("lastWatermark", watermark))
            if self.dialect == "shipped":
                asked.append(("replicaVersion", replica))
        query = "&".join(filter(None, (parts.query, urlencode(asked))))
        scheme = _SCHEMES[parts.scheme]
        return urlunsplit((scheme, parts.netloc, parts.path, query, ""))
