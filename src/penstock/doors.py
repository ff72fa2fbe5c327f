"""Doors: how what is optional comes in, ours and yours in the same way.

An installed package names an object in an entry point; whoever needs it asks for it by the group
and the name, so the core names none. Nothing behind a door is imported before it is used.

| group                   | the object                                                             |
|-------------------------|------------------------------------------------------------------------|
| `penstock.sources`      | a class, as `ports.Source` says; the type of `[sources.NAME]`          |
| `penstock.commands`     | a function or a `typer.Typer`: `penstock NAME`                         |
| `penstock.destinations` | a `spark.destination.Destination`; what a pipeline's `to` says         |

How to write one: docs/how-to/extend.md.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from penstock.errors import ConfigError

SOURCES: Final = "penstock.sources"
COMMANDS: Final = "penstock.commands"
DESTINATIONS: Final = "penstock.destinations"


@cache
def behind(group: str) -> Mapping[str, EntryPoint]:
    """What the packages have behind a door that were installed when it was first asked, by name;
    nothing of it is imported.

    Raises ConfigError where two packages give one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            one, two = sorted((_package(other), _package(point)))
            raise ConfigError(
                f"the installed packages {one} and {two} both bring {point.name!r} in "
                f"{group}, and only one can have the name. Nothing was started. Uninstall one of "
                f"them."
            )
    return MappingProxyType(found)


def _package(point: EntryPoint) -> str:
    return point.value if point.dist is None else point.dist.name
