"""An upsert must find the row of its key and no other: what a table needs for that, at any time."""

from contextlib import closing
from typing import Any

import pytest

from penstock.errors import DestinationError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.mysql import MysqlDialect
from tests.spark.replica.support import (
    Driver,
    MongoReplica,
    MysqlReplica,
    PostgresReplica,
    Replica,
    database,
)
from tests.spark.tables import Entries, put
from tests_support.servers import MariaDbServer, MongoReplicaSet, MySqlServer, PostgresServer


class Cursor:
    def __init__(self, *indexes: tuple[str, str, int]) -> None:
        self.answers: list[Any] = [[("BASE TABLE", "InnoDB")], [], [], list(indexes)]

    def execute(self, *_: Any) -> None:
        self.answer = self.answers.pop(0)

    def fetchone(self) -> Any:
        return self.answer[0]

    def fetchall(self) -> Any:
        return self.answer


@pytest.mark.parametrize("name", ["a_email", "z_email"])
@pytest.mark.parametrize("whole", [0, 1])
def test_a_second_unique_index_is_a_problem_wherever_it_is_listed(name: str, whole: int) -> None:
    uri = "mysql://there/shop"
    config = ReplicatePipelineConfig.model_validate({"to": "replicate", "source": "s", "uri": uri})
    indexes = sorted(
        [(name, b"email".hex(), whole), ("PRIMARY", b"id".hex(), 1)], key=lambda one: one[0].lower()
    )
    found = MysqlDialect("p", config).describe(Cursor(*indexes), "rows")
    assert found is not None
    assert any("second unique index" in one for one in found.problems)


def refused(replica: Replica, alter: Any, text: str) -> None:
    """A pipeline has written; `alter` is done; nothing is written then."""
    entries = Entries()
    entries.commit(put("1", mail="a"), put("2", mail="b"))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        driver.apply()
        alter()
        entries.commit(put("3", mail="a"))  # by the mail it would be the first row
        with pytest.raises(DestinationError, match=text):
            driver.apply(2)
        assert {key: row["mail"] for key, row in replica.rows("orders").items()} == {
            "1": "a", "2": "b",
        }  # fmt: skip
    finally:
        driver.close()


def test_an_index_of_mysql_that_is_added_later_has_no_row_written_over_another(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    refused(
        replica,
        lambda: replica.ask("CREATE UNIQUE INDEX one_mail ON orders (mail(20))"),
        "orders is there and cannot be used: it has a second unique index: PRIMARY, one_mail",
    )


def test_an_index_of_an_expression_of_mysql_is_none_of_its_columns(
    mysql: MySqlServer, mysql_database: str
) -> None:
    replica = MysqlReplica(mysql.host, mysql.port, mysql_database)
    refused(
        replica,
        lambda: replica.ask("CREATE UNIQUE INDEX one_mail ON orders ((left(mail, 20)))"),
        "orders is there and cannot be used: it has a second unique index: PRIMARY, one_mail",
    )
    replica.ask("CREATE TABLE other (_id int NOT NULL, n int, UNIQUE KEY (_id, (abs(n))))")
    dialect = MysqlDialect("p", replica.config())
    with closing(dialect.connect()) as connection:
        found = dialect.describe(connection.cursor(), "other")
    assert found is not None
    assert found.unique == ()


def test_a_collation_of_mysql_that_is_changed_later_is_refused(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    replica = MysqlReplica(mariadb.host, mariadb.port, mariadb_database)
    column = "_id varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL"
    refused(
        replica,
        lambda: replica.ask(f"ALTER TABLE orders MODIFY COLUMN {column}"),
        "the texts of its key are not told apart exactly: _id",
    )


def test_an_index_of_postgresql_that_is_added_later_stops_it(postgres: PostgresServer) -> None:
    replica = PostgresReplica(postgres.create(database()))
    refused(
        replica,
        lambda: replica.ask("CREATE UNIQUE INDEX one_mail ON orders (mail)"),
        "UniqueViolation 23505, one_mail",
    )


def test_a_collation_of_postgresql_that_takes_texts_for_the_same_is_refused(
    postgres: PostgresServer,
) -> None:
    replica = PostgresReplica(postgres.create(database()))
    replica.ask(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    replica.ask("CREATE TABLE orders (_id text COLLATE loose PRIMARY KEY)")
    entries = Entries()
    entries.commit(put("a"), put("A"))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        with pytest.raises(DestinationError, match="_id should have a deterministic collation"):
            driver.apply()
    finally:
        driver.close()


def test_a_collation_of_mongodb_that_takes_texts_for_the_same_is_refused(
    mongo: MongoReplicaSet, mongo_database: str
) -> None:
    replica = MongoReplica(mongo.uri, mongo_database)
    replica.database.create_collection("orders", collation={"locale": "en", "strength": 1})
    entries = Entries()
    entries.commit(put("a"), put("A"))
    driver = Driver(entries, replica.config())
    try:
        driver.start()
        with pytest.raises(DestinationError, match="orders has a collation"):
            driver.apply()
    finally:
        driver.close()
        replica.close()
