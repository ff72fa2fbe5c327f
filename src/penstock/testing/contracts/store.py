"""What every face of a store promises: the open store itself, and the clients of its server.

class TestClient(StoreContract):
    @contextmanager
    def opened(self, folder, clock): yield Client(...)
"""

from penstock.testing.contracts.store_items import StoreItemsContract
from penstock.testing.contracts.store_streams import StoreStreamsContract


class StoreContract(StoreItemsContract, StoreStreamsContract):
    """Inherit, and give `opened`."""
