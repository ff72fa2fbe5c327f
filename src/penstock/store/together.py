"""Writes of several threads in one commit: all of them wait for the disk once.

Each promises what it would alone: it sees what was written before it, all of it is kept or nothing,
it is durable when its thread goes on, and its records are of a commit of their own. Their order is
that in which the threads came.

A thread that comes while none writes writes at once. Those that come meanwhile wait, and the first
of them then writes for all, in their order, up to one that is refused when others have changed
something: what it says must be of what is kept, so it is asked again as the first of the next
commit. One that raises when it has itself changed something is undone with the commit, and the
ones before it are done again. So a write is a function of its transaction, which any thread may
call, and more than once.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from penstock.errors import PenstockError
from penstock.kv import Transaction as Txn
from penstock.store.transaction import Transaction

Result = TypeVar("Result")

WRITES_MAX: Final = 64
BYTES_MAX: Final = 8 << 20
"""Of items and records: what comes behind them is the next commit's."""


class _NothingError(Exception):
    """Nothing was changed, so there is nothing to be kept."""


class _Asked:
    """One write."""

    def __init__(self, call: Callable[[Transaction], Any]) -> None:
        self.call = call
        self.news = threading.Event()
        """It is decided, or its thread is to write for all."""
        self.decided = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.bytes = 0

    def said(self) -> Any:
        """What the call returned. Raises what it raised; once, for the error knows this."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        return self.result


class Together:
    """The writes of one store. Not for the main thread, which a signal may interrupt anywhere."""

    def __init__(
        self,
        writing: Callable[[], AbstractContextManager[Txn]],
        transaction: Callable[[Txn], AbstractContextManager[Transaction]],
    ) -> None:
        """`writing` is a transaction of LMDB, kept when its block ends and undone if it raises;
        `transaction` is one of the store inside it."""
        self._writing = writing
        self._transaction = transaction
        self._lock = threading.Lock()
        self._waiting = deque[_Asked]()
        self._writes = False
        """Whether a thread writes, or is told to."""

    def do(self, call: Callable[[Transaction], Result]) -> Result:
        """Call with a transaction, and return once what that wrote is kept. Raises what the call
        raises, and what keeping it does."""
        mine = _Asked(call)
        with self._lock:
            self._waiting.append(mine)
            waits, self._writes = self._writes, True
        if waits:
            mine.news.wait()
        if not mine.decided:
            self._lead(mine)
        said: Result = mine.said()
        return said

    def _lead(self, mine: _Asked) -> None:
        """Write for all that wait; this is the first of them."""
        begun: list[_Asked] = []
        try:
            self._commit(self._next(begun))
        except BaseException as error:
            mine.decided, mine.error = True, error  # nobody could write, as the others will find
        with self._lock:
            if mine in self._waiting:
                self._waiting.remove(mine)
            self._waiting.extendleft(one for one in reversed(begun) if not one.decided)
            for one in begun:
                if one.decided:
                    one.news.set()
            if self._waiting:
                self._waiting[0].news.set()  # it leads
            else:
                self._writes = False

    def _next(self, begun: list[_Asked]) -> Iterator[_Asked]:
        count = size = 0
        while count < WRITES_MAX and size < BYTES_MAX:
            with self._lock:
                if not self._waiting:
                    return
                one = self._waiting.popleft()
                begun.append(one)
            yield one
            count, size = count + 1, size + one.bytes

    def _commit(self, wanted: Iterable[_Asked]) -> None:
        """Do what is wanted, in one commit; the first is decided then, and others may be. Raises
        what is raised before any is begun."""
        group: list[_Asked] = []
        changes = committing = False
        try:
            with self._writing() as txn:
                for one in wanted:
                    group.append(one)
                    touched = self._run(txn, one)
                    if one.error is not None and changes:
                        group.pop()
                        break
                    changes |= touched
                if not changes:
                    raise _NothingError
                committing = True
        except _NothingError:
            pass
        except BaseException as error:
            if not group:
                raise
            if len(group) > 1 and not committing:
                self._commit(group[:-1])
                return
            for one in group:
                one.error = one.error or error
        for one in group:
            one.decided = True

    def _run(self, txn: Txn, one: _Asked) -> bool:
        """Whether it changed anything. Raises if that is to be undone."""
        one.result = one.error = None
        with self._transaction(txn) as transaction:
            try:
                one.result = one.call(transaction)
            except PenstockError as error:
                if transaction.touched:
                    raise
                one.error = error
        one.bytes = transaction.bytes
        return transaction.touched
