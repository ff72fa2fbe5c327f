"""What every operation of the endpoint stands on: the store, its names, and the time."""

from typing import Any

from penstock.clocks import Clock, SystemClock
from penstock.serve.dynamodb.config import DynamoConfig
from penstock.serve.dynamodb.counting import Counter
from penstock.serve.dynamodb.counts import Counts
from penstock.serve.dynamodb.errors import not_found
from penstock.serve.dynamodb.iterators import Minter, iterator_key
from penstock.serve.dynamodb.making import IndexMaker
from penstock.serve.dynamodb.names import Names, is_offered
from penstock.store import Store, Table, Transaction, View
from penstock.store.errors import TableNotFoundError


class Endpoint:
    """A store as it is seen over the protocol."""

    def __init__(self, store: Store, config: DynamoConfig, clock: Clock | None = None) -> None:
        self.store = store
        self.config = config
        self.names = Names(config.region, config.account)
        self.minter = Minter(iterator_key(store.path), seconds=config.iterator_seconds)
        self._clock = clock or SystemClock()
        self.maker = IndexMaker(store)
        self._counts = Counts(self._clock)
        self.counter = Counter(store, self._counts)

    def close(self) -> None:
        """Stop what goes on behind requests."""
        self.maker.close()
        self._counts.close()

    @property
    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._clock.wall_ms()

    def name(self, request: dict[str, Any], member: str = "TableName") -> str:
        """The table's name in a request."""
        return self.names.table_name(request[member])

    def table(self, inside: View | Transaction, name: str, *, named: bool = False) -> Table:
        """A table; raises WireError when there is none, which says its name if `named`."""
        found: Table | None = None
        if is_offered(name):
            try:
                found = inside.table(name)
            except TableNotFoundError:
                found = None
        if found is None:
            raise not_found(f"Table: {name} not found" if named else "")
        return found
