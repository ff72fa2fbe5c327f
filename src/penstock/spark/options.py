"""The options of `format("penstock")`, in Spark's habits, and the offsets that Spark keeps."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct

from penstock.client.credentials import NOBODY, Credentials
from penstock.client.flight import LogClient, to_wire
from penstock.errors import ConfigError, MalformedProgressError, PenstockError
from penstock.progress import Progress, parse_progress

Documents = Literal["json", "variant", "struct"]


class Options(Struct, frozen=True, kw_only=True):
    """What a reader asked for. Names as Spark users write them are in OPTION_NAMES."""

    endpoint: str
    starting_offsets: str
    ending_offsets: str = "latest"
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    source: str = ""
    collections: tuple[str, ...] = ()
    control_events: bool = True
    documents: Documents = "json"
    document_schema: str = ""
    partitions: int = 0
    pipeline: str = ""
    archive: str = ""
    credentials: Credentials = NOBODY


OPTION_NAMES: Final[Mapping[str, str]] = {
    "endpoint": 'host:port of the service\'s Flight address; default "127.0.0.1:50052"',
    "startingOffsets": 'of a new query: "earliest" (what is left), "beginning" (all there ever '
    'was: TRIMMED if retention removed some of it), "latest" (a stream\'s default), a progress '
    'marker, or {"logId": "<16 hex digits>", "sequence": n}; read after it',
    "endingOffsets": 'of a batch read: the same forms; default "latest"; read up to it, inclusive',
    "maxOffsetsPerTrigger": "at most so many entries a batch; a larger commit comes whole",
    "failOnDataLoss": "true: entries removed by retention before they were read stop the query; "
    "false: a row of kind GAP says which are missing, and the query goes on",
    "source": "only this source's entries",
    "collections": 'only these, comma-separated: "collection" or "source/collection"',
    "controlEvents": "true: schema, gap and system events are rows too (kind > 0); false: they are "
    "left out, and a gap stops the query",
    "documents": '"json" (text), "variant", or "struct" (see documentSchema)',
    "documentSchema": 'of documents = "struct": DDL, such as "_id STRING, total DECIMAL(10,2)"',
    "partitions": "into how many tasks a batch is split, at most; default: by size, up to 8",
    "token": "what `penstock access create` printed; Spark leaves it out of what it shows",
    "tokenFile": "a file with the token, on the driver, instead",
    "tlsCa": "certificates (PEM) that signed the service's: a file on the driver, or their text",
    "tlsCertificate": "our own (PEM), for mutual TLS: a file on the driver, or its text",
    "tlsSecretKey": "its key (PEM), likewise; Spark leaves it out of what it shows",
    "archive": "where the service's [archive] is, a folder or a URL, for driver and workers: what "
    "retention removed is read from there, as one with the log",
    "pipeline": "a name under which `penstock status` shows how far this query has come, for a "
    "token that sees all of a source",
}
"""Every option and what it means; the reference page is made from this."""


def parse_options(given: Mapping[str, str], *, starting_default: str) -> Options:
    """Options from Spark's case-insensitive text. Raises ConfigError for a typo or a bad value."""
    names = {name.lower(): name for name in OPTION_NAMES}
    values: dict[str, str] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            raise ConfigError(
                f"format 'penstock' has no option {key!r}. Nothing was read. Its options are "
                f"{', '.join(OPTION_NAMES)}."
            )
        values[name] = value
    documents = values.get("documents", "json").lower()
    if documents not in {"json", "variant", "struct"}:
        raise _bad("documents", documents, "json, variant or struct")
    return Options(
        endpoint=values.get("endpoint", "127.0.0.1:50052"),
        starting_offsets=values.get("startingOffsets", starting_default),
        ending_offsets=values.get("endingOffsets", "latest"),
        max_offsets_per_trigger=_positive(values, "maxOffsetsPerTrigger"),
        fail_on_data_loss=_flag(values, "failOnDataLoss"),
        source=values.get("source", ""),
        collections=tuple(
            name for part in values.get("collections", "").split(",") if (name := part.strip())
        ),
        control_events=_flag(values, "controlEvents"),
        documents=documents,  # type: ignore[arg-type]
        document_schema=values.get("documentSchema", ""),
        partitions=_positive(values, "partitions") or 0,
        pipeline=values.get("pipeline", ""),
        archive=_archive(values.get("archive", "")),
        credentials=_credentials(values),
    )


def _archive(path: str) -> str:
    """Workers have other working directories than the driver."""
    return path if "://" in path or not path else str(Path(path).resolve())


def _credentials(values: Mapping[str, str]) -> Credentials:
    """Read on the driver: workers get what the files held."""
    given = {
        field: values[name]
        for field, name in (
            ("ca", "tlsCa"),
            ("certificate", "tlsCertificate"),
            ("key", "tlsSecretKey"),
        )
        if values.get(name)
    }
    return Credentials.read(
        token=values.get("token", ""), token_file=values.get("tokenFile"), **given
    )


def credential_options(credentials: Credentials) -> dict[str, str]:
    """The options that make a reader show these credentials."""
    given = {
        "token": credentials.token,
        "tlsCa": credentials.ca.decode(),
        "tlsCertificate": credentials.certificate.decode(),
        "tlsSecretKey": credentials.key.decode(),
    }
    return {name: value for name, value in given.items() if value}


def _positive(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise _bad(name, text, "a number above 0")
    return int(text)


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, "true").lower()
    if text not in {"true", "false"}:
        raise _bad(name, text, "true or false")
    return text == "true"


def _bad(name: str, value: str, wanted: str) -> ConfigError:
    return ConfigError(f"option {name} is {value!r}; it must be {wanted}. Nothing was read.")


BEGINNING: Final = "beginning"
"""The place before the first entry that the log ever had."""

NOTE: Final = "penstock error: "
"""Spark hands errors on as text; ours go along as JSON behind this, so that no fact is lost."""


@contextmanager
def noted() -> Generator[None]:
    """Have an error of ours carry itself in its traceback's text; see NOTE."""
    try:
        yield
    except PenstockError as error:
        error.add_note(f"{NOTE}{to_wire(error).decode()}")
        raise


# --- offsets ----------------------------------------------------------------------------------


def offset_of(place: Progress, *, first: Progress | None = None) -> dict[str, Any]:
    """A place as the JSON that Spark writes into its checkpoint: a progress marker, spelled out.

    `first` is where a query's first batch starts. Spark does not keep that: if the batch is
    replayed it asks again, and "latest" or "earliest" would be another place by then.
    """
    offset: dict[str, Any] = {
        "logId": f"{place.log_id:016x}",
        "sequence": place.sequence,
        "check": place.check,
    }
    if first is not None:
        offset["first"] = {"sequence": first.sequence, "check": first.check}
    return offset


def place_of(offset: Mapping[str, Any]) -> Progress:
    """The place that an offset names. Raises MalformedProgressError if it names none."""
    try:
        return Progress(int(offset["logId"], 16), int(offset["sequence"]), int(offset["check"]))
    except (KeyError, TypeError, ValueError):
        raise MalformedProgressError(json.dumps(offset)) from None


def first_of(end: Mapping[str, Any], start: Mapping[str, Any]) -> Progress:
    """Where the batch that ends at `end` starts: what it says itself, else `start`."""
    first = end.get("first")
    if first is None:
        return place_of(start)
    return Progress(place_of(end).log_id, int(first["sequence"]), int(first["check"]))


def resolve(client: LogClient, asked: str) -> Progress:
    """The place that a word for it, a marker or offset JSON names in the log as it is now.

    The words are "earliest", "beginning" and "latest". Raises MalformedProgressError, and for a
    place that the log cannot go on from what `LogClient.plan` raises.
    """
    if asked.lower() == "latest":
        return client.head()
    if asked.lower() == "earliest":
        bounds = client.bounds()
        return Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
    if asked.lower() == BEGINNING:
        first = _beginning(client)
        return client.marker(log_id=first.log_id, sequence=first.sequence)
    if not asked.lstrip().startswith("{"):
        return _verified(client, parse_progress(asked))
    try:
        offset = json.loads(asked)
        log_id, sequence = int(offset["logId"], 16), int(offset["sequence"])
    except (KeyError, TypeError, ValueError):
        raise MalformedProgressError(asked) from None
    if "check" in offset:
        return _verified(client, place_of(offset))
    return client.marker(log_id=log_id, sequence=sequence)


def unverified(client: LogClient, asked: str) -> Progress:
    """The place that a marker, offset JSON or "beginning" names, whatever the log has there by
    now."""
    if asked.lower() == BEGINNING:
        return _beginning(client)
    if not asked.lstrip().startswith("{"):
        return parse_progress(asked)
    return place_of({"check": 0, **json.loads(asked)})


def _beginning(client: LogClient) -> Progress:
    return Progress(client.bounds().log_id, 0, 0)


def _verified(client: LogClient, place: Progress) -> Progress:
    return client.plan(after=place, until=place).after
