"""What a table or a global index is given: capacities, maxima on demand, and what is warm.

Nothing is limited by it here: it is kept, and described as it was given.
https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_OnDemandThroughput.html
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.serve.dynamodb.errors import validation
from penstock.serve.dynamodb.keys import INVALID

UNITS_MAX: Final = 1_000_000_000_000
_MAXIMA: Final = ("MaxReadRequestUnits", "MaxWriteRequestUnits")
_NO_MAXIMUM: Final = -1


def refuse_units(units: Mapping[str, int], *, index: str | None = None) -> None:
    """Refuse capacities of a table, or of an index, that are too large. Raises WireError."""
    of_index = "" if index is None else f" for index {index}"
    for member, value in units.items():
        if value > UNITS_MAX:
            raise validation(f"Given value {value} for {member} is out of bounds{of_index}")


def on_demand(request: Mapping[str, Any], before: dict[str, int], billing: str) -> dict[str, int]:
    """The maxima that there are after a request, by their names. Raises WireError."""
    given: dict[str, int] = request.get("OnDemandThroughput", {})
    if billing != "PAY_PER_REQUEST":
        if given:
            raise validation(
                f"{INVALID}OnDemandThroughput cannot be specified when BillingMode is PROVISIONED"
            )
        return {}
    for name, units in given.items():
        if units < 1 and units != _NO_MAXIMUM:
            raise validation(f"{INVALID}{name} must be at least 1, or -1 for no maximum")
    merged = {**before, **given}
    return {name: units for name, units in merged.items() if units != _NO_MAXIMUM}


def warm(request: Mapping[str, Any], before: dict[str, int]) -> dict[str, int]:
    """What is warm after a request, by its names. Raises WireError."""
    given: dict[str, int] = request.get("WarmThroughput", {})
    for name, units in given.items():
        if units < 1:
            raise validation(f"{INVALID}{name} must be at least 1")
    return {**before, **given}


def described_throughput(maxima: dict[str, int], warmed: dict[str, int]) -> dict[str, Any]:
    """The members of a description that say both, where they were given."""
    told: dict[str, Any] = {}
    if maxima:
        told["OnDemandThroughput"] = {name: maxima.get(name, _NO_MAXIMUM) for name in _MAXIMA}
    if warmed:
        told["WarmThroughput"] = {**warmed, "Status": "ACTIVE"}
    return told
