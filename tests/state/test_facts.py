"""When all rows of a collection are known: never by default, and never longer than that is sure."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from penstock.errors import HistoryUnknownError, StateIncompleteError
from penstock.event import AnyEvent, ChangeEvent, SchemaEvent, SystemEvent
from penstock.state import facts as facts_module
from penstock.state.complete import require_complete
from penstock.state.facts import Facts
from penstock.state.layout import Name
from penstock.subscribe.criteria import Criteria
from tests.state.histories import change, schema, system

A, B = Name("shop", "db", "a"), Name("shop", "db", "b")
FULL = {"snapshot": "s", "collections": ["db.a"], "whole": True}
PART = {"snapshot": "s", "collections": ["db.a"], "whole": False}


def known(*events: AnyEvent) -> Facts:
    """What is known after `events`, the first at sequence 1; a row once told of stays."""
    facts = Facts({}, {}, next_number=1)
    rows = False
    for sequence, event in enumerate(events, 1):
        if isinstance(event, ChangeEvent):
            rows = True
            facts.heard(Name(event.source, event.database, event.collection), sequence)
        else:
            facts.control(event, sequence, is_empty=lambda _: not rows)  # noqa: B023
    return facts


def row(collection: str) -> ChangeEvent:
    return change("shop", collection, 1, document={"_id": 1})


def said(operation: str, **facts: Any) -> SystemEvent:
    return system("shop", operation, **facts)


GAP = said("gap", reason="lost", **{"from": "1", "to": "2"})
GAP_OF_A = msgspec.structs.replace(said("gap", reason="trimmed"), collection="a")
GAP_OF_B = msgspec.structs.replace(GAP_OF_A, collection="b")
STARTED, COMPLETED = said("snapshot_started", **FULL), said("snapshot_completed", **FULL)


@pytest.mark.parametrize(
    ("events", "complete"),
    [
        pytest.param([row("a")], False, id="heard of in the middle of its life"),
        pytest.param([schema("shop", "create", "a"), row("a")], True, id="created"),
        pytest.param([row("a"), schema("shop", "drop", "a")], True, id="dropped, so empty"),
        pytest.param([schema("shop", "create", "a"), GAP], False, id="changes were lost"),
        pytest.param([STARTED, row("a")], False, id="being copied"),
        pytest.param([STARTED, row("a"), COMPLETED], True, id="copied"),
        pytest.param([STARTED, COMPLETED, row("a")], True, id="wholly behind a whole copy"),
        pytest.param([row("a"), STARTED, COMPLETED], False, id="copied, deletes not told yet"),
        pytest.param(
            [row("a"), STARTED, COMPLETED, said("snapshot_reconciled", snapshot="s")],
            True,
            id="copied, deletes told",
        ),
        pytest.param([STARTED, row("a"), GAP, COMPLETED], False, id="a gap within the copy"),
        pytest.param([STARTED, COMPLETED, GAP, row("a")], False, id="heard of first behind a gap"),
        pytest.param([STARTED, row("a"), COMPLETED, GAP_OF_A], False, id="a gap of it alone"),
        pytest.param([STARTED, COMPLETED, GAP_OF_A], False, id="a gap of it, unheard of"),
        pytest.param([STARTED, row("a"), COMPLETED, GAP_OF_B], True, id="a gap of another alone"),
        pytest.param(
            [STARTED, COMPLETED, GAP_OF_B, row("a")], True, id="heard of behind a gap of another"
        ),
        pytest.param(
            [STARTED, row("a"), GAP_OF_A, COMPLETED], False, id="a gap of it alone within the copy"
        ),
        pytest.param(
            [STARTED, GAP_OF_A, row("a"), COMPLETED],
            False,
            id="a gap of it before its row is copied",
        ),
        pytest.param(
            [GAP_OF_A, STARTED, row("a"), COMPLETED, said("snapshot_reconciled", snapshot="s")],
            True,
            id="copied behind a gap of it",
        ),
        pytest.param(
            [STARTED, COMPLETED, GAP, schema("shop", "create", "a"), row("a")],
            True,
            id="created behind a gap",
        ),
        pytest.param(
            [STARTED, COMPLETED, row("a"), said("rewound", to="1")],
            False,
            id="told once more, so a rename meets later rows",
        ),
        pytest.param(
            [said("rewound", to="1"), STARTED, row("a"), COMPLETED],
            True,
            id="copied after it was told once more",
        ),
        pytest.param(
            [STARTED, COMPLETED, row("a"), said("scope_changed", removed=["db.a"], after={})],
            False,
            id="captured no more",
        ),
        pytest.param(
            [STARTED, COMPLETED, said("scope_changed", added=["db.a"], after={}), row("a")],
            False,
            id="captured from now on, not copied",
        ),
        pytest.param(
            [schema("shop", "rename", "b", {"to": {"db": "db", "coll": "a"}})],
            False,
            id="renamed from what is not captured",
        ),
        pytest.param(
            [
                schema("shop", "create", "b"),
                schema("shop", "rename", "b", {"to": {"db": "db", "coll": "a"}}),
            ],
            True,
            id="renamed from what is complete",
        ),
        pytest.param(
            [
                schema("shop", "create", "a"),
                schema("shop", "rename", "a", {"to": {"db": "db", "coll": "a"}}),
            ],
            True,
            id="renamed to its own name",
        ),
    ],
)
def test_complete_is_only_what_is_certain(events: list[AnyEvent], complete: bool) -> None:
    facts = known(*events)
    assert (A in facts.collections and facts.collections[A].whole) is complete


def test_a_copy_of_one_collection_says_nothing_of_the_others() -> None:
    facts = known(
        said("snapshot_started", **PART), row("a"), row("b"), said("snapshot_completed", **PART)
    )
    assert facts.collections[A].complete
    assert not facts.collections[B].complete
    assert not facts.source("shop").whole_since


def test_a_collection_that_joins_a_copy_is_judged_from_there_on_and_the_others_as_before() -> None:
    """Rows that were copied before the second announcement are not taken for old ones."""
    joined = said("snapshot_started", **{**PART, "collections": ["db.a", "db.b"]})
    facts = known(row("a"), row("b"), said("snapshot_started", **PART), row("a"), joined)
    assert facts.collections[A].copied_since == 3
    assert facts.collections[B].copied_since == 5


def test_rows_of_before_a_gap_are_not_forgotten_by_a_create() -> None:
    """A consumer still has them: that they are gone is told once a copy proves it."""
    facts = known(STARTED, row("a"), COMPLETED, GAP, schema("shop", "create", "a"))
    assert not facts.forgotten
    assert not facts.collections[A].complete


def test_letters_are_ours_so_no_copy_takes_them_for_gone() -> None:
    letters = Name("shop", "db", "penstock_dead_letters")
    facts = known(row("penstock_dead_letters"), STARTED, COMPLETED)
    assert facts.collections[letters].complete
    assert not facts.collections[letters].copied


@pytest.mark.parametrize("whole", [False, True])
def test_a_copy_that_is_announced_again_behind_a_gap_proves_nothing(whole: bool) -> None:
    """Rows that it copied before would be told as deleted: they are older than the second word."""
    part = {**PART, "whole": whole}
    joined = {**part, "collections": ["db.a", "db.b"]}
    facts = known(
        row("a"),
        said("snapshot_started", **part),
        row("a"),
        GAP,
        said("snapshot_started", again=True, **joined),
        row("b"),
        said("snapshot_completed", **joined),
        said("snapshot_reconciled", snapshot="s"),
    )
    for name in (A, B):
        assert not facts.collections[name].copied
        assert not facts.collections[name].complete
    assert not facts.source("shop").whole_since


RECONCILED = said("snapshot_reconciled", snapshot="s")
SECOND = [
    said("snapshot_started", **{**FULL, "snapshot": "t"}),
    said("snapshot_completed", **{**FULL, "snapshot": "t"}),
    said("snapshot_reconciled", snapshot="t"),
]


def dealt_with(how: str, letter: str = "l") -> SystemEvent:
    return structs.replace(said(f"dead_letter_{how}", deadLetter=letter), collection="a")


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        pytest.param([row("a"), STARTED, row("a")], [COMPLETED, RECONCILED], False, id="in it"),
        pytest.param([STARTED], [COMPLETED], False, id="heard of first"),
        pytest.param([row("a"), STARTED, row("a"), COMPLETED], [RECONCILED], False, id="behind it"),
        pytest.param([STARTED, row("a"), COMPLETED], [], False, id="behind a copy"),
        pytest.param([row("a")], [STARTED, COMPLETED, RECONCILED], True, id="before a copy"),
        pytest.param([STARTED, row("a")], [COMPLETED, *SECOND], True, id="copied once more"),
        pytest.param([STARTED], [dealt_with("replayed"), COMPLETED], True, id="replayed within"),
        pytest.param([STARTED], [COMPLETED, dealt_with("replayed")], True, id="replayed"),
        pytest.param([STARTED], [COMPLETED, dealt_with("replayed", "m")], False, id="another"),
        pytest.param([STARTED], [COMPLETED, dealt_with("settled")], False, id="only settled"),
        pytest.param(
            [STARTED], [COMPLETED, dealt_with("settled"), *SECOND], True, id="settled and copied"
        ),
        pytest.param(
            [STARTED, COMPLETED],
            [schema("shop", "drop", "a"), schema("shop", "create", "a")],
            True,
            id="dropped since",
        ),
    ],
)
def test_a_letter_that_names_no_row_leaves_its_collection_in_doubt_until_it_was_copied_anew(
    before: list[AnyEvent], after: list[SystemEvent | SchemaEvent], whole: bool
) -> None:
    """P6, P19: a document is missing from it, and nobody can say which."""
    facts = known(*before)
    facts.doubted(A, len(before) + 1, "l")
    assert not facts.collections[A].whole
    for sequence, event in enumerate(after, len(before) + 2):
        facts.control(event, sequence, is_empty=lambda _: False)
    assert facts.collections[A].whole is whole


def test_deletes_of_a_copy_are_told_though_one_of_its_changes_is_in_doubt() -> None:
    """Else a gap would be called closed while rows of it that are gone are still there."""
    facts = known(row("a"), STARTED, row("a"), COMPLETED)
    facts.doubted(A, 5, "l")
    assert facts.collections[A].copied


def test_more_doubts_than_are_kept_are_dispelled_by_a_copy_alone() -> None:
    facts = known(schema("shop", "create", "a"))
    for number in range(100):
        facts.doubted(A, 2 + number, str(number))
    assert len(facts.collections[A].doubts) < 100
    for number in range(100):
        event = dealt_with("replayed", str(number))
        facts.control(event, 200 + number, is_empty=lambda _: False)
    assert not facts.collections[A].whole
    for sequence, event in enumerate([STARTED, COMPLETED, RECONCILED], 300):
        facts.control(event, sequence, is_empty=lambda _: False)
    assert facts.collections[A].whole


@pytest.mark.parametrize("whole", [False, True])
def test_letters_that_a_copy_names_are_not_taken_for_gone_either(whole: bool) -> None:
    letters = Name("shop", "db", "penstock_dead_letters")
    facts = {**PART, "whole": whole, "collections": ["db.penstock_dead_letters"]}
    named = known(
        row("penstock_dead_letters"),
        said("snapshot_started", **facts),
        said("snapshot_completed", **facts),
    ).collections[letters]
    assert named.complete
    assert named.snapshot is None


def renamed(old: str, new: str, **also: Any) -> SchemaEvent:
    return schema("shop", "rename", old, {"to": {"db": "db", "coll": new}, **also})


@pytest.mark.parametrize(
    ("events", "names"),
    [
        pytest.param([renamed("a", "b")], ["b", "a"], id="renamed"),
        pytest.param([renamed("a", "b"), renamed("b", "c")], ["c", "a"], id="twice"),
        pytest.param([renamed("a", "b"), renamed("b", "a")], ["a", None], id="and back"),
        pytest.param(
            [renamed("a", "b"), renamed("c", "a")], ["b", None], id="another has its name"
        ),
        pytest.param([renamed("b", "a")], [None, "a"], id="replaced"),
        pytest.param([renamed("a", "b"), renamed("c", "b")], [None, "a"], id="replaced later"),
        pytest.param([renamed("a", "b", targetCaptured=False)], [None, "a"], id="far away"),
        pytest.param(
            [schema("shop", "drop", "a"), renamed("b", "c")], ["a", "a"], id="only others renamed"
        ),
    ],
)
def test_what_a_collection_is_called_now(events: list[AnyEvent], names: list[str | None]) -> None:
    """That of before the events, and that of after the first one."""
    facts = known(*events)
    found = [facts.called_now(A, at=at) for at in (0, 1)]
    assert [one and one.collection for one in found] == names
    assert facts.called_now(A, at=len(events)) == A


def test_of_renames_that_are_not_remembered_none_is_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts_module, "_RENAMES_MAX", 2)
    facts = known(renamed("a", "b"), GAP, renamed("b", "c"), renamed("c", "d"))
    for at in (0, 2):
        with pytest.raises(HistoryUnknownError):
            facts.called_now(A, at=at)
    assert facts.called_now(B, at=3) == B
    assert facts.called_now(Name("shop", "db", "c"), at=3) == Name("shop", "db", "d")
    assert facts.called_now(Name("crm", "db", "a"), at=0) == Name("crm", "db", "a")


def test_what_never_has_events_is_unknown_to_who_asks_for_it_and_no_hindrance_to_others() -> None:
    """A view or a time series: it was created before our eyes, and is not empty for that."""
    view = schema("shop", "create", "b", {"hasNoEvents": True})
    facts = known(STARTED, COMPLETED, view)
    assert require_complete(facts, ["shop"], Criteria()) == [A]
    with pytest.raises(StateIncompleteError):
        require_complete(facts, ["shop"], Criteria(collections=frozenset(["b"])))
    made = schema("shop", "create", "b")
    facts = known(STARTED, COMPLETED, view, schema("shop", "drop", "b"), made)
    assert facts.collections[B].whole


@pytest.mark.parametrize("how", ["create", "rename"])
def test_a_collection_whose_rows_no_event_told_is_whole_once_they_were_copied(how: str) -> None:
    """P6, P19: it was created before our eyes, and is not empty for that."""
    first = schema(
        "shop", "create", "a" if how == "create" else "b", {"rowsFollow": how == "create"}
    )
    events: list[AnyEvent] = [STARTED, COMPLETED, first]
    if how == "rename":
        events.append(
            schema("shop", "rename", "b", {"to": {"db": "db", "coll": "a"}, "rowsFollow": True})
        )
    facts = known(*events)
    assert not facts.collections[A].whole
    for sequence, event in enumerate(SECOND, len(events) + 1):
        facts.control(event, sequence, is_empty=lambda _: False)
    assert facts.collections[A].whole
