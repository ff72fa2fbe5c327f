"""What a table has in the protocol and means nothing to the store: how it is billed and protected,
its class, and its tags."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from penstock.serve.dynamodb.errors import validation
from penstock.serve.dynamodb.keys import INVALID
from penstock.serve.dynamodb.throughput import (
    UNITS_MAX,
    described_throughput,
    on_demand,
    refuse_units,
    warm,
)
from penstock.serve.dynamodb.updating import refuse_same_units
from penstock.store import Table

_STANDARD: Final = "STANDARD"


class Settings(Struct, frozen=True, omit_defaults=True):
    """All of it, as it is kept with a table."""

    billing: str = "PROVISIONED"
    read_units: int = 0
    write_units: int = 0
    protected: bool = False
    tags: dict[str, str] = {}
    table_class: str = _STANDARD
    on_demand: dict[str, int] = {}
    """The maxima of OnDemandThroughput."""
    warm: dict[str, int] = {}
    on_demand_ms: int = 0
    """When UpdateTable last made it PAY_PER_REQUEST; 0 for one that was created so, or never was.
    For one that was created so and is PROVISIONED now, when it was created."""

    def encoded(self) -> bytes:
        """The bytes that are kept with the table."""
        return msgspec.msgpack.encode(self)


def settings_of(kept: bytes | None) -> Settings:
    """What was kept with a table; one that was made from Python has nothing."""
    if kept is None:
        return Settings(billing="PAY_PER_REQUEST")
    members = msgspec.msgpack.decode(kept)
    # Kept as they were given once: 5.0, and beyond what can be described.
    units = {
        name: min(int(members[name]), UNITS_MAX)
        for name in ("read_units", "write_units")
        if name in members
    }
    return msgspec.convert({**members, **units}, Settings)


def created_settings(request: dict[str, Any], tags: dict[str, str]) -> Settings:
    """The settings of a table that is to be made. Raises WireError."""
    settings = _changed(request, Settings(tags=tags))
    if settings.billing == "PROVISIONED" and not settings.read_units:
        raise validation(
            f"{INVALID}ReadCapacityUnits and WriteCapacityUnits must both be specified when "
            f"BillingMode is PROVISIONED"
        )
    return settings


def updated_settings(
    request: dict[str, Any], table: Table, before: Settings, *, now_ms: int
) -> Settings:
    """The settings that a table has after UpdateTable. Raises WireError."""
    settings = _changed(request, before)
    _refuse_provisioned(request, before)
    if settings.billing == before.billing:
        return settings
    # How the service dates it: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/
    # API_BillingModeSummary.html
    moment = now_ms if settings.billing == "PAY_PER_REQUEST" else before.on_demand_ms
    return msgspec.structs.replace(settings, on_demand_ms=moment or table.created_ms)


def described_settings(settings: Settings, table: Table) -> dict[str, Any]:
    """The members of a table's description that say them."""
    described: dict[str, Any] = {
        "ProvisionedThroughput": {
            "NumberOfDecreasesToday": 0,
            "ReadCapacityUnits": settings.read_units,
            "WriteCapacityUnits": settings.write_units,
        },
        "DeletionProtectionEnabled": settings.protected,
        **described_throughput(settings.on_demand, settings.warm),
    }
    if settings.billing == "PAY_PER_REQUEST" or settings.on_demand_ms:
        moment_ms = settings.on_demand_ms or table.created_ms
        described["BillingModeSummary"] = {
            "BillingMode": settings.billing,
            "LastUpdateToPayPerRequestDateTime": moment_ms / 1000,
        }
    if settings.table_class != _STANDARD:
        described["TableClassSummary"] = {"TableClass": settings.table_class}
    return described


def _changed(request: dict[str, Any], before: Settings) -> Settings:
    billing = request.get("BillingMode", before.billing)
    units = request.get("ProvisionedThroughput")
    if billing == "PAY_PER_REQUEST" and units is not None:
        raise validation(
            f"{INVALID}Neither ReadCapacityUnits nor WriteCapacityUnits can be specified when "
            f"BillingMode is PAY_PER_REQUEST"
        )
    read, write = before.read_units, before.write_units
    if billing == "PAY_PER_REQUEST":
        read = write = 0
    elif units is not None:
        refuse_units(units)
        read, write = units["ReadCapacityUnits"], units["WriteCapacityUnits"]
    return msgspec.structs.replace(
        before,
        billing=billing,
        read_units=read,
        write_units=write,
        protected=request.get("DeletionProtectionEnabled", before.protected),
        table_class=request.get("TableClass", before.table_class),
        on_demand=on_demand(request, before.on_demand, billing),
        warm=warm(request, before.warm),
    )


def _refuse_provisioned(request: dict[str, Any], before: Settings) -> None:
    """Refuse capacities that are what they were, and none where some are needed."""
    units = request.get("ProvisionedThroughput")
    if units is None:
        if request.get("BillingMode") == "PROVISIONED" and not before.read_units:
            raise validation(
                f"{INVALID}ProvisionedThroughput must be specified when BillingMode is PROVISIONED"
            )
        return
    requested = (units["ReadCapacityUnits"], units["WriteCapacityUnits"])
    refuse_same_units("table", "table", (before.read_units, before.write_units), requested)
