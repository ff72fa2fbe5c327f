"""The types of MySQL's columns, where they are not MariaDB's."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.mysql.anything import KINDS, POINT, Kind, hexed, same, vectors

names = st.text(st.characters(codec="utf-8", exclude_characters="\0$"), max_size=12)
numbers = st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from(
    [0, 127, -128, 32767, -32768, 32768, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**32]
)
doubles = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
leaves = st.none() | st.booleans() | numbers | doubles | st.text(max_size=300)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(names, inner, max_size=6),
    max_leaves=30,
)
large = st.integers(5000, 20000).map(lambda size: {"a": list(range(size)), "b": "x" * size})
"""More than the small form of an object has room for."""


def parsed(text: str) -> Any:
    return json.loads(text)


OWN = [
    Kind("JSON", (documents | large).map(json.dumps), "{}", parsed),
    Kind("VECTOR(5)", vectors(1, 5), "HEX({})", hexed),
]
SHAPE = POINT._replace(
    # As it is kept: longitude comes first, in whichever order the reference system has them.
    select="CONCAT(ST_SRID({0}), ':', HEX(ST_AsBinary({0}, 'axis-order=long-lat')))"
)
_MARIADB = ("UUID", "INET4", "INET6", "JSON")
MYSQL_KINDS = [
    *(kind for kind in KINDS if kind.ddl not in _MARIADB and "COMPRESSED" not in kind.ddl),
    *OWN,
    SHAPE,
    Kind("ENUM('a','é','ž') CHARACTER SET utf16", st.sampled_from(["a", "é", "ž"]), "{}", same),
]
