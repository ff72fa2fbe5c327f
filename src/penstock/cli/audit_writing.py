"""Records written as CSV and as JSON by lines."""

import csv
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from typing import BinaryIO

from bson.raw_bson import RawBSONDocument

from penstock.audit.csv import COLUMNS_MAX, header_of, rows_of
from penstock.audit.reading import Reader
from penstock.audit.shown import json_text


def write_jsonl(
    out: BinaryIO, reader: Reader, records: Iterable[RawBSONDocument], *, canonical: bool = False
) -> None:
    """Each record whole, as Extended JSON on a line."""
    for record in records:
        whole = reader.whole(record)
        out.write(json_text(whole, canonical=canonical).encode() + b"\n")


def write_csv(
    out: BinaryIO, reader: Reader, again: Callable[[], Iterator[RawBSONDocument]], *, tz: str
) -> None:
    """The records that `again` gives, as `penstock.audit.csv` says; it is called twice, and must
    give the same ones."""
    columns, said = reader.columns(again(), most=COLUMNS_MAX)
    stream = TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    try:
        lines = csv.writer(stream)
        lines.writerow(header_of(columns, tz=tz, said=said))
        whole = (reader.whole(record) for record in again())
        lines.writerows(rows_of(whole, columns=sorted(columns), tz=tz, said=said))
    finally:
        stream.detach()
