"""What a replica's database and its driver hold does not grow with the number of batches."""

from penstock.event import AnyEvent
from tests.growing import batches, growth
from tests.spark.newest import NewestEntries
from tests.spark.replica.support import Driver, Replica
from tests.spark.tables import change, put, schema_event


@batches()
def test_tables_of_its_own_and_its_driver_stay_as_they_are(
    any_replica: Replica, batches: int
) -> None:
    """Rows come, change and go; tables are renamed, there and back, and emptied."""
    entries = NewestEntries()
    driver = Driver(entries, any_replica.config())
    driver.start()
    try:
        with growth(batches) as found:
            for number in range(batches):
                after = entries.head
                entries.commit(*_events(number))
                driver.apply(after)
                names = any_replica.names()
                own = {one: any_replica.count(one) for one in names if one.startswith("_penstock")}
                assert len(own) >= 3
                found.note({**own, "tables": len(names)})
    finally:
        driver.close()


def _events(number: int) -> list[AnyEvent]:
    match number % 8:
        case 4:
            return [schema_event("rename", to={"db": "db", "coll": "lines"})]
        case 5:
            return [schema_event("rename", collection="lines", to={"db": "db", "coll": "orders"})]
        case 6:
            return [schema_event("drop")]
        case _:
            n = number % 7
            return [
                put(n, n=number, name=f"row {number}"),
                put(n + 7, n=number / 2),
                change(n + 6, "delete"),
            ]
