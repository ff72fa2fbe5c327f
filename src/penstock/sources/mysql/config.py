"""What a MySQL or MariaDB source can be told."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.capture.tenant import TenantRule
from penstock.config import Config, Seconds
from penstock.sources.mysql.scope import Scope


class MysqlSourceConfig(Config):
    """Capture the row changes of a MariaDB server from its binlog."""

    type: Literal["mysql"] = "mysql"
    host: str = Field("127.0.0.1", min_length=1, description="Where the server is.")
    port: int = Field(3306, gt=0, le=65535, description="Its port.")
    user: str = Field(
        min_length=1,
        description="Whom to be. Needs REPLICATION SLAVE and BINLOG MONITOR on *.*, and SELECT on "
        "the captured tables; `penstock doctor` prints the grants.",
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
    start: Literal["now", "snapshot", "beginning"] = Field(
        "now",
        description="Where to start without a position: at the next transaction, with a copy of "
        "what is there, or at the oldest transaction that the server still holds.",
    )
    on_position_lost: Literal["halt", "snapshot", "gap"] = Field(
        "halt",
        description="When the server no longer holds what follows our position: a gap is recorded, "
        "and capture stops, copies everything again, or goes on from now. With `snapshot`, tables "
        "whose rows a statement changed without a word are copied again, too.",
    )
    snapshot_chunk_documents: int = Field(
        2000, gt=0, le=100_000, description="Rows copied between two looks at the stream."
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
