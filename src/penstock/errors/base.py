"""The root of the tree, and what every command may raise before it begins."""

from typing import ClassVar


class PenstockError(Exception):
    """The root. Raised only through its subclasses."""

    code: ClassVar[str] = "penstock"
    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


def codes_of(*roots: type[PenstockError]) -> frozenset[str]:
    """The codes of these errors and of all that are kinds of them."""
    return frozenset(
        code for root in roots for code in (root.code, *codes_of(*root.__subclasses__()))
    )


class ConfigError(PenstockError):
    """The configuration says something impossible; nothing was started."""

    code = "config"
    exit_code = 2
