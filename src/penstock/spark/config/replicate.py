"""`to = "replicate"`: another database."""

import re
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.client.patience import PatienceConfig
from penstock.config import Bytes, Seconds
from penstock.spark.config.names import shortened
from penstock.spark.config.reading import SteppedPipelineConfig

_MONGODB_BYTES: Final = 255
"""Of a database, a dot and a collection."""
_POSTGRES_BYTES: Final = 63
_MYSQL_CHARACTERS: Final = 64
_MYSQL_FILE: Final = 255 - len(".ibd")
_FILE_SAFE: Final = re.compile("[0-9A-Za-z_]")
_SHORT_LETTERS: Final = "\u0587"
"""Letters up to here are 3 characters."""


class ReplicatePipelineConfig(SteppedPipelineConfig, PatienceConfig):
    """Keep tables or collections of another database equal to a source's, with Spark."""

    to: Literal["replicate"] = Field(
        description="What is made of the changes: `replicate` keeps another database equal."
    )
    uri: SecretStr = Field(
        description="Where that is: mongodb://, mongodb+srv://, postgresql://, mysql:// or "
        "mariadb://, with user, password and, for SQL, the database."
    )
    database: str | None = Field(
        None,
        min_length=1,
        description="The database of MongoDB, or the schema of PostgreSQL, in which tables are. "
        "Default: the database that the URI names; in PostgreSQL its schema `public`.",
    )
    table: str = Field(
        "{collection}",
        min_length=1,
        description="The name of a collection's table, with {collection} and {database} for its "
        "own and its database's name.",
    )
    tls: Literal["off", "unverified", "verify"] | None = Field(
        None,
        description="Encrypt the connection: not at all, without looking at who answers, or only "
        "with the server whose certificate is of this host. Default: as the URI says; off for "
        "MySQL, whose URI cannot.",
    )
    ca: Path | None = Field(
        None, description="File with the authority that signed the server's certificate."
    )
    certificate: Path | None = Field(
        None, description="File with our own certificate; for MongoDB, with its key in it."
    )
    key: Path | None = Field(None, description="File with our certificate's key.")
    max_events_per_batch: int = Field(
        50_000,
        gt=0,
        description="Events per batch, which is one transaction of the destination; a larger "
        "commit comes whole all the same.",
    )
    max_bytes_per_batch: Bytes = Field(
        1 << 30,
        gt=0,
        description="The driver holds a batch's last change of each row. One that comes to more "
        "bytes than this stops the pipeline, by name, instead of exhausting memory.",
    )
    on_gap: Literal["halt", "record"] = Field(
        "halt",
        description="What to do where the log says that changes were lost upstream: stop, or write "
        "the gap to the rejects and go on. Where the log's own retention was faster than the "
        "pipeline, it stops whatever this says.",
    )
    answer_seconds: Seconds = Field(
        120.0,
        gt=0,
        le=3600,
        description="Wait so long for an answer of the destination; for "
        "one to what is done to a whole table, as long as it takes.",
    )

    @field_validator("uri")
    @classmethod
    def _known(cls, uri: SecretStr) -> SecretStr:
        scheme = uri.get_secret_value().partition("://")[0]
        if scheme not in DESTINATIONS:
            raise ValueError(f"it must begin with one of {', '.join(DESTINATIONS)}, and ://")
        return uri

    @field_validator("table")
    @classmethod
    def _of_collection(cls, table: str) -> str:
        if "{collection}" not in table or re.sub(r"\{(collection|database)\}", "", table) != (
            re.sub(r"[{}]", "", re.sub(r"\{(collection|database)\}", "", table))
        ):
            raise ValueError("it needs {collection}, and knows {database} beside it")
        return table

    @model_validator(mode="after")
    def _consistent(self) -> "ReplicatePipelineConfig":
        if self.tls in {None, "off"} and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key need tls = 'verify' or 'unverified'")
        if self.key is not None and self.certificate is None:
            raise ValueError("key needs the certificate that it is of")
        return self

    @property
    def kind(self) -> str:
        """The scheme of the URI."""
        return self.uri.get_secret_value().partition("://")[0]

    def table_of(self, database: str, collection: str) -> str:
        """The name of a collection's table: what is too long for the server ends with a digest."""
        names = {"{database}": database, "{collection}": collection}
        whole = re.sub(r"\{database\}|\{collection\}", lambda found: names[found[0]], self.table)
        if self.kind in {"mysql", "mariadb"}:
            return shortened(whole, whole, length_max=_MYSQL_CHARACTERS, length=_mysql_length)
        bytes_max = _POSTGRES_BYTES
        if self.kind.startswith("mongodb"):
            bytes_max = _MONGODB_BYTES - len(f"{self.mongodb_database}.".encode())
        return shortened(whole, whole, length_max=bytes_max, length=lambda name: len(name.encode()))

    @property
    def mongodb_database(self) -> str:
        """The database of MongoDB in which collections are; empty: none is named."""
        return self.database or unquote(urlsplit(self.uri.get_secret_value()).path.strip("/"))


def _mysql_length(name: str) -> int:
    """How long a table's name is for MySQL, which also names a file by it.

    There a letter beyond ASCII is 3 or 5 characters, and anything but letters, digits and `_` is 5.
    Source: MySQL 8.4 manual, 11.2.4, Mapping of Identifiers to File Names.
    """
    in_file = sum(
        1 if _FILE_SAFE.match(one) else 3 if one.isalpha() and one <= _SHORT_LETTERS else 5
        for one in name
    )
    return max(len(name), in_file - _MYSQL_FILE + _MYSQL_CHARACTERS)


DESTINATIONS: Final = (
    "mongodb",
    "mongodb+srv",
    "postgresql",
    "postgres",
    "mysql",
    "mariadb",
)
"""What the URI of a destination may begin with."""
