"""The settings of the endpoint for zero-cache."""

from pathlib import Path
from typing import Any, Self, cast

import msgspec
from pydantic import Field, field_validator, model_validator

from penstock.config import Bytes, Seconds
from penstock.zero.config import ZeroTablesConfig


class ZeroConfig(ZeroTablesConfig):
    """Serve tables to zero-cache, over WebSocket at `http`, below /changes."""

    publications: dict[str, tuple[str, ...]] = Field(
        default_factory=dict[str, tuple[str, ...]],
        description="Views, by name: the tables of each. A shard that names publications gets "
        "their tables; one that names none gets all.",
    )
    permissions: Path | dict[str, Any] | None = Field(
        default=None,
        description="The permissions of clients' queries: a JSON file as zero-deploy-permissions "
        "makes it with --output-format json, or the same here. Without, none: then queries are "
        "the server's (ZERO_QUERY_URL).",
    )
    token_parameters: tuple[str, ...] = Field(
        default=("apiKey", "token"),
        description="Parameters of the URL that may carry an access token: zero-cache sends no "
        "header. zero-cache writes the URL to its own log.",
    )
    hold: Seconds = Field(
        default=86_400.0,
        ge=0,
        description="How long the log keeps, whatever retention says, what follows a shard's last "
        "acknowledgement; 0: not at all.",
    )
    hold_bytes: Bytes = Field(
        default=1 << 30,
        ge=0,
        description="But only while the log takes at most so much more than retention_bytes, and "
        "never more than a quarter of that.",
    )
    status_interval: Seconds = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="How often a shard is told of commits that do not concern it, so that the log "
        "need not keep them for it.",
    )
    connections_max: int = Field(
        default=200, gt=0, le=10_000, description="Connections at once; one more is refused."
    )
    shards_max: int = Field(
        default=1_000,
        gt=0,
        le=100_000,
        description="Shards that are remembered. Beyond, the one that stayed away longest is "
        "forgotten if its hold is over, and else the new one is refused.",
    )
    liveness_timeout: Seconds = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="A client that takes nothing for so long, or does not answer a ping, is "
        "disconnected. zero-cache stops reading while its own database is behind.",
    )
    batch_bytes_max: Bytes = Field(
        default=1 << 20,
        ge=1 << 10,
        le=64 << 20,
        description="What is read of the log, or of the current rows, at once for one shard. A "
        "slow one holds a few times as much memory.",
    )

    @field_validator("token_parameters")
    @classmethod
    def _own(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in _TAKEN:
                raise ValueError(f"{name!r} is a parameter of the protocol; take another name")
        return names

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, tables in self.publications.items():
            if not tables:
                raise ValueError(f"publications.{name} has no tables; name some, or leave it out")
            for table in tables:
                if table not in self.tables and table not in self.sources:
                    raise ValueError(
                        f"publications.{name} names {table!r}, and there is no "
                        f"[serve.zero.tables.{table}] or [serve.zero.sources.{table}]"
                    )
        if not self.tables and not self.sources:
            raise ValueError(
                "there are no tables: add [serve.zero.tables.NAME], or [serve.zero.sources.NAME] "
                "for every collection of a source"
            )
        return self

    @property
    def source_names(self) -> frozenset[str]:
        """The sources that it is about."""
        own = [one.source for one in (self.clients, self.mutations) if one is not None]
        return frozenset(one.source for one in self.tables.values()) | self.sources.keys() | {*own}

    def permission_values(self) -> dict[str, Any] | None:
        """The permissions. Raises ValueError for a file that is no JSON object."""
        if not isinstance(self.permissions, Path):
            return self.permissions
        try:
            found: Any = msgspec.json.decode(self.permissions.read_bytes())
        except OSError as error:
            raise ValueError(
                f"permissions {self.permissions} cannot be read ({error.strerror})"
            ) from None
        except msgspec.DecodeError:
            raise ValueError(f"permissions {self.permissions} is no JSON") from None
        if not isinstance(found, dict):
            raise ValueError(  # noqa: TRY004 - of a setting
                f"permissions {self.permissions} is no JSON object"
            )
        return cast("dict[str, Any]", found)

    def beside(self, folder: Path) -> "ZeroConfig":
        """With a relative path made relative to `folder`."""
        if not isinstance(self.permissions, Path):
            return self
        return self.model_copy(update={"permissions": folder / self.permissions})


_TAKEN = frozenset(
    {"appID", "shardNum", "shardID", "publications", "lastWatermark", "replicaVersion"}
)
