"""A transaction that a client makes in parts, one request at a time.

It runs in one thread that writes, from its begin to its end, since LMDB's transactions are a
thread's. It is undone when the client ends it so, hangs up, or takes longer than it may.
"""

import asyncio
import queue
import time
from typing import Any

from penstock.errors import PenstockError
from penstock.store.errors import TransactionError
from penstock.store.remote import requests as ask
from penstock.store.remote.answers import Answer, in_transaction, written
from penstock.store.remote.forms import told, write_error
from penstock.store.remote.requests import AnyRequest, Form, decode_request, encode_line
from penstock.store.store import Store
from penstock.store.transaction import Transaction


class _UndoneError(Exception):
    """Undo the transaction; whoever waits is told by other means."""


class Held:
    """One transaction."""

    def __init__(self, store: Store, *, seconds_max: float) -> None:
        self._store = store
        self._seconds_max = seconds_max
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._inbox: queue.SimpleQueue[tuple[AnyRequest, asyncio.Future[bytes]] | None] = (
            queue.SimpleQueue()
        )
        self._aborted = False

    def abort(self) -> None:
        """Undo it, unless it has ended."""
        self._aborted = True
        self._inbox.put(None)

    # --- in the thread that writes ---------------------------------------------------------------

    def run(self) -> bool:
        """Hold the transaction to its end; returns whether it was kept."""
        if self._aborted:
            return False
        try:
            with self._store.transact() as transaction:
                self._loop.call_soon_threadsafe(_resolve, self._opened, None)
                self._follow(transaction)
        except _UndoneError:
            return False
        return True

    def _follow(self, transaction: Transaction) -> None:
        deadline = time.monotonic() + self._seconds_max
        while True:
            try:
                asked = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TransactionError(
                    f"the transaction was open for more than {self._seconds_max:g} s, and other "
                    f"writers wait meanwhile: it was undone. Nothing was changed. Prepare what is "
                    f"slow beforehand, or raise transaction_seconds_max."
                ) from None
            if asked is None:
                raise _UndoneError
            request, reply = asked
            if isinstance(request, ask.CommitTransaction):
                return
            line = _answered(transaction, request)
            self._loop.call_soon_threadsafe(_resolve, reply, line)

    # --- in the loop -----------------------------------------------------------------------------

    async def begun(self, running: "asyncio.Future[bool]") -> PenstockError | None:
        """Wait until it is open; what went wrong, if it cannot be."""
        waiting: list[asyncio.Future[Any]] = [self._opened, running]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return None if self._opened.done() else _failure(running)

    async def ask(self, line: bytes, running: "asyncio.Future[bool]") -> tuple[bool | None, bytes]:
        """Answer a request; with whether the connection may go on once the transaction has ended.

        After a transaction that was undone for its slowness the connection may not: what its
        client sends next it means for the transaction.
        """
        try:
            request = decode_request(line)
        except PenstockError as error:
            return None, encode_line(write_error("plain", error))
        if isinstance(request, ask.AbortTransaction):
            self.abort()
            await asyncio.wait([running])
            failure = _failure(running)
            if failure is not None:
                return True, encode_line(write_error("plain", failure))
            return True, encode_line({"ok": True})
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._inbox.put((request, reply))
        waiting: list[asyncio.Future[Any]] = [running]
        if not isinstance(request, ask.CommitTransaction):
            waiting.append(reply)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return None, reply.result()
        failure = _failure(running)
        if failure is not None:
            return False, encode_line(write_error("plain", failure))
        return True, encode_line({"ok": True})


def _failure(running: "asyncio.Future[bool]") -> PenstockError | None:
    """Why it ended, if not as it was told to."""
    error = running.exception()
    return None if error is None else told(error)


def _answered(transaction: Transaction, request: AnyRequest) -> bytes:
    form: Form = "plain"
    try:
        if not isinstance(
            request,
            ask.GetItem
            | ask.PutItem
            | ask.UpdateItem
            | ask.DeleteItem
            | ask.CheckItem
            | ask.QueryIndex,
        ):
            raise TransactionError(
                "inside a transaction only get_item, put_item, update_item, delete_item, "
                "check_item and query_index are possible. This changed nothing, and the "
                "transaction is open."
            )
        form = request.values
        said: Answer = in_transaction(transaction, request)
        return encode_line(written(said, form))
    except PenstockError as error:
        return encode_line(write_error(form, error))


def _resolve(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)
