"""One decision says which collections are captured, to the server and to us."""

from typing import Any

import pytest
from pymongo import MongoClient

from penstock.sources.mongodb.namespaces import Namespaces


def captured(
    namespace: str, *, database: str | None = None, include: str = "", exclude: str = ""
) -> bool:
    name, _, collection = namespace.partition(".")
    namespaces = Namespaces(
        database=database, include=tuple(include.split()), exclude=tuple(exclude.split())
    )
    return (name, collection) in namespaces


@pytest.mark.parametrize(
    ("namespace", "options", "wanted"),
    [
        ("shop.orders", {}, True),
        ("shop.system.views", {}, False),
        ("admin.users", {}, False),
        ("local.oplog.rs", {"include": "*"}, False),
        ("shop.orders", {"database": "shop"}, True),
        ("shop2.orders", {"database": "shop"}, False),
        ("shop.orders", {"include": "orders"}, True),
        ("shop.order_lines", {"include": "orders"}, False),
        ("shop.order_lines", {"include": "order*"}, True),
        ("shop.orders", {"include": "other.orders"}, False),
        ("shop.orders", {"include": "sh?p.*"}, True),
        ("shop.orders", {"exclude": "orders"}, False),
        ("shop.ordersXlines", {"exclude": "orders.lines", "database": "shop"}, True),
        ("shop.orders", {"include": "orders", "exclude": "*"}, True),
        ("shop.fs.chunks", {"database": "shop", "include": "fs.chunks"}, True),
        ("shop.fs.chunks", {"database": "shop", "include": "shop.fs.chunks"}, True),
        ("shop.fs.chunks", {"include": "shop.fs.*"}, True),
        ("shop.chunks", {"database": "shop", "include": "fs.chunks"}, False),
    ],
)
def test_patterns_choose_collections(namespace: str, options: dict[str, Any], wanted: bool) -> None:
    assert captured(namespace, **options) is wanted


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("shop", {}, True),
        ("admin", {}, False),
        ("shop", {"database": "shop", "exclude": "*"}, False),
        ("shop2", {"database": "shop"}, False),
        ("shop", {"include": "orders"}, True),
        ("shop", {"include": "sh?p.fs.*"}, True),
        ("shop2", {"include": "shop.*"}, False),
        ("shop", {"exclude": "shop.orders"}, True),
        ("shop", {"exclude": "shop.*"}, False),
        ("shop2", {"exclude": "shop.*"}, True),
    ],
)
def test_a_database_is_reached_where_a_collection_of_it_may_be(
    name: str, options: dict[str, Any], wanted: bool
) -> None:
    split: dict[str, Any] = {
        one: tuple(options.get(one, "").split()) for one in ("include", "exclude")
    }
    namespaces = Namespaces(database=options.get("database"), **split)
    assert namespaces.reach(name) is wanted


def test_the_server_chooses_as_we_do(
    mongo_client: MongoClient[dict[str, Any]], mongo_database: str
) -> None:
    names = ["orders", "order_lines", "orders.lines", "fs.files", "a+b", "Orders", "or\nders"]
    spaces = mongo_client[mongo_database]["spaces"]
    for database in ("shop", "shop2", "sh-p"):
        spaces.insert_many({"ns": {"db": database, "coll": name}} for name in names)
    for patterns in (
        ("orders",),
        ("order*", "fs.?iles"),
        ("shop.orders", "a+b"),
        ("sh?p.*",),
        ("*",),
        ("shop.orders.lines", "shop2.f*"),
        ("or?ders",),
    ):
        for include, exclude in ((patterns, ()), ((), patterns), (patterns, ("*",))):
            chosen = Namespaces(database=None, include=include, exclude=exclude)
            found = {(s["ns"]["db"], s["ns"]["coll"]) for s in spaces.find(chosen.match() or {})}
            everything = {(s["ns"]["db"], s["ns"]["coll"]) for s in spaces.find()}
            assert found == {space for space in everything if space in chosen}, patterns
