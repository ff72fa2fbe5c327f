"""What a destination's URI may not be, said before any server is asked."""

from penstock.errors import ConfigError


def unusable(pipeline: str) -> ConfigError:
    """Of a URI that has no host or port that can be read; its text would quote a password."""
    return ConfigError(
        f"pipeline {pipeline}: its uri cannot be taken apart: what is in it is not written as in a "
        f"URI, or its host or port is none. Nothing was started. Percent-encode what is in the "
        f"user and the password ('/' is %2F, '@' is %40, '%' is %25), and see that the port is a "
        f"number up to 65535. It is not shown here, as it has the password in it."
    )


def is_host(name: str) -> bool:
    """Whether a server can be called that."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return "@" not in name
