"""What a scope shows, and what is left out of an event. Pure."""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._generated.penstock.v1 import penstock_pb2 as pb
from penstock.errors import RequestError
from penstock.event import Operation
from penstock.extjson import encode
from penstock.progress import Progress
from penstock.subscribe import Criteria, Subscription, Window, deliver
from penstock.subscribe.scope import EVERYTHING, Grant, Scope, Verb
from penstock.subscribe.shards import Shards
from penstock.wire import HIDDEN_KEY, Block, Mask, Stream, key_shown, shown
from penstock.wire.shown import origin_shown, update_shown, without
from tests.subscribe.events import LOG_ID, blocks_of, change, commit, schema, system

ORDERS = Stream("shop", "db", "db", "orders")
LINES = Stream("shop", "db", "db", "lines")


def hiding(*names: str) -> frozenset[str]:
    return frozenset(names)


@pytest.mark.parametrize("name", ["", ".a", "a.", "a..b", "$oid", "a.0", "a.0.b", "a\\b"])
def test_a_field_that_could_not_be_hidden_everywhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be hidden"):
        Grant(hidden=hiding(name))


def test_a_field_is_hidden_only_if_every_grant_that_reads_the_stream_hides_it() -> None:
    one, other = Grant(hidden=hiding("a", "b")), Grant(hidden=hiding("a.x", "b", "c"))
    assert Scope((one,)).hidden(ORDERS) == {"a", "b"}
    assert Scope((one, other)).hidden(ORDERS) == {"a.x", "b"}
    assert Scope((one, Grant(collections=frozenset({"lines"})))).hidden(ORDERS) == {"a", "b"}
    assert Scope((one, Grant())).hidden(ORDERS) == frozenset()


def test_images_before_hide_what_their_own_grant_hides() -> None:
    images = Grant(verbs=frozenset({Verb.BEFORE_IMAGES}), hidden=hiding("a"))
    mask = Scope((Grant(), images)).mask(ORDERS)
    assert mask is not None
    assert mask.before_images
    assert not mask.hidden
    assert mask.hidden_before == {"a"}


def test_dead_letters_are_not_for_who_may_not_see_every_field() -> None:
    letters = Stream("shop", "db", "db", "penstock_dead_letters")
    assert Scope((Grant(),)).allows(Verb.READ, letters)
    assert not Scope((Grant(hidden=hiding("a")),)).allows(Verb.READ, letters)
    named = Grant(hidden=hiding("a"), collections=frozenset({letters.collection}))
    assert Scope((named,)).allows(Verb.READ, letters)


# --- events -------------------------------------------------------------------------------------

SECRET = {
    "_id": 1,
    "name": "public",
    "ssn": "hidden-1",
    "home": {"city": "public", "street": "hidden-2"},
    "cards": [{"kind": "public", "number": "hidden-3"}, 5],
    "a.b": "hidden-4",
}
HIDDEN = hiding("ssn", "home.street", "cards.number", "a.b")


def test_hidden_fields_are_left_out_of_documents_and_every_other_byte_stays() -> None:
    left = without(bytes(encode(SECRET)), HIDDEN)
    assert left == (
        b'{"_id":1,"name":"public","home":{"city":"public"},"cards":[{"kind":"public"},5]}'
    )
    exact = b'{"n":1.0,"o":{"$numberLong":"5"},"d":{"$numberDecimal":"1.10"}}'
    assert without(exact, HIDDEN) == exact
    assert without(b'{"ssn":1,"n":1.0e5}', HIDDEN) == b'{"n":1.0e5}'


def test_an_update_loses_the_paths_that_lead_to_into_or_past_a_hidden_field() -> None:
    said = {
        "updatedFields": {
            "ssn": "hidden",
            "ssn.part": "hidden",
            "home": {"city": "public", "street": "hidden"},
            "home.street": "hidden",
            "home.street.no": "hidden",
            "cards.0.number": "hidden",
            "cards.0.kind": "public",
            "cards.1": {"number": "hidden", "kind": "public"},
            "cards": [{"number": "hidden"}],
        },
        "removedFields": ["ssn", "home.street", "name", "cards.3.number"],
        "truncatedArrays": [{"field": "ssn", "newSize": 1}, {"field": "cards", "newSize": 2}],
    }
    left = msgspec.json.decode(update_shown(bytes(encode(said)), HIDDEN))
    assert left == {
        "updatedFields": {
            "home": {"city": "public"},
            "cards.0.kind": "public",
            "cards.1": {"kind": "public"},
            "cards": [{}],
        },
        "removedFields": ["name"],
        "truncatedArrays": [{"field": "cards", "newSize": 2}],
    }


_LEAF = st.just("hidden") | st.integers(0, 9) | st.none()
_NAMES = st.sampled_from(["a", "b", "c", "a.b", "0"])
_TREES = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3)
)


def _found(value: Any, path: tuple[str, ...] = ()) -> set[str]:
    """Every path in a document, without places in arrays."""
    found = set[str]()
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name, one in fields.items():
            found |= {".".join((*path, name))} | _found(one, (*path, name))
    elif isinstance(value, list):
        for index in range(len(cast("Sequence[Any]", value))):
            found |= _found(value[index], path)
    return found


@given(
    st.dictionaries(_NAMES, _TREES, max_size=4),
    st.sets(st.sampled_from(["a", "b", "a.b", "b.c", "c.a.b"]), min_size=1).map(frozenset),
)
def test_no_document_shows_a_hidden_path_and_none_loses_another(
    document: dict[str, Any], hidden: frozenset[str]
) -> None:
    encoded = msgspec.json.encode(document)
    left = msgspec.json.decode(without(encoded, hidden))
    paths = _found(left)
    assert not any(path == name or path.startswith(f"{name}.") for path in paths for name in hidden)
    lost = _found(document) - paths
    plain = {path: ".".join(_without_numbers(path)) for path in lost}
    assert all(
        any(
            one == name or one.startswith(f"{name}.")
            for one in (path, plain[path])
            for name in hidden
        )
        for path in lost
    )
    assert without(encoded, hidden) == without(without(encoded, hidden), hidden)


def _without_numbers(path: str) -> list[str]:
    first, *rest = path.split(".")
    return [first, *(step for step in rest if not step.isdecimal())]


def test_a_key_with_a_hidden_field_is_replaced_and_still_tells_documents_apart() -> None:
    def of(number: int, secret: bytes = b"s") -> pb.Event:
        message = pb.Event(
            id=f"a hash of {number}",
            source="shop",
            collection="people",
            key=b'{"ssn":%d,"country":"se"}' % number,
            document_id=f"{number}",
            position=f"token of {number}",
            full_document=b'{"ssn":%d}' % number,
        ).SerializeToString()
        mask = Mask(hidden=hiding("ssn"), secret=secret)
        return pb.Event.FromString(shown(message, mask))

    one, again, other = of(12345), of(12345), of(99999)
    assert one.key == again.key != other.key
    assert msgspec.json.decode(one.key) == {HIDDEN_KEY: one.document_id, "country": "se"}
    assert not one.position
    assert b"12345" not in one.SerializeToString()
    assert of(12345, b"another").key != one.key
    # A source may have made the id of the key: who can list keys would find it.
    assert one.id == again.id != other.id


def test_hidden_fields_are_not_named_among_those_that_the_source_masks() -> None:
    origin = b'{"file":"b.1","masked":["phone","ssn"],"statement":"X"}'
    seen = origin_shown(origin, Mask(hidden=hiding("ssn"), statements=False))
    assert msgspec.json.decode(seen) == {"file": "b.1", "masked": ["phone"]}
    seen = origin_shown(origin, Mask(hidden=hiding("ssn", "phone")))
    assert msgspec.json.decode(seen) == {"file": "b.1", "statement": "X"}
    seen = origin_shown(origin, Mask(hidden_before=hiding("ssn")))
    assert msgspec.json.decode(seen)["masked"] == ["phone"]
    seen = origin_shown(origin, Mask(before_images=False))
    assert "masked" not in msgspec.json.decode(seen)
    seen = origin_shown(b'{"masked":null}', Mask(hidden=hiding("ssn")))
    assert msgspec.json.decode(seen) == {}
    assert origin_shown(origin, Mask()) == origin
    assert origin_shown(b"", Mask(hidden=hiding("ssn"))) == b""


def test_the_digest_of_a_row_without_a_key_is_a_key_with_a_hidden_field() -> None:
    """It is of all fields, so whoever can list a hidden one's values would find it."""
    key, stream = b'{"_row":"0123456789abcdef"}', ("shop", "db", "people")
    shown_key, name = key_shown(key, Mask(hidden=hiding("ssn"), secret=b"s"), stream)
    assert msgspec.json.decode(shown_key) == {HIDDEN_KEY: name}
    assert name is not None
    assert key_shown(key, Mask(secret=b"s"), stream) == (key, None)
    # A delete has the digest of the row that was: an image before.
    for mask in (
        Mask(before_images=False, secret=b"s"),
        Mask(hidden_before=hiding("ssn"), secret=b"s"),
    ):
        message = pb.Event(
            id="x",
            source="shop",
            database="db",
            collection="people",
            key=key,
            document_id="0123456789abcdef",
            position="0123456789abcdef",
        ).SerializeToString()
        told = pb.Event.FromString(shown(message, mask))
        assert (told.key, told.document_id, told.position) == (shown_key, name, "")
    named = b'{"_row":1,"id":2}'  # a table's own columns
    assert key_shown(named, Mask(hidden=hiding("ssn"), secret=b"s"), stream) == (named, None)


def test_what_a_reader_may_not_see_is_not_sent_and_no_digest_proves_it() -> None:
    before = encode({"_id": 1, "ssn": "hidden-0"})
    secret = msgspec.structs.replace(
        change(1, document=SECRET, operation=Operation.REPLACE),
        full_document_before_change=before,
        origin=encode({"statement": "UPDATE hidden-5", "file": "binlog.1"}),
        unchanged=("ssn", "big"),
        disambiguated_paths=encode({"ssn.hidden-6": ["ssn", "hidden-6"], "x.0": ["x", "0"]}),
    )
    blocks = blocks_of([[commit(secret, change(2, collection="lines"))]])
    scope = Scope((Grant(collections=frozenset({"orders"}), hidden=HIDDEN),), b"secret")
    (message,) = _sent(blocks, scope)
    assert b"hidden-" not in message
    event = pb.Event.FromString(message)
    assert (event.sequence, event.commit, event.document_id) == (1, 1, "1")
    assert not event.commit_rows
    assert not event.commit_digest
    assert not event.full_document_before_change
    assert list(event.unchanged) == ["big"]
    assert msgspec.json.decode(event.origin) == {"file": "binlog.1"}
    assert msgspec.json.decode(event.disambiguated_paths) == {"x.0": ["x", "0"]}


def test_whoever_may_see_everything_gets_the_very_bytes() -> None:
    blocks = blocks_of([[commit(change(1), change(2))], [commit(schema(3))]])
    messages = [one for block in blocks for one in block.messages(range(block.stop))]
    assert _sent(blocks, EVERYTHING) == messages


def test_control_events_come_only_with_the_verb_and_a_gap_then_ends_the_stream() -> None:
    blocks = blocks_of([[commit(change(1)), commit(schema(2)), commit(system(3))]])
    reader, whole = Grant(), Grant(verbs=frozenset({Verb.READ, Verb.SCHEMA}))
    assert len(_sent(blocks, Scope((reader,)))) == 1
    assert len(_sent(blocks, Scope((whole,)))) == 3
    blocks = blocks_of([[commit(change(1)), commit(system(2, "gap")), commit(change(3))]])
    for scope, count, ends in ((Scope((reader,)), 1, True), (Scope((whole,)), 3, False)):
        criteria = Criteria(control_events=True, scope=scope)
        found = deliver(Subscription(criteria=criteria, progress=Progress(LOG_ID, 0, 0)), blocks)
        assert sum(len(one.entries) for one in found.slices) == count
        assert (found.gap is not None) is ends


def test_a_rename_is_told_to_who_may_see_the_new_name_and_to_nobody_else() -> None:
    blocks = blocks_of([[commit(schema(1, "rename", collection="old", to="new"))]])

    def told(name: str) -> int:
        grant = Grant(verbs=frozenset({Verb.READ, Verb.SCHEMA}), collections=frozenset({name}))
        return len(_sent(blocks, Scope((grant,))))

    assert (told("old"), told("new"), told("other")) == (1, 1, 0)


def test_shards_by_a_hidden_field_are_refused() -> None:
    scope = Scope((Grant(hidden=hiding("home.street")),))
    for name in ("home", "home.street", "document.home"):
        with pytest.raises(RequestError, match="shard_by"):
            Criteria(scope=scope, shards=Shards(by=(name,), count=2, ids=frozenset({0})))
    Criteria(scope=scope, shards=Shards(by=("name",), count=2, ids=frozenset({0})))


def test_shards_by_a_key_that_is_not_shown_are_refused() -> None:
    blocks = blocks_of([[commit(change(1))]])
    for hidden, refused in (("_id", True), ("at", False)):
        scope = Scope((Grant(hidden=hiding(hidden)),))
        shards = Shards(by=("documentId",), count=1, ids=frozenset({0}))
        criteria = Criteria(scope=scope, shards=shards)
        subscription = Subscription(criteria=criteria, progress=Progress(LOG_ID, 0, 0))
        if refused:
            with pytest.raises(RequestError, match="you may not see"):
                deliver(subscription, blocks)
        else:
            assert deliver(subscription, blocks).slices


def test_rows_without_a_key_are_not_had_by_shards_without_images_before() -> None:
    row = msgspec.structs.replace(change(1), key=encode({"_row": "0123456789abcdef"}))
    reads = frozenset({Verb.READ})
    for verbs, refused in ((reads, True), (reads | {Verb.BEFORE_IMAGES}, False)):
        criteria = Criteria(
            scope=Scope((Grant(verbs=verbs),)),
            shards=Shards(by=("documentId",), count=1, ids=frozenset({0})),
        )
        subscription = Subscription(criteria=criteria, progress=Progress(LOG_ID, 0, 0))
        if refused:
            with pytest.raises(RequestError, match="you may not see"):
                deliver(subscription, blocks_of([[commit(row)]]))
        else:
            assert deliver(subscription, blocks_of([[commit(row)]])).slices


def _sent(blocks: Any, scope: Scope) -> list[bytes]:
    criteria = Criteria(control_events=True, scope=scope)
    found = deliver(Subscription(criteria=criteria, progress=Progress(LOG_ID, 0, 0)), blocks)
    make = found.made(Block.messages, Window.messages)
    return [message for block, entries in found.slices for message in make(block, entries)]
