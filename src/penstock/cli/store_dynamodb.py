"""The DynamoDB endpoint of `penstock store serve`: its options, and who may connect."""

from collections.abc import Sequence
from configparser import ConfigParser
from configparser import Error as MalformedError
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.serve.dynamodb.config import DynamoConfig

_PANEL = "DynamoDB"
_OPTIONS: Final = {
    "region": "--dynamodb-region",
    "account": "--dynamodb-account",
    "stream_retention": "--dynamodb-retention",
    "iterator_seconds": "--dynamodb-iterator-age",
    "shard_age": "--dynamodb-shard-age",
    "shard_bytes": "--dynamodb-shard-bytes",
    "connections_max": "--dynamodb-connections-max",
    "request_bytes_max": "--dynamodb-request-bytes-max",
    "reader_threads": "--dynamodb-reader-threads",
    "origins": "--dynamodb-origin",
}
"""By the settings of `DynamoConfig`."""

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--dynamodb",
        metavar="HOST:PORT",
        help="Serve DynamoDB's protocol over HTTP here; port 0 takes a free one.",
        rich_help_panel=_PANEL,
    ),
]
CredentialsOption = Annotated[
    Path | None,
    typer.Option(
        "--dynamodb-credentials",
        metavar="FILE",
        help="An AWS credentials file: requests signed with none of its keys are refused. Without "
        "it every request is served, and only on loopback.",
        rich_help_panel=_PANEL,
    ),
]
RegionOption = Annotated[
    str,
    typer.Option("--dynamodb-region", help="The region in ARNs.", rich_help_panel=_PANEL),
]
AccountOption = Annotated[
    str,
    typer.Option("--dynamodb-account", help="The account in ARNs.", rich_help_panel=_PANEL),
]
RetentionOption = Annotated[
    str,
    typer.Option(
        "--dynamodb-retention",
        help="How long records are kept of streams enabled over the protocol.",
        rich_help_panel=_PANEL,
    ),
]

IteratorOption = Annotated[
    str,
    typer.Option(
        "--dynamodb-iterator-age",
        help="How long a shard iterator may be used.",
        rich_help_panel=_PANEL,
    ),
]
ShardAgeOption = Annotated[
    str,
    typer.Option(
        "--dynamodb-shard-age",
        help="A shard that is so old is closed, and has a child.",
        rich_help_panel=_PANEL,
    ),
]
ShardBytesOption = Annotated[
    str,
    typer.Option(
        "--dynamodb-shard-bytes",
        help="A shard with so much of records is closed, and has a child.",
        rich_help_panel=_PANEL,
    ),
]
ConnectionsOption = Annotated[
    int,
    typer.Option(
        "--dynamodb-connections-max",
        help="Connections that are answered at once; one more is told 503.",
        rich_help_panel=_PANEL,
    ),
]
RequestOption = Annotated[
    str,
    typer.Option(
        "--dynamodb-request-bytes-max",
        help="The largest request; a larger one is refused with 413.",
        rich_help_panel=_PANEL,
    ),
]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "--dynamodb-reader-threads",
        help="Threads that answer what only reads.",
        rich_help_panel=_PANEL,
    ),
]
OriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamodb-origin",
        metavar="ORIGIN",
        help="An origin whose pages a browser lets ask, as https://app.example.com; repeated for "
        "several. Without credentials they may do everything.",
        rich_help_panel=_PANEL,
    ),
]


def read_config(
    address: str, credentials: Path | None, **options: str | int | Sequence[str]
) -> "DynamoConfig":
    """The endpoint's configuration of its options, by the settings' names. Raises ConfigError."""
    from pydantic import ValidationError

    from penstock.serve.dynamodb.config import DynamoConfig

    keys = {} if credentials is None else read_keys(credentials)
    try:
        return DynamoConfig.model_validate({"address": address, "keys": keys, **options})
    except ValidationError as error:
        # Only what is wrong: an error's input may be a secret.
        told = "; ".join(
            f"{_OPTIONS.get(str(one['loc'][0]) if one['loc'] else '', '--dynamodb')}: "
            f"{one['msg'].removeprefix('Value error, ')}"
            for one in error.errors(include_input=False)
        )
        raise ConfigError(f"{told}. Nothing was started.") from None


def read_keys(path: Path) -> dict[str, str]:
    """The keys of an AWS credentials file, secrets by their ids.

    https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html. Raises ConfigError for one
    that cannot be read or has none.
    """
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}). Nothing was started."
        ) from error
    except (MalformedError, UnicodeDecodeError):
        # The parser's own message would quote the line.
        raise ConfigError(
            f"{path} is no AWS credentials file. Nothing was started. Write [default], then "
            f"aws_access_key_id = and aws_secret_access_key =."
        ) from None
    keys = dict[str, str]()
    for name in parser.sections():
        section = parser[name]
        key, secret = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
        if key and secret:
            keys[key] = secret
    if not keys:
        raise ConfigError(
            f"{path} has no profile with aws_access_key_id and aws_secret_access_key. Nothing was "
            f"started."
        )
    return keys
