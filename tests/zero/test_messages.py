"""Messages of the change source protocol, both ways."""

from json import dumps

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, json

from penstock.zero import messages as said
from penstock.zero.messages import (
    MessageError,
    downstream_text,
    parse_downstream,
    parse_upstream,
    upstream_text,
)

names = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
).map(lambda value: Raw(dumps(value).encode()))
rows = st.dictionaries(names, values, max_size=4)
row_keys = st.builds(
    said.RowKey,
    columns=st.lists(names, max_size=3).map(tuple),
    type=st.sampled_from([None, "default", "nothing", "full", "index"]),
)
relations = st.builds(
    said.Relation,
    schema=names,
    name=names,
    row_key=st.none() | row_keys,
    key_columns=st.none() | st.lists(names, max_size=2).map(tuple),
    replica_identity=st.none() | names,
)
tables = st.builds(said.TableId, schema=names, name=names)
specs = st.builds(
    said.ColumnSpec,
    pos=st.integers(0, 99),
    data_type=names,
    not_null=st.none() | st.booleans(),
    dflt=st.none() | names,
    character_maximum_length=st.none() | st.integers(0, 99),
    pg_type_class=st.none() | st.sampled_from("bcdepmr"),
    elem_pg_type_class=st.none() | st.sampled_from("bcdepmr"),
)
columns = st.builds(said.NamedColumn, name=names, spec=specs)
maybe = st.none() | st.dictionaries(names, st.integers(0, 9), max_size=2)
changes = st.one_of(
    st.builds(said.Insert, relation=relations, new=rows),
    st.builds(said.Update, relation=relations, key=st.none() | rows, new=rows),
    st.builds(said.Delete, relation=relations, key=rows),
    st.builds(said.Truncate, relations=st.lists(relations, max_size=2).map(tuple)),
    st.builds(
        said.CreateTable,
        spec=st.builds(
            said.TableSpec,
            schema=names,
            name=names,
            columns=st.dictionaries(names, specs, max_size=3),
            primary_key=st.none() | st.lists(names, max_size=2).map(tuple),
        ),
        metadata=maybe,
        backfill=maybe,
    ),
    st.builds(said.RenameTable, old=tables, new=tables),
    st.builds(said.UpdateTableMetadata, table=tables, old=values, new=values),
    st.builds(said.AddColumn, table=tables, column=columns, table_metadata=maybe, backfill=maybe),
    st.builds(said.UpdateColumn, table=tables, old=columns, new=columns),
    st.builds(said.DropColumn, table=tables, column=names),
    st.builds(said.DropTable, id=tables),
    st.builds(
        said.CreateIndex,
        spec=st.builds(
            said.IndexSpec,
            schema=names,
            table_name=names,
            name=names,
            unique=st.booleans(),
            columns=st.dictionaries(names, st.sampled_from(["ASC", "DESC"]), max_size=2),
        ),
    ),
    st.builds(said.DropIndex, id=tables),
    st.builds(said.Backfill),
    st.builds(said.BackfillCompleted),
)
downstream = st.one_of(
    st.builds(
        said.Begin, watermark=names, json=st.sampled_from(["p", "s"]), skip_ack=st.booleans()
    ),
    st.builds(said.Data, change=changes),
    st.builds(
        said.Committed,
        watermark=names,
        commit_time_ms=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.builds(said.Rollback),
    st.builds(said.ResetRequired, message=st.none() | names, error_details=maybe),
    st.builds(said.Status, watermark=names, ack=st.booleans()),
    st.builds(said.AckRequested, watermark=st.none() | names),
)
upstream = st.one_of(
    *(st.builds(kind, watermark=names) for kind in (said.CommitAck, said.StatusAck, said.FirstAck))
)


@given(downstream)
def test_what_an_endpoint_says_is_read_as_it_was_said(message: said.Downstream) -> None:
    assert parse_downstream(downstream_text(message)) == message
    assert parse_downstream(downstream_text(message).decode()) == message


@given(upstream)
def test_what_a_client_says_is_read_as_it_was_said(message: said.Upstream) -> None:
    assert parse_upstream(upstream_text(message)) == message


def test_both_forms_of_an_acknowledgement_are_read() -> None:
    """Z1: what ships, with what it echoes, and what the first design says."""
    shipped = b'["status",{"tag":"commit","commitTimeMs":1.5},{"watermark":"1ut"}]'
    assert parse_upstream(shipped) == said.CommitAck(watermark="1ut")
    assert parse_upstream(b'["ack",{"watermark":"1ut"}]') == said.FirstAck(watermark="1ut")


@given(downstream)
def test_fields_that_are_not_known_are_ignored(message: said.Downstream) -> None:
    name, *bodies = json.decode(downstream_text(message), type=list[Raw])
    more = [
        Raw(b'{"unheardOf":[1]' + (b"," if len(bytes(one)) > 2 else b"") + bytes(one)[1:])
        for one in bodies
    ]
    text = json.encode([name, *more, {"later": True}])
    assert parse_downstream(text) == message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "without a name"),
        ("{}", "without a name"),
        ("[]", "lacks parts"),
        ('["begin",{"tag":"begin"}]', "'begin' that lacks parts"),
        ('["commit",{"tag":"commit"},{}]', "'commit': .*watermark"),
        ('["hello",{}]', "'hello', which this version does not know"),
        ('["data",{"tag":"merge"}]', "change 'merge', which"),
        ('["data",{"tag":"insert"}]', "'data': .*relation"),
        ('["control",{"tag":"stop"}]', "control message 'stop'"),
        ('["data",{"tag":"insert","secret":1', "'data'|without a name"),
    ],
)
def test_what_is_no_message_is_refused_by_its_name(text: str, named: str) -> None:
    with pytest.raises(MessageError, match=named) as refused:
        parse_downstream(text)
    assert "secret" not in str(refused.value)
