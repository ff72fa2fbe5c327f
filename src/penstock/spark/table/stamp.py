"""What a commit to a Delta table says about itself.

Every commit carries two app transactions of the Delta protocol: how far the table has come in the
log (a sequence), and which log that is. They are the guard that makes batches exactly-once: Delta
refuses two concurrent commits of one app transaction, and whoever writes looks first. They belong
to the pipeline's name, so neither Spark's checkpoint nor its query id matters.
Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers
"""

from typing import Final

from deltalake import CommitProperties, Transaction
from msgspec import Struct, structs

from penstock.spark.table.committing import OVERWRITE_RETRIES

_SIGN: Final = 1 << 64


class Stamp(Struct, frozen=True, kw_only=True):
    """What a commit says about itself."""

    pipeline: str
    log_id: int | None
    after: int
    """Sequence before the first entry that the commit applies."""
    until: int
    """Sequence of the last one."""
    batch: int

    @property
    def moves(self) -> bool:
        """Whether the table is further with the commit. It is not where rows are mended, as of the
        place where it is."""
        return self.until > self.after

    def unmoved(self, at: int) -> "Stamp":
        """The same, of a commit that leaves the table where it is."""
        return structs.replace(self, after=at, until=at)

    def properties(self, *, overwrites: bool = False) -> CommitProperties:
        """The commit's app transactions, and the same for people in its history."""
        transactions = [Transaction(app_id(self.pipeline), self.until)]
        if self.log_id is not None:
            transactions.append(Transaction(log_app_id(self.pipeline), signed(self.log_id)))
        return CommitProperties(
            custom_metadata=self.said(),
            app_transactions=transactions,
            max_commit_retries=OVERWRITE_RETRIES if overwrites else None,
        )

    def said(self) -> dict[str, str]:
        """What it says to people, in the table's history."""
        said = {
            "penstock.pipeline": self.pipeline,
            "penstock.after": str(self.after),
            "penstock.until": str(self.until),
            "penstock.batch": str(self.batch),
        }
        if self.log_id is not None:
            said["penstock.log"] = f"{self.log_id:016x}"
        return said


def app_id(pipeline: str) -> str:
    """The app transaction that says how far a table has come."""
    return f"penstock/{pipeline}"


def log_app_id(pipeline: str) -> str:
    """The app transaction that says which log that is."""
    return f"penstock/{pipeline}/log"


def signed(log_id: int) -> int:
    """A log's id, as an app transaction can have it."""
    return log_id - _SIGN if log_id >= _SIGN >> 1 else log_id
