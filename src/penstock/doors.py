"""Doors: how what is optional comes in, ours and yours in the same way.

An installed package names an object in an entry point; whoever needs it asks for it by the group
and the name, so the core names none. Nothing behind a door is imported before it is used.

| group                   | the object                                                             |
|-------------------------|------------------------------------------------------------------------|
| `penstock.sources`      | a class, as `ports.ChangeSource` says; the type of `[sources.NAME]`    |
| `penstock.commands`     | a function or a `typer.Typer`: `penstock NAME`                         |
| `penstock.destinations` | a `spark.destinations.Destination`; what a pipeline's `to` says        |

How to write one: docs/how-to/extend.md.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SOURCES: Final = "penstock.sources"
COMMANDS: Final = "penstock.commands"
DESTINATIONS: Final = "penstock.destinations"


def names(group: str) -> list[str]:
    """Of all that is behind a door."""
    return sorted(_behind(group))


def find(group: str, name: str) -> "EntryPoint | None":
    """What has the name behind a door, not imported; None where nothing has.

    Raises ConfigError where two packages bring it.
    """
    found = _behind(group).get(name, ())
    if len(found) > 1:
        raise ConfigError(
            f"the installed packages {' and '.join(sorted(map(_package, found)))} bring "
            f"{name!r} in {group}, and only one can have the name. Nothing was started. Uninstall "
            f"the others."
        )
    return found[0] if found else None


def load(point: "EntryPoint") -> Any:
    """The object. Raises ImportError, for whoever knows what to install, and ConfigError where the
    package fails in another way."""
    try:
        return point.load()
    except ImportError:
        raise
    except Exception as error:
        raise unusable(point, error) from error


def unusable(point: "EntryPoint", error: Exception) -> ConfigError:
    """Why what is behind a door cannot be used."""
    return ConfigError(
        f"{point.name!r} of the package {_package(point)} ({point.group}) cannot be loaded "
        f"({type(error).__name__}: {error}). Nothing was started. Install the package again, or "
        f"uninstall it."
    )


@cache
def _behind(group: str) -> "Mapping[str, tuple[EntryPoint, ...]]":
    """As installed when it is first asked: to look costs milliseconds."""
    from importlib.metadata import entry_points

    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, {})[point.value] = point
    return MappingProxyType({name: tuple(points.values()) for name, points in found.items()})


def _package(point: "EntryPoint") -> str:
    return point.value if point.dist is None else point.dist.name
