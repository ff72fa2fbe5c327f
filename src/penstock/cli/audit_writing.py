"""Records written as CSV and as JSON by lines."""

import csv
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from typing import BinaryIO

from bson.raw_bson import RawBSONDocument

from penstock.audit.csv import COLUMNS_MAX, header_of, rows_of
from penstock.audit.querying import Querier
from penstock.audit.shown import json_text


def write_jsonl(
    out: BinaryIO, querier: Querier, records: Iterable[RawBSONDocument], *, canonical: bool = False
) -> None:
    """Each record whole, as Extended JSON on a line."""
    for record in records:
        whole = querier.whole(record)
        out.write(json_text(whole, canonical=canonical).encode() + b"\n")


def write_csv(
    out: BinaryIO, querier: Querier, again: Callable[[], Iterator[RawBSONDocument]], *, tz: str
) -> None:
    """The records that `again` gives, as `penstock.audit.csv` says; it is called twice, and must
    give the same ones."""
    columns, said = querier.columns(again(), most=COLUMNS_MAX)
    stream = TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    try:
        lines = csv.writer(stream)
        lines.writerow(header_of(columns, tz=tz, said=said))
        whole = (querier.whole(record) for record in again())
        lines.writerows(rows_of(whole, columns=sorted(columns), tz=tz, said=said))
    finally:
        stream.detach()
