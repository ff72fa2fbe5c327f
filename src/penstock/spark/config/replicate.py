"""`to = "replicate"`: another database."""

import re
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.client.patience import PatienceConfig
from penstock.config import Bytes, Seconds
from penstock.spark.config.reading import SteppedPipelineConfig


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
        """The name of a collection's table."""
        names = {"{database}": database, "{collection}": collection}
        return re.sub(r"\{database\}|\{collection\}", lambda found: names[found[0]], self.table)


DESTINATIONS: Final = (
    "mongodb",
    "mongodb+srv",
    "postgresql",
    "postgres",
    "mysql",
    "mariadb",
)
"""What the URI of a destination may begin with."""
