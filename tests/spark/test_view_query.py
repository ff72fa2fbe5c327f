"""What a view can keep, and what is refused by name before anything starts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pydantic import ValidationError

from penstock.errors import PipelineChangedError
from penstock.spark.config import ViewPipelineConfig
from penstock.spark.table.kinds import Kind
from penstock.spark.view import stored
from penstock.spark.view.query import parse_columns, parse_query
from penstock.spark.view.state import Mark
from penstock.spark.view.stored import Made, ViewTable

_FROM = "FROM orders o JOIN customers c ON o.customer = c._id"


def view(query: str, **more: object) -> ViewPipelineConfig:
    return ViewPipelineConfig.model_validate(
        {"to": "view", "source": "shop", "path": "lake/v", "query": query, **more}
    )


def test_a_query_is_taken_apart() -> None:
    query = parse_query(
        "SELECT c.region, round(sum(o.total) / count(*), 2) AS mean, max(o.n) AS most "
        f"{_FROM} LEFT JOIN `odd name` ON c.x = `odd name`.y WHERE o.status <> 'void' "
        "GROUP BY c.region, o.status"
    )
    assert query.collections == ("orders", "customers", "odd name")
    assert [table.join for table in query.tables] == ["", "INNER", "LEFT"]
    assert query.tables[0].columns == ("customer", "n", "status", "total")
    assert query.groups == ("c.region", "o.status")
    assert query.arguments == ("o.total", "o.n")
    assert query.outputs == (
        ("region", "_g0"),
        ("mean", "ROUND(_a0 / _a1, 2)"),
        ("most", "_a2"),
    )


@pytest.mark.parametrize(
    ("where", "own"),
    [
        ("", None),
        ("WHERE c.x = 1", None),
        ("WHERE o.x = 1 OR c.x = 1", None),
        ("WHERE o.x = 1 OR o.y = 2", "(o.x = 1 OR o.y = 2)"),
        (
            "WHERE o.x = 1 AND c.x = 1 AND NOT (o.y = 2 AND o.z = 3)",
            "(o.x = 1) AND (NOT (o.y = 2 AND o.z = 3))",
        ),
    ],
)
def test_what_excludes_a_row_whatever_it_is_joined_to_is_known(where: str, own: str | None) -> None:
    found = parse_query(f"SELECT count(*) AS n {_FROM} {where}").main_where
    assert found == own


def test_the_collections_of_a_view_are_those_of_its_query() -> None:
    config = view(f"SELECT count(*) AS n {_FROM}")
    assert config.collections == ("orders", "customers")
    assert config.state_path == "lake/v_state"
    named = view(f"SELECT count(*) AS n {_FROM}", collections=["customers", "shop/orders"])
    assert named.collections == config.collections
    with pytest.raises(ValidationError, match="leave collections out"):
        view(f"SELECT count(*) AS n {_FROM}", collections=["orders"])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT count( FROM orders", "no SQL that Spark reads"),
        ("DELETE FROM orders", "not one SELECT"),
        ("SELECT count(*) AS n FROM orders; SELECT 1 AS n", "not one SELECT"),
        ("SELECT count(*) AS n FROM orders UNION SELECT 1 AS n", "not one SELECT"),
        ("WITH x AS (SELECT 1) SELECT count(*) AS n FROM x", "cannot keep WITH"),
        ("SELECT DISTINCT n FROM orders GROUP BY n", "cannot keep DISTINCT"),
        ("SELECT count(*) AS n FROM orders HAVING count(*) > 1", "cannot keep HAVING"),
        ("SELECT count(*) AS n FROM orders ORDER BY 1", "cannot keep ORDER BY"),
        ("SELECT count(*) AS n FROM orders LIMIT 1", "cannot keep LIMIT"),
        ("SELECT 1 AS n", "has no FROM"),
        ("SELECT count(*) AS n FROM (SELECT 1)", "in FROM"),
        ("SELECT count(*) AS n FROM db.orders", "own name"),
        ("SELECT count(*) AS n FROM orders o, customers c", "cannot keep CROSS JOIN"),
        ("SELECT count(*) AS n FROM orders o JOIN customers c", "without ON"),
        (f"SELECT count(*) AS n {_FROM.replace('JOIN', 'RIGHT JOIN')}", "cannot keep RIGHT JOIN"),
        (f"SELECT count(*) AS n {_FROM.replace('JOIN', 'FULL JOIN')}", "cannot keep FULL JOIN"),
        ("SELECT count(*) AS n FROM orders o CROSS JOIN customers c", "cannot keep CROSS JOIN"),
        ("SELECT count(*) AS n FROM orders a JOIN orders b ON a.x = b.x", "orders twice"),
        (f"SELECT count(*) AS n {_FROM} WHERE status = 1", "does not say its collection"),
        (f"SELECT sum(z.n) AS n {_FROM}", "of no collection of the query"),
        ("SELECT count(DISTINCT n) AS n FROM orders", "cannot keep COUNT"),
        ("SELECT max(n) FILTER (WHERE n > 1) AS n FROM orders", "cannot keep MAX"),
        ("SELECT median(n) AS n FROM orders", "cannot keep MEDIAN"),
        ("SELECT my_function(n) AS n FROM orders GROUP BY n", "neither aggregated|cannot keep MY"),
        ("SELECT sum(rand()) AS n FROM orders", "cannot keep RAND"),
        ("SELECT count(*) AS n FROM orders WHERE at > current_timestamp()", "CURRENT_TIMESTAMP"),
        ("SELECT sum(sum(n)) AS n FROM orders", "is an aggregate"),
        ("SELECT count(*) AS n FROM orders WHERE count(*) > 1", "cannot stand in WHERE"),
        ("SELECT sum(n) OVER () AS n FROM orders", "cannot keep SUM"),
        ("SELECT n, count(*) AS c FROM orders", "neither aggregated nor in GROUP BY"),
        ("SELECT count(*) AS n FROM orders WHERE _rejected_sequence IS NULL", "how old a row is"),
        ("SELECT * FROM orders", "cannot keep|has no name"),
        ("SELECT count(*) FROM orders", "has no name"),
        ("SELECT count(*) AS n, sum(x) AS N FROM orders", "two columns"),
        ("SELECT count(*) AS _n FROM orders", "begin with _"),
        ("SELECT count(*) AS `my n` FROM orders", "files hold none with a space"),
        ("SELECT count(*) AS n FROM orders GROUP BY ROLLUP (a)", "cannot keep|GROUP BY"),
        ("SELECT n, count(*) AS c FROM orders GROUP BY 1", "write the expression"),
        ("SELECT a + 1 AS b, count(*) AS c FROM orders GROUP BY b", "may be the column|neither"),
        ("SELECT count(*) AS n FROM orders WHERE x IN (SELECT 1)", "cannot keep"),
        ("SELECT count(*) AS n FROM orders WHERE at > timestamp'now'", "read: 'now' as a date"),
        ("SELECT count(*) AS n FROM orders WHERE at > CAST(' Today' AS DATE)", "read: ' Today' as"),
        ("SELECT max(try_cast('tomorrow UTC' AS timestamp)) AS n FROM orders", "'tomorrow UTC' as"),
        ("SELECT year('now') + sum(n) AS n FROM orders", "SELECT: a view cannot keep the time"),
        *(
            (f"SELECT max({one}) AS n FROM orders", "cannot keep the time at which it is read")
            for one in ("to_date('Yesterday')", "hour('now')", "extract(DAY FROM 'today')")
        ),
    ],
)
def test_more_than_a_view_can_keep_is_refused_by_name(query: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        view(query)


@pytest.mark.parametrize(
    "expression",
    [
        *(f"{name}(o.x)" for name in ("year", "month", "day", "dayofmonth", "hour", "to_date")),
        *(f"{name}(o.x)" for name in ("upper", "lower", "trim", "length", "abs", "round", "floor")),
        *("ceil(o.x)", "sign(o.x)", "greatest(o.x, 1)", "least(o.x, 1)", "substring(o.x, 1, 2)"),
        *("extract(day FROM o.x)", "date_trunc('month', o.x)", "get_json_object(o.x, '$.y')"),
        *("if(o.x, 1, 2)", "coalesce(o.x, 1)", "nullif(o.x, 1)", "concat(o.x, 'y')"),
        *("cast(o.x AS INT)", "try_cast(o.x AS INT)", "o.x RLIKE 'y'", "o.x IS NULL"),
    ],
)
def test_the_functions_that_are_said_to_be_supported_are(expression: str) -> None:
    assert parse_query(f"SELECT count({expression}) AS n FROM orders o").arguments


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("o.s = 'O''Brien'", r"o.s = 'O\'Brien'"),
        ('o.s = "it""s"', "o.s = 'it\"s'"),
        ("o.s = 'a\"\"b'", "o.s = 'a\"\"b'"),
        ("o.s = ''''", r"o.s = '\''"),
        ("to_date(o.s, 'yyyy-MM-dd')", "TO_DATE(o.s, 'yyyy-MM-dd')"),
        ("get_json_object(o.s, '$.a:b')", "GET_JSON_OBJECT(o.s, '$.a:b')"),
        ("get_json_object(o.s, 'a.b')", "GET_JSON_OBJECT(o.s, 'a.b')"),
        ("date_trunc(o.s, o.at)", "DATE_TRUNC(o.s, o.at)"),
    ],
)
def test_texts_formats_and_paths_come_back_as_they_are_written(written: str, read: str) -> None:
    query = parse_query(f"SELECT count({written}) AS n FROM orders o WHERE {written}")
    assert query.arguments == (read,)
    assert query.where == read
    assert query.main_where == f"({read})"


def test_a_schema_has_the_types_that_a_table_has() -> None:
    assert parse_columns("orders", "n BIGINT, `odd name` DECIMAL(38, 18), doc VARIANT") == {
        "n": Kind.INT64,
        "odd name": Kind.DECIMAL,
        "doc": Kind.JSON,
    }


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"orders": "n DECIMAL(10, 2)"}, r"n cannot be DECIMAL\(10, 2\)"),
        ({"orders": "n BIGINT NOT NULL"}, "write name TYPE"),
        ({"orders": "n"}, "write name TYPE"),
        ({"orders": "n BIGINT, N INT"}, "N is there already"),
        ({"orders": "_key STRING"}, "_key is there already"),
        ({"orders": "x BIGINT"}, "has no column n, which the query reads"),
        ({"other": "x BIGINT"}, "does not read other"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(schema: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        view("SELECT sum(n) AS n FROM orders", schema=schema)


def test_a_table_that_is_no_view_of_the_pipeline_is_never_written_over(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"mine": [1]}))
    table = ViewTable(str(tmp_path), "p", config=view("SELECT count(*) AS n FROM orders"))
    with pytest.raises(PipelineChangedError, match="is no view of it"):
        table.made(("orders",))


def test_a_view_that_another_driver_made_meanwhile_is_not_taken_back(tmp_path: Path) -> None:
    config = view("SELECT count(*) AS n FROM orders")
    first, second = (ViewTable(str(tmp_path), "p", config=config) for _ in range(2))
    newer, older = (Made(query=1, marks={"orders": Mark(table=1, version=at)}) for at in (7, 6))
    first.replace(pa.table({"n": [7]}), newer)
    with pytest.raises(CommitFailedError):
        second.replace(pa.table({"n": [6]}), older)
    second.reload()
    assert second.made(("orders",)) == newer


def test_files_joined_while_a_view_is_made_anew_leave_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "v")
    table = ViewTable(path, "p", config=view("SELECT count(*) AS n FROM orders"))

    def rows(*numbers: int) -> pa.Table:
        return pa.table({"n": pa.array(numbers)})

    table.replace(rows(1), Made(query=1, marks={}))
    write_deltalake(path, rows(2), mode="append")
    table.reload()
    joined: list[int] = []

    def write(*said: Any, **more: Any) -> None:
        joined.append(DeltaTable(path).optimize.compact()["numFilesRemoved"])
        write_deltalake(*said, **more)

    monkeypatch.setattr(stored, "write_deltalake", write)
    table.replace(rows(3, 4), Made(query=2, marks={}))
    assert joined == [2, 0]
    found: list[Any] = DeltaTable(path).to_pyarrow_table()["n"].to_pylist()
    assert sorted(found) == [3, 4]
    made = table.made(())
    assert made is not None
    assert made.query == 2
