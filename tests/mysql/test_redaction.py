"""No value of a statement is left in it, however its session's server would take it apart (A26)."""

# Statements are longer than lines.
# ruff: noqa: E501

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.sources.mysql.redaction import comments, redacted
from tests.seeds import cases

STATEMENTS = [
    ("INSERT INTO t (a, b) VALUES (1, 'x'), (-2.5e-3, NULL)", "INSERT INTO t (a, b) VALUES (?, ?), (-?, ?)"),
    ("UPDATE `o'clock` SET a=.5, b = 0xFF, c = x'4D' WHERE id IN (1,2)", "UPDATE `o'clock` SET a=?, b = ?, c = x? WHERE id IN (?,?)"),
    ("DELETE FROM t1 WHERE n1 IS NULL AND b IS NOT NULL AND c = TRUE", "DELETE FROM t1 WHERE n1 IS NULL AND b IS NOT NULL AND c = ?"),
    ("UPDATE t SET a = 'it''s', b = \"a \"\"b\"\" c\"", "UPDATE t SET a = ?, b = ?"),
    ("/* by anna */ UPDATE t SET a = 1 -- for 55\n, b = 2 # 77", "  UPDATE t SET a = ?  \n, b = ?  "),
    ("UPDATE t SET a = 'never ends", "UPDATE t SET a = ?"),
    ("UPDATE t SET a = 1 /* never ends", "UPDATE t SET a = ? ?"),
    ("UPDATE t SET a = 5--1", "UPDATE t SET a = ?--?"),
    ("UPDATE t SET a = 1.5, b = 1e10, c = 1.5e-10, d = 1.e5", "UPDATE t SET a = ?, b = ?, c = ?, d = ?"),
    ("UPDATE t SET a = 'it\\'s secret' WHERE b", "UPDATE t SET a = ?"),
    ("UPDATE t SET a = 'c:\\\\d', b = 2", "UPDATE t SET a = ?, b = ?"),
    ("UPDATE t SET a = '\N{REPLACEMENT CHARACTER}\\', 'secret'", "UPDATE t SET a = ??"),
    ("SELECT $$secret$$", "SELECT ?"),
    ("UPDATE t SET a = \\N, b = _utf8mb4'x' COLLATE utf8mb4_bin", "UPDATE t SET a = ?, b = _utf8mb4? COLLATE utf8mb4_bin"),
    ("", ""),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), STATEMENTS)
def test_a_statement_keeps_its_words_and_loses_its_values(statement: str, expected: str) -> None:
    assert redacted(statement) == expected


SECRET = re.compile(r"SECRET|7\d{5}|[Xx]yzzy")
inner = st.lists(
    st.sampled_from(
        ["SECRET", "'", '"', "`", "\\", "\\\\", "/*", "*/", "/*!", "--", "-- ", "#", " ", "\n", "ž",
         ",", "(", "712345", "Xyzzy", "?", "$$", "%s", "\\'", '\\"']
    ),
    min_size=1,
    max_size=8,
).map("".join)  # fmt: skip


def quoted(text: str, quote: str, *, escapes: bool) -> str:
    """A text as whoever writes SQL for that mode writes it."""
    text = text.replace(quote, quote * 2)
    return quote + (text.replace("\\", "\\\\") if escapes else text) + quote


@st.composite
def written(draw: st.DrawFn) -> str:
    """A statement of values that are secret, in one of the modes that a session may have."""
    escapes, ansi = draw(st.booleans()), draw(st.booleans())
    parts: list[str] = [draw(st.sampled_from(["INSERT INTO t VALUES (", "UPDATE t SET a = "]))]
    for _ in range(draw(st.integers(1, 6))):
        match draw(st.sampled_from(["text", "number", "name", "hex", "comment", "run", "escaped"])):
            case "text":
                quote = "'" if ansi else draw(st.sampled_from(["'", '"']))
                parts.append(quoted(draw(inner), quote, escapes=escapes))
            case "escaped" if escapes:
                text = draw(inner).replace("\\", "\\\\").replace("'", "\\'")
                parts.append(f"'{text}'")
            case "number":
                parts.append(draw(st.sampled_from(["712345", "-7123.45e7", ".712345", "7123456"])))
            case "hex":
                parts.append(draw(st.sampled_from(["0x712345", "x'712345'", "b'0'", "0b1"])))
            case "comment":
                text = draw(inner).replace("*/", "").replace("/*", "").replace("!", "")
                parts.append(
                    draw(st.sampled_from([f"/* {text} */", "-- SECRET'\n", '# "SECRET\n']))
                )
            case "run":
                parts.append(
                    draw(
                        st.sampled_from(
                            ["/*!50000 712345 */", "/*M! 'SECRET' */", "/*!99999 it's SECRET */"]
                        )
                    )
                )
            case _:
                quote = draw(st.sampled_from(["`", '"'])) if ansi else "`"
                name = draw(
                    st.sampled_from(["plain", "it's", "a#b", "back\\", "/*x", "tick``tick"])
                )
                parts.append(f"{quote}{name}{quote}")
        parts.append(draw(st.sampled_from([", ", " ", "=", ")"])))
    return "".join(parts)


@pytest.mark.slow
@settings(max_examples=cases(2000))
@given(written())
def test_no_value_of_a_statement_survives_in_any_mode_of_its_session(statement: str) -> None:
    assert not SECRET.search(redacted(statement)), redacted(statement)


@settings(max_examples=cases(500))
@given(st.lists(st.sampled_from([*"'\"`\\/*!-# \n$1a.@", "SECRET", "/*!", "*/"])).map("".join))
@example("/*!`*/``")
def test_no_text_keeps_what_stands_in_quotes(text: str) -> None:
    """What is redacted has no quotes left but those of names."""
    left = re.sub(r"`[^`]*(?:``[^`]*)*`", "", redacted(text))
    assert "'" not in left
    assert '"' not in left
    assert "`" not in left


@pytest.mark.slow
def test_a_large_statement_costs_no_more_than_its_length() -> None:
    """No text makes the tokenizer go over it again and again: quotes that do not end, ..."""
    for part in ("'", "'\\", "/*!", "/*!/*", "\\'", "''", "`", "1.1.1", "IS  ", "-- ", "#\\"):
        redacted(part * (200_000 // len(part)))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("/* user:anna */ UPDATE t SET a = 1 -- user:bert", ["/* user:anna */", "-- user:bert"]),
        ("UPDATE t SET a = '/* user:mallory */'", []),
        ("UPDATE t SET a = 'it\\'s /* user:mallory */'", []),
        ("UPDATE t SET a = 'back\\', b = ' /* user:mallory */'", []),
        ("UPDATE t SET a = '\\\\' /* user:anna */", ["/* user:anna */"]),
        ("/*!99999 it's */ /* user:x */ '", []),
        ("UPDATE `/* user:mallory */` SET a = 1", []),
    ],
)
def test_only_a_comment_is_a_comment(statement: str, expected: list[str]) -> None:
    """What looks like one in a value is none, whoever wrote the value."""
    assert comments(statement) == expected
