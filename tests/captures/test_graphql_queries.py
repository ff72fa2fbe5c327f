"""Queries over GraphQL: history, status, gaps; and what may be asked at all."""

import asyncio
import json
from typing import Any

import pytest
from graphql import GraphQLError, get_introspection_query

from penstock.errors import RequestError, TrimmedError
from penstock.progress import parse_progress
from penstock.serve.captures.graphql.limits import OperationLimits, parsed
from penstock.serve.captures.graphql.schema import INTERNAL, CaptureSchema, error_json
from penstock.testing.contracts.captures_base import append_large
from penstock.testing.contracts.capturing import changed, committed, singles, told
from tests.captures.graphql import answered_by, asked, opened, post, subscribe
from tests.captures.sockets import filled, said

PAGE = """query($after: String, $before: String, $first: Int, $last: Int, $since: Since,
    $criteria: [Criterion!]) { history(catalog: "shop", after: $after, before: $before,
    first: $first, last: $last, since: $since, criteria: $criteria) {
        captures { __typename version index }
        pageInfo { startCursor endCursor hasPreviousPage hasNextPage } } }"""
DATA = [{"area": "DATA"}]


async def page(address: str, **variables: Any) -> dict[str, Any]:
    answer = await asked(address, PAGE, **{"criteria": DATA, **variables})
    assert "errors" not in answer, answer
    found: dict[str, Any] = answer["data"]["history"]
    return found


def versions(page: dict[str, Any]) -> list[int]:
    return [int(one["version"]) for one in page["captures"]]


async def test_pages_forward_and_backward_leave_nothing_out_and_split_nothing() -> None:
    async with filled(2) as (log, service), answered_by(service) as address:
        await log.append([committed(*(changed(3, key=n, ordinal=n) for n in range(5)))])
        await log.append(singles(4, 6))
        whole = [1, 2, 3, 3, 3, 3, 3, 4, 5, 6]
        forward: list[int] = []
        after: str | None = None
        while True:
            found = await page(address, after=after, first=3)
            forward += versions(found)
            after = found["pageInfo"]["endCursor"]
            if not found["pageInfo"]["hasNextPage"]:
                break
            assert versions(found)[-1] not in versions(await page(address, after=after, first=1))
        assert forward == whole
        backward: list[int] = []
        before = "now"
        while True:
            found = await page(address, before=before, last=2)
            backward = versions(found) + backward
            before = found["pageInfo"]["startCursor"]
            if not found["pageInfo"]["hasPreviousPage"]:
                break
        assert backward == whole
        assert versions(await page(address, last=1)) == [6]
        assert versions(await page(address, since={"version": 5})) == [5, 6]
        edges = (await page(address, since={"version": 6}, criteria=[]))["captures"]
        assert [(one["__typename"], one["index"]) for one in edges] == [
            ("Transaction", "0"),
            ("OrdersDataChange", "1"),
            ("Transaction", "2"),
        ]


async def test_a_page_that_cannot_be_meant_or_is_gone_is_refused() -> None:
    """E1: with the oldest marker."""
    async with filled(0) as (log, service), answered_by(service) as address:
        for at in range(1, 20):
            await log.append(singles(at, at))
        await log.trim(10)
        marker = (await page(address))["pageInfo"]["endCursor"]
        for variables, code, words in (
            ({"after": marker, "last": 1}, "request", "only one"),
            ({"after": marker, "since": {"version": 12}}, "request", "only one"),
            ({"first": 1, "last": 1}, "request", "only one"),
            ({"first": 0}, "request", "from 1 to"),
            ({"first": 1_001}, "request", "from 1 to"),
            ({"after": "nonsense"}, "MALFORMED", "nonsense"),
            ({"since": {"version": 2}}, "TRIMMED", ""),
            ({"since": {"version": 100}}, "AHEAD", "subscribe"),
        ):
            (error,) = (await asked(address, PAGE, **variables))["errors"]
            assert error["extensions"]["code"] == code, variables
            assert words in error["message"]
            if code == "TRIMMED":
                oldest = parse_progress(error["extensions"]["oldest"])
                assert oldest.sequence == (await log.bounds()).trimmed


async def test_a_page_too_large_to_be_made_as_a_whole_is_refused() -> None:
    query = '{ history(catalog: "shop", first: 1000) { captures { ... on OrdersDataChange { body { fullDocument { rest } } } } } }'  # noqa: E501
    async with filled(1) as (log, service), answered_by(service) as address:
        await append_large(log, 200)
        (error,) = (await asked(address, query))["errors"]
        assert "more than 4194304 bytes" in error["message"]


async def test_status_tells_sources_and_where_the_log_stands() -> None:
    query = "{ status { version progress oldest subscriptions sources { name position events } } }"
    async with filled(3) as (_, service), answered_by(service) as address:
        status = (await asked(address, query))["data"]["status"]
        assert parse_progress(status.pop("progress")).sequence == 3
        assert parse_progress(status.pop("oldest")).sequence == 0
        assert status == {
            "version": "3",
            "subscriptions": 0,
            "sources": [{"name": "shop", "position": "3", "events": "3"}],
        }


async def test_open_gaps_are_read_from_the_log() -> None:
    query = "{ gaps { source sequence } }"
    async with filled(1) as (log, service), answered_by(service) as address:
        assert (await asked(address, query))["data"] == {"gaps": []}
        await log.append([committed(told(2, "gap"))])
        found = {"gaps": [{"source": "shop", "sequence": "2"}]}
        answers = await asyncio.gather(*(asked(address, query) for _ in range(3)))
        assert [one["data"] for one in answers] == [found] * 3
        await log.append([committed(told(3, "gap_closed"))])
        assert (await asked(address, query))["data"] == {"gaps": []}


async def test_only_one_query_as_json_is_answered_over_http() -> None:
    """No batches, no forms, no GET, no subscription, nothing too large."""
    query = b'{"query": "{ gaps { source } }"}'
    async with filled(1, message_bytes_max=4096) as (_, service), answered_by(service) as address:
        assert await post(address, query) == (200, {"data": {"gaps": []}})
        for body, kind, status, words in (
            (b"[" + query + b"]", "application/json", 400, "one at a time"),
            (b"no json", "application/json", 400, "no JSON"),
            (b"[" * 4000, "application/json", 400, "no JSON"),
            (b'{"query": null}', "application/json", 400, "query"),
            (
                b'{"query": "subscription { onDataChange { progress } }"}',
                "application/json",
                400,
                "WebSocket",
            ),
            (query, "text/plain", 415, ""),
            (query, "multipart/form-data", 415, ""),
            (b'{"query": "' + b" " * 5000 + b'"}', "application/json", 413, ""),
        ):
            found, answer = await post(address, body, kind=kind)
            assert found == status, body[:50]
            if words:
                assert words in answer["errors"][0]["message"]
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"GET /graphql?query={gaps{source}} HTTP/1.0\r\nAccept: text/html\r\n\r\n")
        assert b" 405 " in await reader.readline()
        writer.close()


LIMITS = OperationLimits(tokens_max=2_000, depth_max=20, aliases_max=10, fields_max=500)


def doubled(times: int, inside: str) -> str:
    """Fragments that spread the next one twice."""
    parts = (f"fragment f{n} on Q {{ ...f{n + 1} ...f{n + 1} }}" for n in range(times))
    return "{ ...f0 }" + "".join(parts) + f"fragment f{times} on Q {{ {inside} }}"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (doubled(90, "a"), "fields"),
        (doubled(90, "x: a"), "aliases"),
        (doubled(150, "a"), "too often"),
        ("{" + "a {" * 21 + "b" + "}" * 22, "deeper"),
        ("{" + "... {" * 400 + "b" + "}" * 401, "too deep|deeper"),
        ("{ a(b: " + "[" * 700 + "]" * 700 + ") }", "too deep|deeper"),
        ("{ a(b: " + "[" * 150 + "]" * 150 + ") }", "deeper"),
        ("{" + " ".join(f"x{n}: a" for n in range(11)) + "}", "aliases"),
        ("{" + " ".join(f"a{n}" for n in range(501)) + "}", "fields"),
        ("{" + " a" * 2_001 + "}", "2000 tokens"),
    ],
)
def test_what_asks_for_too_much_is_refused_before_it_is_looked_at(query: str, words: str) -> None:
    """And at once: fragments are looked at once, however often they are spread."""
    with pytest.raises(RequestError, match=words):
        parsed(query, LIMITS)


def test_fragments_in_a_circle_are_left_to_validation() -> None:
    parsed("{ ...a } fragment a on Q { ...b } fragment b on Q { ...a c }", LIMITS)
    parsed("{ ...unknown }", LIMITS)


async def test_hostile_documents_are_answered_and_others_are_not_held_up() -> None:
    """Over the socket: each has its answer, and the socket goes on."""
    deep = "{ __schema { types { " + "fields { type { " * 5 + "name" + "} }" * 5 + "} } }"
    async with (
        filled(1) as (_, service),
        answered_by(service) as address,
        opened(address) as connection,
    ):
        for query in (
            doubled(90, "a"),
            doubled(8, "__typename"),
            deep,
            "{ ...a } fragment a on Query { ...a }",
            "{ a" + "(" * 1_500,
            "\ud83d\udca9",
            "{ gaps(" + "x: 1 " * 300 + ") { source } }",
            "query($a: Nothing = {a: [1]}) { gaps { source } }",
        ):
            await subscribe(connection, query)
            message = await said(connection)
            assert message["type"] == "error", query
            assert message["payload"][0]["extensions"]["code"] == "request"
        nested: Any = {"a": 1}
        for _ in range(150):
            nested = {"a": [nested]}
        criteria = [{"site": {"entityPrimaryKey": [nested]}}]
        query = 'subscription($c: [Criterion!]) { onCatalogChange(catalog: "shop", criteria: $c) { progress } }'  # noqa: E501
        await subscribe(connection, query, "nested", variables={"c": criteria})
        assert (await said(connection))["type"] in {"next", "error"}
        await subscribe(connection, "{ gaps { source } }", "last")
        while (message := await said(connection))["id"] != "last":
            pass
        assert message["payload"] == {"data": {"gaps": []}}


async def test_the_usual_introspection_is_answered() -> None:
    """What tools ask, at the default limits."""
    async with filled(3) as (_, service), answered_by(service) as address:
        answer = await asked(address, get_introspection_query(input_value_deprecation=True))
    assert "errors" not in answer
    assert answer["data"]["__schema"]["subscriptionType"]["name"] == "Subscription"


def test_an_error_tells_its_code_and_a_defect_nothing_of_what_it_saw(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trimmed = TrimmedError(oldest="marker")
    said = error_json(GraphQLError(str(trimmed), original_error=trimmed))
    assert said["extensions"] == {"code": "TRIMMED", "oldest": "marker"}
    defect = GraphQLError("secret", original_error=ValueError("secret"))
    assert error_json(defect) == INTERNAL
    CaptureSchema.process_errors(None, [defect])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    told = capsys.readouterr()
    assert "secret" not in told.out + told.err


async def test_limits_are_configured() -> None:
    options = {"graphql": {"depth_max": 1, "aliases_max": 0, "fields_max": 2}}
    async with filled(1, **options) as (_, service), answered_by(service) as address:
        for query, words in (
            ("{ gaps { source } }", "deeper than 1 level"),
            ("{ a: __typename }", "more than 0 aliases"),
            ("{ __typename __typename __typename }", "more than 2 fields"),
        ):
            status, answer = await post(address, json.dumps({"query": query}).encode())
            assert status == 400
            assert words in answer["errors"][0]["message"]
