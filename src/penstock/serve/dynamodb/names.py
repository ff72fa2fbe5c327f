"""ARNs of tables and streams, sequence numbers and shard ids: names that clients keep.

None of them changes as long as the region and the account in the configuration do not.
"""

import re
from typing import Final

import xxhash
from msgspec import Struct

from penstock.serve.dynamodb.errors import WireError, not_found, validation
from penstock.serve.dynamodb.numbers import Number, read_number
from penstock.store.schema import Stream, Table
from penstock.store.shards import Shard

_TABLE_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_TABLE_ARN: Final = re.compile(r"arn:[a-z-]+:dynamodb:[a-z0-9-]+:[0-9]{12}:table/([a-zA-Z0-9_.-]+)")
_STREAM_ARN: Final = re.compile(
    r"arn:[a-z-]+:dynamodb:[a-z0-9-]+:[0-9]{12}:table/[a-zA-Z0-9_.-]+/stream/[0-9T:.-]+"
)
_UNPROVEN: Final = 10**20
SEQUENCE_PATTERN: Final = "[0-9]{21,40}"


class Names(Struct, frozen=True):
    """How tables and streams are named here."""

    region: str
    account: str

    def table_arn(self, table: str) -> str:
        """The ARN of a table."""
        return f"arn:aws:dynamodb:{self.region}:{self.account}:table/{table}"

    def stream_arn(self, stream: Stream) -> str:
        """The ARN of a stream."""
        return f"{self.table_arn(stream.table)}/stream/{stream.label}"

    def table_name(self, given: str) -> str:
        """The name of a table that a request names, or gives the ARN of. Raises WireError."""
        if not given.startswith("arn:"):
            return given
        found = _TABLE_ARN.fullmatch(given)
        if found is None:
            raise validation(f"Invalid TableArn: {given[:200]}")
        if given != self.table_arn(found[1]):
            raise not_found()  # of another region or account
        return found[1]

    def resource_name(self, given: str, operation: str) -> str:
        """The name of the table whose ARN is given for its tags. Raises WireError.

        As the service: an ARN of another service or account is denied before its rest is read.
        """
        parts = given.split(":", 5)
        if parts[0] != "arn" or len(parts) < 6:
            raise _invalid_resource(given)
        _, _, service, region, account, resource = parts
        if service != "dynamodb" or account != self.account:
            raise self.denied(given, operation)
        kind, _, table = resource.partition("/")
        if region != self.region or kind != "table" or not is_offered(table):
            raise _invalid_resource(given)
        return table

    def denied(self, resource: str, operation: str) -> WireError:
        """An operation that may not be done to a resource."""
        return WireError(
            "AccessDeniedException",
            f"User: arn:aws:iam::{self.account}:root is not authorized to perform: "
            f"dynamodb:{operation} on resource: {resource[:200]}",
        )


def _invalid_resource(given: str) -> WireError:
    return validation(f"Invalid TableArn: Invalid ResourceArn provided as input {given[:200]}")


def is_offered(table: str) -> bool:
    """Whether the protocol has a name for the table: others are reached from Python only."""
    return _TABLE_NAME.fullmatch(table) is not None


def is_stream_arn(given: str) -> bool:
    """Whether the text has the form of a stream's ARN."""
    return _STREAM_ARN.fullmatch(given) is not None


def check_of(life: str) -> int | None:
    """The check of a record's number, by who wrote the record (`View.life`); None: nobody knows."""
    return int(life, 16) if life else None


def read_sequence_number(given: str) -> Number:
    """The sequence of a record, and `check_of` it."""
    return read_number(given, unproven=_UNPROVEN, places=1 << 63)


def shard_id(stream: Stream, shard: Shard) -> str:
    """A shard's id; in the order of text, an older shard's comes first."""
    name = f"{stream.id}.{stream.label}.{shard.number}"
    return id_of_shard(shard.first, name, shard.life)


def id_of_shard(first: int, name: str, history: str) -> str:
    """The id of a shard that begins with `first`, behind `history`; that may be empty."""
    digest = xxhash.xxh32_hexdigest((f"{name}.{history}" if history else name).encode())
    return f"shardId-{first:020d}-{digest}"


def parent_id(stream: Stream, shards: list[Shard], shard: Shard) -> str | None:
    """The id of a shard's parent; None for the first, and once the parent is forgotten."""
    found = [one for one in shards if one.number == shard.parent]
    return shard_id(stream, found[0]) if found else None


def table_id(store_id: str, table: Table) -> str:
    """A table's id, which the next table of its name does not have."""
    digits = xxhash.xxh3_128_hexdigest(f"{store_id}.{table.id}".encode())
    return "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
