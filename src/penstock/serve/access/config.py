"""What says who may connect, and how the wire is protected."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from penstock.config import Config, Seconds


class TlsConfig(Config):
    """Serve gRPC, Flight, HTTP and DynamoDB Streams over TLS. Files are PEM."""

    certificate: Path = Field(description="The certificate, followed by those that signed it.")
    key: Path = Field(description="Its private key, not encrypted.")
    client_ca: Path | None = Field(
        default=None, description="Certificates that sign those of clients (mutual TLS)."
    )
    require_client_certificate: bool = Field(
        default=False,
        description="Mutual TLS: refuse whoever has no certificate of `client_ca`. The two belong "
        "together: gRPC asks for a certificate only if it also requires one.",
    )

    @model_validator(mode="after")
    def _mutual(self) -> Self:
        if (self.client_ca is not None) is not self.require_client_certificate:
            raise ValueError(
                "client_ca and require_client_certificate = true belong together: give both, or "
                "neither"
            )
        return self

    def beside(self, folder: Path) -> "TlsConfig":
        """With relative paths made relative to `folder`."""
        ca = None if self.client_ca is None else folder / self.client_ca
        paths = {"certificate": folder / self.certificate, "key": folder / self.key}
        return self.model_copy(update={**paths, "client_ca": ca})


class AccessConfig(Config):
    """Who may connect, and how often. Without `tokens` and `jwks`, whoever reaches the service may
    do everything, and it can only be reached on loopback."""

    tokens: Path | None = Field(
        default=None,
        description="Where `penstock access` keeps tokens, as hashes. What it writes holds at "
        "once, without a reload.",
    )
    jwks: Path | None = Field(
        default=None,
        description="Public keys, as a JSON Web Key Set: JWTs that they signed are taken. Read "
        "again when it changes. Needs the extra `jwt`, an issuer and an audience.",
    )
    issuer: str = Field(default="", description="The `iss` that a JWT must have.")
    audience: str = Field(default="", description="An `aud` that a JWT must have.")
    required: bool = Field(
        default=True,
        description="Refuse whoever brings nothing that says who they are. `false`, only on "
        "loopback, serves them everything.",
    )
    origins: tuple[str, ...] = Field(
        default=(),
        description="Origins whose pages a browser may let in, as https://app.example.com.",
    )
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="For DynamoDB Streams: by the access key ids of `credentials`, the names of "
        "the tokens whose grants they have.",
    )
    requests_per_second: float = Field(
        default=50.0, gt=0, le=1_000_000, description="Calls and streams begun by one client."
    )
    requests_burst: int = Field(
        default=200, gt=0, le=1_000_000, description="How many of them may come at once."
    )
    connections_max: int = Field(
        default=64,
        gt=0,
        le=100_000,
        description="Streams and calls of one client at a time; and WebSockets of one address that "
        "have not said yet who they are.",
    )
    refusals_per_second: float = Field(
        default=20.0,
        gt=0,
        le=1_000_000,
        description="Refusals to one address; beyond, it is told to come back later. And how "
        "many are written down of one client, and of all that are not known; the rest is counted.",
    )
    ticket_seconds: Seconds = Field(
        default=30.0, gt=0, le=600, description="How long a one-time ticket may be used."
    )
    reconnect_seconds: Seconds = Field(
        default=86_400.0,
        ge=0,
        le=30 * 86_400,
        description="How long after it connected the EventSource of a browser that came with a "
        "ticket may connect again by itself, if its token holds so long. 0: not at all.",
    )
    subscriptions_max: int = Field(
        default=250,
        gt=0,
        le=100_000,
        description="Capture subscriptions of one client at a time, over all its connections.",
    )
    tickets_max: int = Field(
        default=1024, gt=0, le=1_000_000, description="Unused tickets at a time; one more waits."
    )
    log: Path | None = Field(
        default=None,
        description="A file that gets one JSON line for each call: who, what, whether allowed; "
        "never a token, a document or a key.",
    )

    @property
    def is_on(self) -> bool:
        """Whether anybody is asked who they are."""
        return self.tokens is not None or self.jwks is not None

    @property
    def admits_strangers(self) -> bool:
        """Whether somebody who brings nothing is served."""
        return not (self.is_on and self.required)

    @model_validator(mode="after")
    def _jwt_is_bound(self) -> Self:
        if self.jwks is not None and not (self.issuer and self.audience):
            raise ValueError(
                "jwks needs issuer and audience: without them, a token that was made for another "
                "service would open this one"
            )
        return self

    def beside(self, folder: Path) -> "AccessConfig":
        """With relative paths made relative to `folder`."""
        paths = {"tokens": self.tokens, "jwks": self.jwks, "log": self.log}
        found = {name: None if path is None else folder / path for name, path in paths.items()}
        return self.model_copy(update=found)
