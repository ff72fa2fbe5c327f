"""Whatever text we read and write says its encoding: that of the machine may be another one."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.static.running import ROOT

_TEXT_MODE = re.compile(r"[rwax]t?\+?t?")


def without_encoding(source: str) -> Iterator[int]:
    """The lines on which text is read or written in whatever encoding."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        said = {one.arg: one.value for one in call.keywords}
        if "encoding" in said:
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        named = name or (call.func.id if isinstance(call.func, ast.Name) else "")
        modes = [*call.args[:2], *(said[one] for one in ("mode",) if one in said)]
        opens = named == "open" and any(
            isinstance(mode, ast.Constant)
            and isinstance(mode.value, str)
            and _TEXT_MODE.fullmatch(mode.value)
            for mode in modes
        )
        reads = name in {"read_text", "write_text"}
        runs = any(
            one.arg in {"text", "universal_newlines"} and getattr(one.value, "value", None) is True
            for one in call.keywords
        )
        if opens or reads or runs:
            yield call.lineno


@pytest.mark.static
def test_text_has_its_encoding() -> None:
    source = ROOT / "src" / "penstock"
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(source.rglob("*.py"))
        if "testing" not in path.relative_to(source).parts
        for line in without_encoding(path.read_text(encoding="utf-8"))
    ]
    assert found == []
