"""Each error has a name of its own, and says what happened, what is safe and what to do."""

import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from penstock import errors
from penstock.errors import PenstockError


def tree(root: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    """The error and all below it, as declared in penstock.errors."""
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


TREE = list(tree())
SPEAKING = [
    error
    for error in TREE
    if "__init__" in vars(error) and "message" not in inspect.signature(error).parameters
]
"""Those that make their message of facts; others are given it whole."""


def test_an_error_is_named_as_it_is_imported_wherever_it_is_written() -> None:
    """In a traceback as text, which is all that Spark hands on, it is found by that name."""
    written: set[type[PenstockError]] = set()
    for room in pkgutil.iter_modules(errors.__path__, f"{errors.__name__}."):
        found = vars(import_module(room.name)).values()
        written.update(one for one in found if isinstance(one, type))
    assert written == set(TREE)
    assert {one.__name__ for one in written} == set(errors.__all__)


@pytest.mark.parametrize("error", TREE)
def test_an_error_has_a_code_of_its_own(error: type[PenstockError]) -> None:
    assert "code" in vars(error)
    assert [other for other in TREE if other.code == error.code] == [error]
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)?|[A-Z_]+", error.code)


@pytest.mark.parametrize("error", TREE)
def test_an_error_is_drawn_in_the_tree_and_explained(error: type[PenstockError]) -> None:
    assert errors.__doc__
    assert re.search(rf"\b{error.__name__}\b", errors.__doc__)
    assert error.__doc__


@pytest.mark.parametrize("error", TREE)
def test_an_error_ends_a_command_with_a_failure(error: type[PenstockError]) -> None:
    assert 0 < error.exit_code < 64


def spoken(error: type[PenstockError]) -> str:
    """The message of `error` about something."""
    parameters = list(inspect.signature(error).parameters.values())
    values = {
        one.name: "something" if one.annotation is str else 7
        for one in parameters
        if one.kind is one.KEYWORD_ONLY
    }
    positional = ["something" for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    return str(error(*positional, **values))


@pytest.mark.parametrize("error", SPEAKING)
def test_a_message_says_what_happened_what_is_safe_and_what_to_do(
    error: type[PenstockError],
) -> None:
    message = spoken(error)
    assert len(re.findall(r"[.:](?= |$)|$", message)) >= 3, message
    assert "None" not in message


def test_only_what_may_pass_by_itself_is_transient() -> None:
    """The retry loop reads this; a lost position must never be retried away (invariant 4)."""
    transient = {error.code for error in TREE if error.transient}
    assert transient == {
        "archive.unavailable",
        "audit.behind",
        "audit.busy",
        "audit.moved",
        "audit.unavailable",
        "checkpoint.unavailable",
        "log.full",
        "pipeline.workers",
        "service.busy",
        "service.limited",
        "service.unavailable",
        "source.silent",
        "source.unavailable",
    }
