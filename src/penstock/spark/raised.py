"""What an error that came through Spark, as text, says in our own words."""

import re
import traceback
from pathlib import Path
from typing import Final

from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock import errors
from penstock.client.flight import from_wire
from penstock.errors import (
    ConfigError,
    FieldTooLargeError,
    PenstockError,
    PipelineError,
    SparkMemoryError,
    WorkersUnavailableError,
)
from penstock.spark.causes import LOST, RAISED_IN_SQL, is_called, of_rows, quotes_values
from penstock.spark.options import NOTE
from penstock.spark.storage import trouble_of

_NO_MEMORY: Final = ("OutOfMemoryError", "spark.driver.maxResultSize")
_TOO_LONG: Final = re.compile(
    r"^(?:[\w.]+: )?(?:offset overflow while concatenating|overflowed binary array capacity)",
    re.MULTILINE,
)
"""What Arrow says where a column of texts would have 2 GiB."""
_WORKERS_AWAY: Final = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")
TO_END: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is no Exception and no error either; all else is one, as a panic of delta-rs."""
_EXTRAS: Final = {
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "pymongo": "mongodb",
    "bson": "mongodb",
}
"""By package: what to install for the destination that needs it."""
_OVERTAKEN: Final = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED")
"""What Delta calls a commit in Spark that another one has made impossible."""
_SAFE: Final = (
    "Each table has a batch whole or not at all; one that is not whole is applied again when the "
    "pipeline is started."
)
_NAMED = re.compile(
    r"(?:^|^Caused by: |\[USER_RAISED_EXCEPTION\] )penstock\.errors\.(\w+): (.*)", re.MULTILINE
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_NOTED = re.compile(rf"^{re.escape(NOTE)}(\{{.*\}})", re.MULTILINE)


def known_error(error: BaseException, *, pipeline: str) -> PenstockError | None:
    """The error of the tree that `error` is, or comes from; None for any other.

    Spark's workers and its JVM hand errors on as the text of a traceback; ours are found by the
    note that `format("penstock")` adds there, or the name of their class.
    """
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, LOST):
        what = "Spark's JVM in the driver has ended, as one does that has no memory left"
        return SparkMemoryError(pipeline=pipeline, what=what)
    if of_rows(error):
        return None
    text = str(error)  # of one of Spark's, that is some fifty calls to its JVM
    if not quotes_values(error):
        if any(said in text for said in _WORKERS_AWAY):
            return WorkersUnavailableError(pipeline=pipeline)
        for said in _NO_MEMORY:
            if said in text:
                what = f"Spark has not the memory for a batch ({said})"
                return SparkMemoryError(pipeline=pipeline, what=what)
        if _TOO_LONG.search(text):
            return FieldTooLargeError(pipeline=pipeline)
    else:
        raised = _raised_in(error, text)
        if _TOO_LONG.match(raised):
            return FieldTooLargeError(pipeline=pipeline)
        if not _NAMED.match(raised):
            return None
    for noted in reversed(_NOTED.findall(text)):
        known = from_wire(noted.encode())
        if known is not None:
            return known
    for name, sentence in reversed(_NAMED.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            found = kind.__new__(kind)
            Exception.__init__(found, sentence)
            return found
    return None


def _raised_in(error: BaseException, text: str) -> str:
    """The line that says what was raised, by code or by SQL; values may be in it and behind it."""
    if is_called(error, RAISED_IN_SQL):
        return text.partition(f"[{RAISED_IN_SQL}] ")[2]
    _, _, last = text.rpartition(_TRACEBACK)
    lines = last.splitlines()[1:]
    return next((line for line in lines if line and not line[0].isspace()), "")


def own_error(error: BaseException, *, pipeline: str) -> PenstockError:
    """As `known_error`, with an error for all others. Their text is not repeated: it may quote a
    document."""
    known = known_error(error, pipeline=pipeline)
    if known is not None:
        return known
    if isinstance(error, ImportError) and (extra := _EXTRAS.get(error.name or "")):
        return ConfigError(
            f"pipeline {pipeline}: its destination needs a package that is not installed where the "
            f"driver runs ({error.name}). Nothing was written. Install it: "
            f"pip install 'penstock[{extra}]'"
        )
    if isinstance(error, CommitFailedError) or is_overtaken(error):
        return PipelineError(
            f"pipeline {pipeline}: another process committed to the same table at the same time. "
            f"Nothing of the batch was written twice. Run one driver per pipeline, and let nothing "
            f"else write rows to its tables; then start it again."
        )
    trouble = trouble_of(error)
    if trouble is not None:
        return PipelineError(
            f"pipeline {pipeline}: {trouble} ({kind_of(error)}). {_SAFE} {trouble.kind.remedy}"
        )
    if isinstance(error, PySparkException | Py4JError):
        return PipelineError(
            f"pipeline {pipeline}: {kind_of(error)}, which is no error of Penstock's own; Spark's "
            f"log has its text. {_SAFE}"
        )
    return PipelineError(
        f"pipeline {pipeline}: {kind_of(error)}, which is no error of Penstock's own"
        f"{_place_of(error)}; its text is not shown, for it may quote what was captured. "
        f"{_SAFE} Please report it."
    )


def _place_of(error: BaseException) -> str:
    """Where it was raised, as words; none for what never was."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def is_overtaken(error: BaseException) -> bool:
    """Whether Delta, in Spark, refused a commit because of another one."""
    return is_called(error, *_OVERTAKEN)


def kind_of(error: BaseException) -> str:
    """The class of `error` and, where Spark passed it on as text, of what it comes from."""
    kind, inner = type(error).__name__, inner_kind(error)
    return f"{kind} ({inner})" if inner not in {"", kind} else kind


def inner_kind(error: BaseException) -> str:
    """The class of what `error` comes from, where Spark passed it on as text; "" for none."""
    inner = re.findall(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception))\b", str(error), re.MULTILINE)
    return inner[-1] if inner else ""
