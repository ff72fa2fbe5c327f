"""What all functions ask of their entries before they make anything of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pyspark.sql.types import StringType

from penstock.errors import ConfigError, PipelineError
from penstock.spark.functions.survey import SURVEYED, Survey, survey
from penstock.spark.functions.told import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OnGap = Literal["halt", "record"]
Start = Literal["beginning", "oldest"]


def asked(
    entries: "DataFrame",
    caller: str,
    collections: Sequence[str],
    on_gap: OnGap,
    start: Start = "oldest",
    *,
    of_rows: bool = True,
) -> Survey:
    """What is known of the entries that `caller` was given. Raises what is wrong with them; what
    an event does to rows is asked only `of_rows`."""
    check_entries(entries, caller, (*SURVEYED, *COLUMNS), collections)
    known = survey(entries, collections=collections, halts=on_gap == "halt", of_rows=of_rows)
    if start == "beginning" and known.first != 1:
        begin = f"begin at sequence {known.first}, and the log began before"
        none = "are none, and the log may have had some that retention has removed"
        raise PipelineError(
            f"these entries {begin if known.first else none}: rows that "
            f"were told there would be missing. Nothing was made of them. Read with "
            f"startingOffsets = 'earliest', from a log or its archive that has everything. Where "
            f"what came before is of other sources or collections, or is to be left out knowingly, "
            f"set start = 'oldest'."
        )
    return known


def check_entries(
    entries: "DataFrame", caller: str, names: Sequence[str], collections: Sequence[str]
) -> None:
    """Raises ConfigError for a stream, for a column that is missing or is no JSON text, and for one
    name in place of names."""
    if isinstance(collections, str):
        raise ConfigError(
            f"{caller}: collections is the text {collections!r}; it is a list of names, as "
            f"[{collections!r}]. Nothing was read."
        )
    if entries.isStreaming:
        raise ConfigError(
            f"{caller} is for a DataFrame that ends, and this one is a stream. Nothing was read. "
            f"Use it inside foreachBatch, where each batch has whole commits: "
            f"stream.writeStream.foreachBatch(lambda batch, number: "
            f"write(batch.transform({caller})))."
        )
    check_columns(entries, caller, names)
    if "full_document" in names and entries.schema["full_document"].dataType != StringType():
        raise ConfigError(
            f"{caller} takes documents as JSON text. Nothing was read. Leave the option documents "
            f"out, and say `schema` here for columns with types."
        )


def check_columns(frame: "DataFrame", caller: str, names: Sequence[str]) -> None:
    """Raises ConfigError for a column that is missing."""
    missing = [name for name in dict.fromkeys(names) if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"{caller} needs the columns {', '.join(missing)}, which this DataFrame has not. "
            f"Nothing was read. Give it entries as format('penstock') reads them, before you "
            f"select from them."
            if caller != "build_on"
            else f"build_on needs the columns {', '.join(missing)}, which one of its DataFrames "
            f"has not. Nothing was read. Give it latest_changes without schema, and rows that have "
            f"what current_rows gives."
        )
