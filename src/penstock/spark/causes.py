"""What Spark says of a statement that it could not compute, and of what that came from.

Where several stages fail at the same moment, Spark wraps what they failed of into an error that
says so; and what it raises while it hands over rows may not be a Python error of its own kind. So
whoever asks here is answered from all that an error came from.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

_DATA_EXCEPTION: Final = "22"
"""The class of SQLSTATE of what values are to blame for."""
_GONE: Final = ("PATH_NOT_FOUND", "FAILED_READ_FILE")


def of_query(error: Exception) -> bool:
    """Whether Spark cannot make a plan of a statement, though all files are there."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException) and not is_gone(error)


def condition_of(error: Exception) -> str:
    """What Spark calls the error: where values are to blame, the first that is said of them."""
    return of_values(error) or next(
        (named for named, _ in _causes(error) if named), type(error).__name__
    )


def of_values(error: Exception) -> str | None:
    """What Spark calls it where values are to blame that something was computed of; None else."""
    for named, state in _causes(error):
        if state.startswith(_DATA_EXCEPTION):
            return named or state
    return None


def is_gone(error: Exception) -> bool:
    """Whether a file is not there any more."""
    return any(named.startswith(_GONE) for named, _ in _causes(error))


def why_not(act: Callable[[], object]) -> str | None:
    """Why values cannot be computed, as Spark calls it; None if they can."""
    try:
        act()
    except Exception as error:
        why = of_values(error)
        if why is None:
            raise
        return why
    return None


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """The condition and the SQLSTATE of an error and of each that it came from; "" where none."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import convert_exception

    one: Any = error
    if isinstance(error, Py4JJavaError):
        raised: Any = error
        one = convert_exception(raised.java_exception)
    while one is not None:
        condition, state = (
            getattr(one, name, lambda: None)() or "" for name in ("getCondition", "getSqlState")
        )
        yield condition, str(state)
        one = getattr(one, "_cause", None)
