"""What a MySQL or MariaDB source can be told."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.capture.tenant import TenantRule
from penstock.config import Config, Seconds
from penstock.sources.mysql.scope import Scope


class MysqlSourceConfig(Config):
    """Capture the row changes of a MySQL or MariaDB server from its binlog."""

    type: Literal["mysql"] = "mysql"
    host: str = Field("127.0.0.1", min_length=1, description="Where the server is.")
    port: int = Field(3306, gt=0, le=65535, description="Its port.")
    user: str = Field(
        min_length=1,
        description="Whom to be. Needs REPLICATION SLAVE and REPLICATION CLIENT on *.*, and SELECT "
        "on the captured tables; `penstock doctor` prints the grants.",
    )
    password: SecretStr = Field(SecretStr(""), description="The user's password.")
    tls: Literal["off", "unverified", "verify"] = Field(
        "off",
        description="Encrypt the connection: not at all, without looking at who answers, or only "
        "with the server whose certificate is of this host.",
    )
    ca: Path | None = Field(
        None, description="File with the authority that signed the server's certificate."
    )
    certificate: Path | None = Field(None, description="File with our own certificate.")
    key: Path | None = Field(None, description="File with our certificate's key.")
    server_id: int | None = Field(
        None,
        gt=0,
        lt=1 << 32,
        description="Our number among the server's replicas, which must be nobody else's. Default: "
        "drawn at random when capture starts.",
    )
    include: tuple[str, ...] = Field(
        (),
        description="Tables to capture: `shop.orders`, with * and ? as wildcards. Empty: all but "
        "the server's own. What is included is captured even if it is excluded.",
    )
    exclude: tuple[str, ...] = Field((), description="Tables to leave out; as `include`.")
    tenant: Annotated[str, Field(min_length=1)] | TenantRule | None = Field(
        None,
        description="Whose an event is: a constant, or `{field = ...}` of the row, "
        "`{id_prefix = ...}` or `{id_field = ...}` of its key. Default: the event's database.",
    )
    start: Literal["now", "beginning"] = Field(
        "now",
        description="Where to start without a position: at the next transaction, or at the oldest "
        "that the server still holds.",
    )
    on_position_lost: Literal["halt", "gap"] = Field(
        "halt",
        description="When the server no longer holds what follows our position: a gap is recorded, "
        "and capture stops, or goes on from now.",
    )
    on_cascades: Literal["halt", "ignore"] = Field(
        "halt",
        description="When a foreign key changes rows of a captured table by itself (ON DELETE "
        "CASCADE, SET NULL), which the server writes to no binlog: stop, or capture the table "
        "without these changes, with a warning at each start.",
    )
    heartbeat_seconds: Seconds = Field(
        5.0, gt=0, le=600, description="Have the server say so often that it is quiet."
    )
    heartbeat_deadline_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="No word for so long is a broken connection. Default: two heartbeats.",
    )
    connect_timeout: Seconds = Field(
        10.0, gt=0, le=3600, description="Wait so long for a connection, or an answer."
    )

    @field_validator("start", "on_position_lost", mode="before")
    @classmethod
    def _no_copies(cls, value: Any) -> Any:
        if value == "snapshot":
            raise ValueError(
                "copying tables that are there already ('snapshot') is not built for this kind of "
                "source; load them by other means, and capture what changes from now"
            )
        return value

    @field_validator("include", "exclude")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if not all(pattern.partition(".")[::2]):
                raise ValueError(f"{pattern!r} is not `database.table`")
        return patterns

    @model_validator(mode="after")
    def _files(self) -> "MysqlSourceConfig":
        if self.tls == "off" and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key need tls = 'verify' or 'unverified'")
        if self.key is not None and self.certificate is None:
            raise ValueError("key needs the certificate that it is of")
        return self

    @property
    def deadline_seconds(self) -> float:
        """How long to wait for any word (S15)."""
        return self.heartbeat_deadline_seconds or 2 * self.heartbeat_seconds

    @property
    def scope(self) -> Scope:
        """Which tables are captured, as a position keeps it."""
        return Scope(tuple(sorted(set(self.include))), tuple(sorted(set(self.exclude))))

    def beside(self, folder: Path) -> Self:
        """With its paths made relative to `folder`, unless they are absolute."""
        paths = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        return self.model_copy(
            update={name: folder / path for name, path in paths.items() if path is not None}
        )
