"""What a store source can be told, and where it looks."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.errors import ConfigError
from penstock.sources.store import StoreSourceConfig
from penstock.sources.store.positions import Scope, StorePosition, parse_position


def config(**settings: object) -> StoreSourceConfig:
    """The settings, checked."""
    return StoreSourceConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("path", "database", "name"),
    [
        ("data/shop", None, "shop"),
        ("data/shop.store.v2", None, "shop"),
        ("data/.shop", None, "shop"),
        ("data/shop", "crm", "crm"),
        ("/", None, "store"),
    ],
)
def test_the_database_is_named_or_the_folder_is_its_name(
    path: str, database: str | None, name: str
) -> None:
    assert config(path=path, database=database).database_name == name


def test_a_relative_path_is_beside_the_file_and_an_absolute_one_is_where_it_says() -> None:
    folder = Path("/etc/penstock")
    assert config(path="shop").beside(folder).path == folder / "shop"
    assert config(path="/data/shop").beside(folder).path == Path("/data/shop")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "path"),
        ({"path": "x", "database": "a.b"}, "database"),
        ({"path": "x", "include": [""]}, "names no table"),
        ({"path": "x", "start": "later"}, "start"),
        ({"path": "x", "table": "a"}, "table"),
    ],
)
def test_what_means_nothing_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**settings)


def test_a_pattern_is_of_whole_names_and_what_is_included_is_captured() -> None:
    scope = Scope("shop", include=("order?", "a.*"), exclude=("orders",))
    assert [name for name in ("orders", "order", "orders2", "a.b", "ab") if name in scope] == [
        "orders",
        "a.b",
    ]
    assert "x" in Scope("shop")
    assert "x" not in Scope("shop", exclude=("*",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a position of a store source"),
        ("1:2", "not a position of a store source"),
        ('{"store":"s","sequence":1,"scope":{"database":"d"},"v":2}', "newer Penstock"),
    ],
)
def test_a_position_that_this_version_did_not_write_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_position(text)


def test_a_position_is_read_as_it_was_written() -> None:
    position = StorePosition(
        store="s", sequence=7, scope=Scope("d", include=("a",)), life="l", known={3: 9}
    )
    assert parse_position(position.text()) == position
