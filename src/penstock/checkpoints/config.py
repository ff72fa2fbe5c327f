"""How published copies are configured."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from penstock.config import Config, Seconds, require_mongodb


class CheckpointConfig(Config):
    """Publish where the log and its sources stand to a store away from the log's disk.

    Without a store, the positions beside the events, in the log, are all there is.
    """

    store: Literal["none", "etcd", "mongodb"] = Field(
        "none", description="Where copies are published."
    )
    instance: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$",
        description="The name of this service in the store, needed with one: each service has its "
        "own, and a machine that replaces another takes its name.",
    )
    interval: Seconds = Field(
        1.0, gt=0, le=3600, description="Publish what has changed at least so often."
    )
    event_count: int = Field(
        1000, gt=0, description="Publish earlier, once so many events were captured."
    )
    on_shutdown: bool = Field(True, description="Publish once more when the service stops.")
    timeout: Seconds = Field(
        5.0, gt=0, le=60, description="Wait so long for the store to answer, then count a failure."
    )
    endpoints: tuple[str, ...] = Field(
        ("http://127.0.0.1:2379",),
        min_length=1,
        description="etcd: URLs of its members, tried in turn.",
    )
    username: str | None = Field(None, description="etcd: the user, where it asks for one.")
    password: SecretStr | None = Field(None, description="etcd: the user's password.")
    ca: Path | None = Field(
        None, description="etcd: file with the certificate authority that signed the members'."
    )
    certificate: Path | None = Field(None, description="etcd: file with our own certificate.")
    key: Path | None = Field(None, description="etcd: file with our certificate's key.")
    uri: SecretStr | None = Field(
        None,
        description="MongoDB: connection string. Needs `readWrite` on the database below, and "
        "should not be the deployment that is captured.",
    )
    database: str = Field("penstock", min_length=1, description="MongoDB: where copies are kept.")
    collection: str = Field(
        "checkpoints", min_length=1, description="MongoDB: the collection of the copies."
    )

    @field_validator("endpoints")
    @classmethod
    def _urls(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in endpoints:
            scheme, _, rest = endpoint.partition("://")
            host, _, port = rest.rstrip("/").rpartition(":")
            if scheme not in {"http", "https"} or not host or not port.isdigit():
                raise ValueError("an endpoint is http://host:port or https://host:port")
        return endpoints

    @field_validator("uri")
    @classmethod
    def _mongodb(cls, uri: SecretStr | None) -> SecretStr | None:
        return None if uri is None else require_mongodb(uri)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.store != "none" and self.instance is None:
            raise ValueError(
                "a store needs `instance`, the name of this service in it; a machine that "
                "replaces this one takes the same name"
            )
        if self.store == "mongodb" and self.uri is None:
            raise ValueError("store = 'mongodb' needs `uri`")
        if (self.username is None) != (self.password is None):
            raise ValueError("`username` and `password` go together")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` go together")
        return self

    def beside(self, folder: Path) -> Self:
        """With its files relative to `folder`."""
        files = {name: getattr(self, name) for name in ("ca", "certificate", "key")}
        return self.model_copy(
            update={name: folder / file for name, file in files.items() if file is not None}
        )
