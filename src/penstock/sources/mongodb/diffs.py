"""An update as the server's oplog has it, as an `updateDescription` of which each path means one
thing. Pure.

From 6.1 on a server says the steps of each path that could be read in several ways
(`disambiguatedPaths`). 6.0 does not, but it can send the update as its oplog has it
(`rawUpdateDescription`), where every step stands alone. Of that, this makes what 6.1 would send.

| in the diff of a document | |
|---|---|
| `d` | fields that were removed |
| `u`, `i` | fields that were changed and added, with their values |
| `s` and a name | the diff of what the field holds |

The diff of an array has `a`; `l` with its new length where it was cut; and `u` or `s` with the
place of an element.
Source: seen on 6.0.5 and 6.0.27, which send the same update in either form.
"""

from collections.abc import Mapping
from typing import Any

from bson import DBRef

Document = dict[str, Any]
Steps = tuple[str | int, ...]


def described(raw: Mapping[str, Any]) -> Document | None:
    """The `updateDescription`, with `disambiguatedPaths`, of a `rawUpdateDescription`.

    None where two of its fields have the same path, so that no description can name both. Raises
    TypeError for a version of the diff that is not known here.
    """
    if raw.get("$v") != 2 or raw.keys() != {"$v", "diff"}:
        raise TypeError(f"an update with the fields {', '.join(raw)}, version {raw.get('$v')}")
    description = _Description()
    description.read(raw["diff"], ())
    if description.collides:
        return None
    return {
        "updatedFields": description.updated,
        "removedFields": description.removed,
        "truncatedArrays": description.cuts,
        "disambiguatedPaths": description.paths,
    }


class _Description:
    """What was read of a diff so far."""

    def __init__(self) -> None:
        self.updated: Document = {}
        self.removed: list[str] = []
        self.cuts: list[Document] = []
        self.paths: dict[str, list[str | int]] = {}
        self.collides = False
        self._steps: dict[str, Steps] = {}

    def read(self, diff: Mapping[str, Any], at: Steps) -> None:
        """Add the diff of what is at the steps `at`."""
        if diff.get("a") is True:
            self._array(diff, at)
        else:
            self._document(diff, at)

    def _document(self, diff: Mapping[str, Any], at: Steps) -> None:
        for section, content in diff.items():
            if section == "d":
                self.removed += [self._path((*at, name)) for name in _fields(content)]
            elif section in {"u", "i"}:
                for name, value in _fields(content).items():
                    self.updated[self._path((*at, name))] = value
            elif section.startswith("s"):
                self.read(content, (*at, section[1:]))
            else:
                raise TypeError(f"an update with the section {section!r}")

    def _array(self, diff: Mapping[str, Any], at: Steps) -> None:
        for section, content in diff.items():
            if section == "a":
                continue
            if section == "l":
                self.cuts.append({"field": self._path(at), "newSize": content})
            elif section.startswith("u"):
                self.updated[self._path((*at, int(section[1:])))] = content
            elif section.startswith("s"):
                self.read(content, (*at, int(section[1:])))
            else:
                raise TypeError(f"an update with the section {section!r} of an array")

    def _path(self, steps: Steps) -> str:
        path = ".".join(map(str, steps))
        self.collides |= self._steps.setdefault(path, steps) != steps
        if any(
            isinstance(step, str) and ("." in step or (number and step.isdecimal()))
            for number, step in enumerate(steps)
        ):
            self.paths[path] = list(steps)
        return path


def _fields(section: Any) -> Mapping[str, Any]:
    """The fields of a section; with the names `$ref` and `$id` they were decoded as a reference."""
    fields: Mapping[str, Any] = section.as_doc() if isinstance(section, DBRef) else section
    return fields
