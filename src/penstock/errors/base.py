"""The root of the tree, and what every command may raise before it begins."""

from typing import ClassVar


class PenstockError(Exception):
    """The root. Raised only through its subclasses."""

    code: ClassVar[str] = "penstock"
    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class ConfigError(PenstockError):
    """The configuration says something impossible; nothing was started."""

    code = "config"
    exit_code = 2
