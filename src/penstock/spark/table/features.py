"""What the owner of a Delta table may have made of it, and whether it can be written then. Pure.

Each feature of the protocol is one that delta-rs writes with, or it is refused by its name: of one
that it does not know, delta-rs says the same as of another process's commit.
"""

from collections.abc import Collection, Mapping
from typing import Final

WRITABLE: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Features that delta-rs writes with, by their names in the protocol."""

_MAPPING: Final = "columnMapping"
_MODE: Final = "delta.columnMapping.mode"
_APPEND_ONLY: Final = "delta.appendOnly"
_CONSTRAINT: Final = "delta.constraints."
_COMMANDS: Final = {
    "clustering": "ALTER TABLE ... CLUSTER BY NONE, then ",
    "rowTracking": "ALTER TABLE ... SET TBLPROPERTIES ('delta.enableRowTracking' = 'false'), then ",
}
"""What comes before a feature can be dropped."""


def unwritable(features: Collection[str], properties: Mapping[str, str]) -> list[str]:
    """The features that a table is refused for."""
    others = set(features) - WRITABLE - {_MAPPING}
    if properties.get(_MODE, "none") != "none":
        # A column has another name in the files, which is not looked for there.
        others.add(_MAPPING)
    return sorted(others)


def refusal(features: Collection[str]) -> str:
    """What is wrong with a table that has features with which it cannot be written, and the way
    out."""
    named = ", ".join(features)
    first = "".join(_COMMANDS[one] for one in sorted(features) if one in _COMMANDS)
    return (
        f"has features of Delta with which Penstock cannot write: {named}. They were turned on by "
        f"whoever altered the table. Turn them off in Spark ({first}ALTER TABLE ... DROP FEATURE "
        f"for each); or keep the table as a copy, and have the pipeline make another at a new "
        f"path; or, where a catalog has the tables, have Spark write them (`catalog`)"
    )


def refused_rows(properties: Mapping[str, str], *, append_only: bool) -> str:
    """What it says where rows were refused: by delta.appendOnly, or by its constraints."""
    if append_only:
        return (
            f"is append-only ({_APPEND_ONLY}), and a change of a row must replace it. Turn that "
            f"off: ALTER TABLE ... UNSET TBLPROPERTIES ('{_APPEND_ONLY}')"
        )
    named = "; ".join(
        f"{name} ({condition})" for name, condition in constraints(properties).items()
    )
    return (
        f"has constraints that a row of the batch does not meet: {named}. Have such rows rejected "
        f"before they come to it, by an expectation with the condition and `action = 'drop'`, or "
        f"drop the constraint: ALTER TABLE ... DROP CONSTRAINT"
    )


def is_append_only(properties: Mapping[str, str]) -> bool:
    """Whether no row may be replaced."""
    return properties.get(_APPEND_ONLY, "").lower() == "true"


def constraints(properties: Mapping[str, str]) -> dict[str, str]:
    """The CHECK constraints of a table, by name."""
    return {
        name.removeprefix(_CONSTRAINT): condition
        for name, condition in sorted(properties.items())
        if name.startswith(_CONSTRAINT)
    }
