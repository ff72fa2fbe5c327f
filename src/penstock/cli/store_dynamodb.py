"""The DynamoDB endpoint of `penstock store serve`: its options, and who may connect."""

from configparser import ConfigParser
from configparser import Error as MalformedError
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.serve.dynamodb.config import DynamoConfig

_PANEL = "DynamoDB"

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


def read_config(
    address: str, credentials: Path | None, *, region: str, account: str, retention: str
) -> "DynamoConfig":
    """The endpoint's configuration of its options. Raises ConfigError."""
    from pydantic import ValidationError

    from penstock.config import parse_duration
    from penstock.serve.dynamodb.config import DynamoConfig

    try:
        return DynamoConfig.model_validate(
            {
                "address": address,
                "keys": {} if credentials is None else read_keys(credentials),
                "region": region,
                "account": account,
                "stream_retention": parse_duration(retention),
            }
        )
    except ValidationError as error:
        # Only what is wrong: an error's input may be a secret.
        told = "; ".join(one["msg"] for one in error.errors(include_input=False))
        raise ConfigError(f"--dynamodb: {told}. Nothing was started.") from None
    except ValueError as error:
        raise ConfigError(f"--dynamodb-retention: {error}. Nothing was started.") from None


def read_keys(path: Path) -> dict[str, str]:
    """The keys of an AWS credentials file, secrets by their ids.

    https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html. Raises ConfigError for one
    that cannot be read or has none.
    """
    parser = ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(path.read_text())
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
