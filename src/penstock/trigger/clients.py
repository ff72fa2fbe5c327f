"""Clients of AWS's services, and of whatever else speaks their protocols, by boto3."""

from typing import Any, Final
from urllib.parse import urlsplit

from penstock.errors import ConfigError
from penstock.proxies import is_here

THREADS: Final = 16
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 20
_REGION: Final = "us-east-1"


def connect(service: str, *, region: str | None, endpoint: str | None, option: str) -> Any:
    """A client of a service, which asks once and leaves it to us to ask again.

    Credentials are boto3's own, and so are the region and the endpoint that are not given. `option`
    is what sets the endpoint. Raises ConfigError without boto3, a region, or an endpoint's URL.
    """
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise ConfigError(
            "penstock trigger needs boto3. Nothing was started. Run pip install 'penstock[trigger]'"
        ) from error
    sessions: Any = boto3
    session = sessions.Session()
    region = region or session.region_name
    settings: dict[str, Any] = {
        "connect_timeout": _CONNECT_SECONDS,
        "read_timeout": _READ_SECONDS,
        "max_pool_connections": THREADS,
        "retries": {"mode": "standard", "total_max_attempts": 1},
    }
    if endpoint is not None:
        region = region or _REGION
        if session.get_credentials() is None:
            settings["signature_version"] = UNSIGNED
        if is_here(urlsplit(endpoint).hostname or ""):
            settings["proxies"] = {}  # none of the environment's
    if region is None:
        raise ConfigError(
            f"no region is known to ask AWS in. Nothing was started. Give --region, or {option}."
        )
    try:
        return session.client(
            service, region_name=region, endpoint_url=endpoint, config=Config(**settings)
        )
    except ValueError as error:
        # Its text quotes the URL, which may hold a password.
        raise ConfigError(
            f"{option} is not a URL that can be asked, as http://127.0.0.1:8000. Nothing was "
            f"started."
        ) from error
