"""What Spark says of a statement that it could not compute, and of what that came from.

Where several stages fail at the same moment, Spark wraps what they failed of into an error that
says so; and what it raises while it hands over rows may not be a Python error of its own kind. So
whoever asks here is answered from all that an error came from.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JNetworkError

LOST: Final = (Py4JNetworkError, ConnectionError)
"""What a call of Spark raises whose JVM has ended, which nobody but itself has ended."""
_DATA_EXCEPTION: Final = "22"
"""The class of SQLSTATE of what values are to blame for."""
_CONSTRAINT: Final = "23"
"""The class of SQLSTATE of rows that do not meet what their table asks of them."""
_GONE: Final = ("PATH_NOT_FOUND", "FAILED_READ_FILE")
RAISED_IN_SQL: Final = "USER_RAISED_EXCEPTION"
"""By raise_error() or assert_true(): somebody's judgement of a value."""
_RAISED_IN_PYTHON: Final = "PythonException"
"""What a worker raised; its text is that of whoever wrote its code."""


class _Named(NamedTuple):
    """How Spark names one error; "" where it does not."""

    kind: str
    """Its class."""
    condition: str
    state: str
    """SQLSTATE."""


def of_query(error: Exception) -> bool:
    """Whether Spark cannot make a plan of a statement, though all files are there."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException) and not is_gone(error)


def condition_of(error: Exception) -> str:
    """What Spark calls the error: where values are to blame, the first that is said of them."""
    return of_values(error) or next(
        (one.condition for one in _causes(error) if one.condition), type(error).__name__
    )


def of_values(error: Exception) -> str | None:
    """What Spark calls it where values are to blame that something was computed of; None else."""
    for _, named, state in _causes(error):
        if state.startswith(_DATA_EXCEPTION):
            return named or state
    return None


def of_rows(error: BaseException) -> bool:
    """Whether rows are to blame: their values, or what their table asks of them."""
    return any(one.state.startswith((_DATA_EXCEPTION, _CONSTRAINT)) for one in _causes(error))


def quotes_values(error: BaseException) -> bool:
    """Whether the text of an error may have values of rows in it: then nothing is to be looked for
    there."""
    return of_rows(error) or any(
        one.condition == RAISED_IN_SQL or one.kind.endswith(_RAISED_IN_PYTHON)
        for one in _causes(error)
    )


def is_called(error: BaseException, *conditions: str) -> bool:
    """Whether Spark, or Delta in it, names the error, or what it came from, by one of these words,
    or by one that begins so."""
    return any(one.condition.startswith(conditions) for one in _causes(error))


def is_gone(error: Exception) -> bool:
    """Whether a file is not there any more."""
    return is_called(error, *_GONE)


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


def _causes(error: BaseException) -> Iterator[_Named]:
    """An error, and each that it came from: the JVM's own, where it was raised there, for PySpark
    keeps the names of some alone."""
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        one: Any = error
        while one is not None:
            condition, state = (
                getattr(one, name, lambda: None)() or "" for name in ("getCondition", "getSqlState")
            )
            yield _Named(type(one).__name__, condition, str(state))
            one = getattr(one, "_cause", None)
        return
    try:
        while java is not None:
            yield _of_jvm(java)
            java = java.getCause()
    except LOST:
        return  # the JVM has ended, and says no more


def _of_jvm(java: Any) -> _Named:
    from py4j import java_gateway
    from pyspark import SparkContext

    context: Any = SparkContext
    py4j: Any = java_gateway
    named = ("", "")
    if py4j.is_instance_of(context._gateway, java, "org.apache.spark.SparkThrowable"):
        errors = context._jvm.PythonErrorUtils
        named = (errors.getCondition(java) or "", errors.getSqlState(java) or "")
    return _Named(str(java.getClass().getName()), *named)
