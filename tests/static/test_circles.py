"""No module needs itself: a circle of imports is read as one room, however many files it has."""

import grimp
import pytest

pytestmark = pytest.mark.static


def circles(needs: dict[str, frozenset[str]]) -> list[list[str]]:
    """Modules of which each needs the others, each circle by name (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for needed in sorted(needs[module]):
            if needed not in numbers:
                visit(needed)
            if needed in path:
                lowest[module] = min(lowest[module], lowest[needed])
        if lowest[module] == numbers[module]:
            start = path.index(module)
            if len(path) > start + 1:
                found.append(sorted(path[start:]))
            del path[start:]

    for module in sorted(needs):
        if module not in numbers:
            visit(module)
    return found


def test_circles_are_found() -> None:
    needs = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": set[str](), "f": {"a"}}
    assert circles({one: frozenset(others) for one, others in needs.items()}) == [["a", "b", "c"]]


def test_no_imports_go_in_a_circle() -> None:
    """Imports within functions and for types count, too: their readers go round as well."""
    graph = grimp.build_graph("penstock", exclude_type_checking_imports=False, cache_dir=None)
    needs = {
        module: frozenset(graph.find_modules_directly_imported_by(module))
        for module in graph.modules
    }
    assert len(needs) > 500
    found = circles(needs)
    assert not found, "move what two of them need to a third module:\n" + "\n".join(
        f"{len(one)}: {', '.join(one)}" for one in found
    )
