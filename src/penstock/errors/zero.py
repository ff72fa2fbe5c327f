"""What a shard of Zero raises, which zero-cache follows."""

from penstock.errors.base import PenstockError


class ZeroError(PenstockError):
    """A shard of Zero cannot be told what changed; nothing was sent of it."""

    code = "zero"


class MisfitError(ZeroError):
    """A value does not fit the column that it is for; nothing was made null, or rounded."""

    code = "zero.misfit"

    def __init__(
        self, *, table: str, column: str, came: str, want: str, remedy: str, inferred: bool = False
    ) -> None:
        self.table = table
        self.column = column
        self.inferred = inferred
        """Whether the column's type was inferred: from the rows that are there now, it would be
        another one."""
        super().__init__(
            f"table {table}, column {column}: {came} came, and it is declared as {want}. Nothing "
            f"was sent of the change, and the log keeps it. {remedy}"
        )


class DocumentUnknownError(ZeroError):
    """A row is there, and its document is not known: its source did not send it with an update."""

    code = "zero.document_unknown"

    def __init__(self, *, source: str, collection: str) -> None:
        super().__init__(
            f"{source}/{collection}: a row is there whose document is not known, for its source "
            f"did not send it with an update. Nothing was sent of it, and nothing is wrong in the "
            f"log. Have the source look documents up, then run `penstock snapshot {source}`."
        )


class ResetError(ZeroError):
    """A shard's tables cannot be followed any further: it has to begin anew."""

    code = "zero.reset"
