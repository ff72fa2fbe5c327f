"""Current rows in another database: a PostgreSQL on the same machine, and on the same cores."""

import numpy as np
import psycopg

from bench.spark.orders import quantity
from bench.spark.stage import Figure, Given, agree, piped
from tests_support.servers import PostgresServer


def measure(given: Given) -> list[Figure]:
    with PostgresServer() as server:
        uri = server.create("shop")
        figure = piped(
            given._replace(batch=min(given.batch, 50_000)),
            "replicate (PostgreSQL)",
            to="replicate",
            collections=("orders",),
            uri=uri,
        )
        with psycopg.connect(uri) as connection:
            rows = connection.execute("SELECT _id, number, quantity FROM orders ORDER BY _id")
            found = np.array(rows.fetchall(), np.int64)
    expected = given.orders.fold(figure.changes)
    agree("the keys in PostgreSQL", found[:, 0], expected.keys)
    agree("the changes that its rows are of", found[:, 1], expected.last)
    agree("a column of them", found[:, 2], quantity(expected.last))
    return [figure]
