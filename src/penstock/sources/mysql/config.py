"""What a MySQL or MariaDB source can be told."""

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from penstock.capture.tenant import TenantRule
from penstock.config import Bytes, Config, Seconds
from penstock.sources.mysql.columns import ColumnRules, ColumnScope, check_of_salt
from penstock.sources.mysql.origins import OriginRules, origin_rules
from penstock.sources.mysql.patterns import checked
from penstock.sources.mysql.scope import Scope


def _of_table(pattern: str) -> str:
    return checked(pattern, parts=2)


def _of_column(pattern: str) -> str:
    return checked(pattern, parts=3)


TablePattern = Annotated[str, AfterValidator(_of_table)]
ColumnPattern = Annotated[str, AfterValidator(_of_column)]
SALT_CHARACTERS_MIN = 16


class ColumnsConfig(Config):
    """What is captured of the columns: patterns of `database.table.column`.

    The same in every image of a row. Of several rules for a column, the one that tells least
    wins: exclude, mask, hash, truncate. NULL stays NULL. Only hash may be of a key's column.
    """

    include: tuple[ColumnPattern, ...] = Field(
        (), description="Columns to capture, of all tables. Empty: all. Name the keys' too."
    )
    exclude: tuple[ColumnPattern, ...] = Field(
        (), description="Columns to leave out, whether they are included or not."
    )
    mask: dict[ColumnPattern, str] = Field(
        {}, description="By pattern: the text that stands for every value."
    )
    hash: tuple[ColumnPattern, ...] = Field(
        (),
        description="Columns of which the hash is captured: HMAC-SHA-256, in 64 hex digits, of a "
        "text in UTF-8, and of another value as the log would have it.",
    )
    hash_salt: SecretStr | None = Field(
        None,
        description="The secret key of the hashes, of 16 characters or more. With another one, all "
        "hashes are others.",
    )
    truncate: dict[ColumnPattern, Annotated[int, Field(ge=0)]] = Field(
        {}, description="By pattern: how many characters of a text, or bytes of binary, are left."
    )

    @model_validator(mode="after")
    def _salted(self) -> Self:
        if self.hash and len(self._salt) < SALT_CHARACTERS_MIN:
            raise ValueError(
                f"hash needs a hash_salt of {SALT_CHARACTERS_MIN} characters or more: without one, "
                f"whoever guesses a value can tell that it is right"
            )
        return self

    @property
    def scope(self) -> ColumnScope:
        """As a position keeps it: without the salt."""
        return ColumnScope(
            include=tuple(sorted(set(self.include))),
            exclude=tuple(sorted(set(self.exclude))),
            mask=tuple(self.mask.items()),
            hash=tuple(sorted(set(self.hash))),
            truncate=tuple(self.truncate.items()),
            salt=check_of_salt(self._salt) if self.hash else "",
        )

    @property
    def rules(self) -> ColumnRules:
        """The rules themselves."""
        return ColumnRules(self.scope, salt=self._salt)

    @property
    def _salt(self) -> str:
        return "" if self.hash_salt is None else self.hash_salt.get_secret_value()


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
    compression: Literal["off", "zlib", "zstd"] = Field(
        "off",
        description="Compress what the server sends: zlib, which both kinds of server know, or "
        "zstd, which MySQL alone does. What it does not know is refused.",
    )
    semi_sync: bool = Field(
        False,
        description="Be a semi-synchronous replica: the server's commits wait, as long as it is "
        "told to wait, until the log holds them. It must have that enabled; `penstock doctor` "
        "says whether it has.",
    )
    server_id: int | None = Field(
        None,
        gt=0,
        lt=1 << 32,
        description="Our number among the server's replicas, which must be nobody else's. Default: "
        "drawn at random when capture starts.",
    )
    include: tuple[TablePattern, ...] = Field(
        (),
        description="Tables to capture: `shop.orders`, with * and ? as wildcards, or a regular "
        "expression of RE2 between slashes, `/shop\\.(orders|items)/`. Empty: all but the "
        "server's own. What is included is captured even if it is excluded.",
    )
    exclude: tuple[TablePattern, ...] = Field((), description="Tables to leave out; as `include`.")
    columns: ColumnsConfig = Field(
        ColumnsConfig.model_validate({}),
        description="Columns to leave out, mask, hash or truncate.",
    )
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
    pass_statements: tuple[TablePattern, ...] = Field(
        (),
        description="Tables whose changes may come as statements (their sessions' `binlog_format` "
        "is not ROW); as `include`. Capture goes past such a statement with a gap: of the captured "
        "tables that it changes, or of all where its triggers and functions may change others. "
        "`*.*` is also of those whose tables cannot be told. One that changes no captured table "
        "needs none.",
    )
    statements: Literal["full", "redacted", "off"] = Field(
        "full",
        description="Tell the SQL text of what changed rows and tables, where the binlog has it: "
        "as it is, with `?` for each of its values, or not at all.",
    )
    statement_bytes_max: Bytes = Field(
        8 << 10, ge=16, le=1 << 20, description="Keep so much of each statement's text."
    )
    actor: str | None = Field(
        None,
        description="Who wrote a statement, as its comments say: a regular expression with one "
        r"group, as `user:(\w+)`. Default: nobody is named.",
    )
    on_partial_rows: Literal["halt", "decode"] = Field(
        "halt",
        description="When a session logs rows that lack columns (binlog_row_image is not FULL): "
        "stop before them, or tell what they have, and name what they lack as unchanged. An UPDATE "
        "that may have been a REPLACE stops capture then too: it resets columns and does not say.",
    )
    heartbeat_seconds: Seconds = Field(
        5.0, gt=0, le=600, description="Have the server say so often that it is quiet."
    )
    heartbeat_deadline_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="No word for so long is a broken connection. Over `heartbeat_seconds`; "
        "default: two heartbeats.",
    )
    connect_timeout: Seconds = Field(
        10.0, gt=0, le=3600, description="Wait so long for a connection, or an answer."
    )

    @field_validator("actor")
    @classmethod
    def _one_group(cls, actor: str | None) -> str | None:
        if actor is None:
            return None
        try:
            groups = re.compile(actor).groups
        except re.error as error:
            raise ValueError(f"{actor!r} is no regular expression: {error}") from error
        if groups != 1:
            raise ValueError(
                f"{actor!r} has {groups} groups and must have one, around who it was; write "
                f"(?:...) for what only belongs together"
            )
        return actor

    @field_validator("include", "exclude", "pass_statements")
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

    @model_validator(mode="after")
    def _deadline(self) -> "MysqlSourceConfig":
        """An idle server speaks once in a heartbeat: who waits less reconnects for ever (S15)."""
        if self.deadline_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"heartbeat_deadline_seconds ({self.deadline_seconds:g}) is not over "
                f"heartbeat_seconds ({self.heartbeat_seconds:g}), so the silence of an idle server "
                f"would be taken for a broken connection. Set it to two heartbeats or more, or "
                f"leave it out: that is two"
            )
        return self

    @property
    def deadline_seconds(self) -> float:
        """How long to wait for any word (S15)."""
        return self.heartbeat_deadline_seconds or 2 * self.heartbeat_seconds

    @property
    def copies(self) -> bool:
        """Whether tables are copied by themselves."""
        return "snapshot" in (self.start, self.on_position_lost)

    @cached_property
    def origin_rules(self) -> OriginRules:
        """What is told of statements."""
        return origin_rules(
            statements=self.statements,
            bytes_max=self.statement_bytes_max,
            actor=self.actor,
            hides_columns=bool(self.columns.scope.patterns),
        )

    @property
    def scope(self) -> Scope:
        """Which tables are captured, as a position keeps it."""
        return Scope(
            tuple(sorted(set(self.include))), tuple(sorted(set(self.exclude))), self.columns.scope
        )

    def beside(self, folder: Path) -> Self:
        """With its paths made relative to `folder`, unless they are absolute."""
        paths = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        return self.model_copy(
            update={name: folder / path for name, path in paths.items() if path is not None}
        )
