"""Entries through the steps: what is told of them, and what never may be. No Spark is started."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from msgspec import Raw
from msgspec.structs import replace

from penstock.errors import PipelineError
from penstock.event import AnyEvent
from penstock.extjson import encode
from penstock.spark.transform.config import TransformConfig
from penstock.spark.transform.plan import plan_of
from penstock.spark.transform.worker import UNMET, VERDICT, Pass, Verdict
from tests.spark.tables import Entries, change, put, schema_event

SECRET = "s3cret"
SALT = "0123456789abcdef"


def through(*events: AnyEvent, steps: list[dict[str, Any]], poison: Any = None) -> pa.Table:
    """The entries behind one pass."""
    entries = Entries()
    entries.commit(*events)
    table = entries.table()
    nothing = [
        pa.nulls(table.num_rows, pa.string()),
        pa.nulls(table.num_rows, pa.list_(pa.string())),
    ]
    table = table.append_column(VERDICT, nothing[0]).append_column(UNMET, nothing[1])
    plan = plan_of([TransformConfig.model_validate(one) for one in steps], ())
    (segment,) = plan.segments
    work = Pass(
        answered=(),
        steps=segment.steps,
        asks=(),
        hiding=plan.hiding_at(0),
        schema=table.schema,
        pipeline="p",
        transforms=True,
        poison=poison or {},
    )
    return pa.Table.from_batches(work.run(table.combine_chunks().to_batches()))


def verdict(row: dict[str, Any]) -> Verdict:
    return msgspec.json.decode(row[VERDICT], type=Verdict)


def test_an_entry_stays_in_its_place_whatever_becomes_of_it() -> None:
    """What commits are counted and proven by, and what tells rows apart, is never touched."""
    events: list[AnyEvent] = [
        put(1, n=1),
        put(2, n="x"),
        change(3, "delete"),
        schema_event("create"),
    ]
    before = through(*events, steps=[{"drop": ["nothing"]}])
    after = through(*events, steps=[{"cast": {"n": "int"}}, {"rename": {"n": "m"}}])
    kept = [
        name
        for name in before.column_names
        if name not in {"full_document", "operation_type", VERDICT, UNMET}
    ]
    assert after.select(kept).equals(before.select(kept))
    rows = after.to_pylist()
    assert [row["operation_type"] for row in rows] == ["insert", "update", "delete", "create"]
    assert rows[0]["full_document"] == '{"_id":1,"m":1}'
    assert rows[1]["full_document"] is None
    assert verdict(rows[1]).reason == "the field n as int: the text is no integer"
    assert verdict(rows[1]).captured


@pytest.mark.parametrize(
    "steps",
    [
        [{"mask": ["mail"]}],
        [{"rename": {"mail": "to"}}, {"mask": ["to"]}],
        [{"hash": ["mail.x"], "salt": SALT}],
        [{"drop": ["mail"]}],
        [{"rename": {"mail": "to"}}],
        [{"select": ["_id"]}],
        [{"flatten": True}, {"select": ["_id"]}],
    ],
)
def test_a_field_of_the_key_cannot_be_hidden(steps: list[dict[str, Any]]) -> None:
    """By whatever name it has by then: the key says it at every destination."""
    event = replace(put(1, mail=SECRET), key=encode({"mail": SECRET}))
    with pytest.raises(PipelineError, match="part of the key") as refused:
        through(event, steps=steps)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "steps",
    [
        [{"flatten": True}, {"mask": ["mail_x"]}],
        [{"flatten": True}, {"rename": {"mail_x": "to"}}, {"drop": ["to"]}],
        [{"flatten": ["mail"]}, {"mask": ["mail_x"]}],
    ],
)
def test_what_is_flattened_is_part_of_the_key_if_that_is_an_object(
    steps: list[dict[str, Any]],
) -> None:
    """A plain column `mail` is not what `mail_x` was part of."""
    event = replace(put(1, mail={"x": SECRET}), key=encode({"mail": {"x": SECRET}}))
    with pytest.raises(PipelineError, match="part of the key"):
        through(event, steps=steps)
    for plain in (5, "a", datetime(2026, 1, 1, tzinfo=UTC)):
        event = replace(put(1, mail=plain, mail_x=SECRET), key=encode({"mail": plain}))
        (row,) = through(event, steps=steps).to_pylist()
        assert row[VERDICT] is None
        assert SECRET not in row["full_document"]


def test_a_step_may_keep_the_key_and_take_all_else() -> None:
    event = replace(put(1, mail=5, x=1), key=encode({"mail": 5}))
    chosen: tuple[list[dict[str, Any]], ...] = (
        [{"select": ["mail"]}],
        [{"drop": ["x"]}, {"rename": {"_id": "id"}}],
        [{"flatten": True}, {"select": ["mail_at"]}],
    )
    for steps in chosen:
        (row,) = through(event, steps=steps).to_pylist()
        assert row[VERDICT] is None


@pytest.mark.parametrize("steps", [[{"mask": ["mail"]}], [{"rename": {"n": "m"}}]])
def test_a_delete_is_never_refused(steps: list[dict[str, Any]]) -> None:
    """A row that the source has not any more goes, even where the code fails on it."""
    event = change(1, "delete")
    event = replace(event, full_document_before_change=encode({"_id": 1, "mail": SECRET}))
    (row,) = through(event, steps=steps, poison={1: "the transforms fail"}).to_pylist()
    assert (row["operation_type"], row[VERDICT]) == ("delete", None)
    assert SECRET not in repr(row)


def test_statements_are_not_told_where_fields_are_hidden() -> None:
    """Of every collection: a statement may have written to two."""
    origin = encode({"statement": f"INSERT INTO t VALUES ('{SECRET}')", "thread": 5})
    event = replace(put(1, n=1), origin=origin)
    ddl = replace(schema_event("create"), description=encode({"statement": SECRET, "to": 1}))
    masked = {"mask": ["mail"], "collections": ["others"]}
    rows = through(event, ddl, steps=[masked]).to_pylist()
    assert SECRET not in repr(rows)
    assert rows[0]["origin"] == '{"thread":5}'
    assert SECRET in repr(through(event, steps=[{"rename": {"n": "m"}}]).to_pylist())


def test_the_image_before_and_the_update_are_hidden_too() -> None:
    image = encode({"_id": 1, "mail": SECRET})
    event = change(
        1, "update", {"_id": 1, "mail": SECRET}, update={"updatedFields": {"mail": SECRET}}
    )
    event = replace(event, full_document_before_change=image)
    (row,) = through(event, steps=[{"mask": ["mail"]}]).to_pylist()
    assert SECRET not in repr(row)
    assert row["full_document_before_change"] == '{"_id":1,"mail":"****"}'


def test_a_refused_change_tells_no_more_than_its_steps_have_hidden() -> None:
    event = put(1, mail=SECRET, n="x")
    cast, mask = {"cast": {"n": "int"}}, {"mask": ["mail"]}
    before = through(event, steps=[cast, mask]).to_pylist()[0]
    after = through(event, steps=[mask, cast]).to_pylist()[0]
    assert verdict(before).full_document is None
    assert verdict(after).full_document == '{"_id":1,"mail":"****","n":"x"}'
    poison = through(event, steps=[mask], poison={1: "the transforms fail"}).to_pylist()[0]
    assert verdict(poison).full_document is None
    assert SECRET not in repr([before, after, poison])


def test_a_path_that_is_not_what_it_reads_like_is_not_followed() -> None:
    update = {"updatedFields": {"a.b": SECRET}}
    event = change(1, "update", update=update)
    for paths in (Raw(b'{"a.b":["a.b"]}'), None):
        told = replace(event, disambiguated_paths=paths)
        (row,) = through(told, steps=[{"mask": ["c"]}]).to_pylist()
        assert "holds a dot" in verdict(row).reason
        assert SECRET not in repr(row)


def test_what_paths_mean_goes_on_with_an_update_that_keeps_its_own() -> None:
    """What is built on it reads them again, at the destination."""
    update = {"updatedFields": {"a.b": 1}}
    plain = change(1, "update", update=update)
    named = change(1, "update", update=update, paths={"a.b": ["a.b"]})
    (row,) = through(plain, steps=[{"drop": ["c"]}]).to_pylist()
    assert row["disambiguated_paths"] == "{}"
    (row,) = through(named, steps=[{"drop": ["c"], "collections": ["others"]}]).to_pylist()
    assert row["disambiguated_paths"] == '{"a.b":["a.b"]}'
    (row,) = through(plain, steps=[{"drop": ["a"]}]).to_pylist()
    assert row["update_description"] == '{"updatedFields":{}}'
