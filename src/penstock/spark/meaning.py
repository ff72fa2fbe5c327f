"""Under which settings a user's SQL means the same wherever it is computed."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEANING: Final = {
    # What is not exact is an error, not a null.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # A text means itself, whatever is in it.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.variable.substitute": "false",
}


@contextmanager
def meant_the_same(session: "SparkSession") -> Generator[None]:
    """`session` has these settings while the block runs, and then its own again."""
    own = {name: session.conf.get(name) for name in MEANING}
    try:
        for name, value in MEANING.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, before in own.items():
            session.conf.set(name, before or "")
