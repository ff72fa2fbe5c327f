"""Transactions in parts, over a connection of their own."""

import asyncio
from pathlib import Path
from typing import TypeVar

from penstock.store.conditions import Condition
from penstock.store.remote import calls
from penstock.store.remote.calls import Call, answered
from penstock.store.remote.links import AsyncLink, Link, Lost, undone
from penstock.store.remote.requests import encode_line
from penstock.store.transaction import Updated
from penstock.store.updates import Update
from penstock.store.values import Item

Result = TypeVar("Result")


class ClientTransaction:
    """One write transaction over a client. Of use only inside its block."""

    def __init__(self, link: Link, address: Path, timeout_seconds: float) -> None:
        self._link = link
        self._address = address
        self._timeout = timeout_seconds

    def _run(self, call: Call[Result]) -> Result:
        try:
            self._link.send(encode_line(call.request))
            reply = self._link.receive(self._timeout)
        except Lost as lost:
            raise undone(self._address, lost) from lost
        return call.read(answered(reply))

    def get(self, table: str, key: Item) -> Item | None:
        """The item of that key, as this transaction has left it; None when there is none."""
        return self._run(calls.get(table, key))

    def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Write an item, whole; returns the one that it replaces."""
        return self._run(calls.put(table, item, condition, expected_version))

    def update(
        self,
        table: str,
        key: Item,
        update: Update,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Updated:
        """Change an item in part, or make it of its key; returns what it was and is."""
        return self._run(calls.update(table, key, update, condition, expected_version))

    def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Remove an item; returns it, or None when there was none, which is no change."""
        return self._run(calls.delete(table, key, condition, expected_version))

    def check(self, table: str, key: Item, condition: Condition) -> None:
        """Raise ConditionCheckFailedError unless the condition holds for the item of that key."""
        self._run(calls.check(table, key, condition))


class AsyncTransaction:
    """One write transaction over an asynchronous client. Of use only inside its block.

    What is awaited at once is done one by one, in the order of the calls. A call that is cancelled
    may have been done, so nothing more is possible: the transaction is undone.
    """

    def __init__(self, link: AsyncLink, address: Path, timeout_seconds: float) -> None:
        self._link = link
        self._address = address
        self._timeout = timeout_seconds
        self._turn = asyncio.Lock()

    async def _run(self, call: Call[Result]) -> Result:
        try:
            async with self._turn:
                await self._link.send(encode_line(call.request))
                reply = await self._link.receive(self._timeout)
        except Lost as lost:
            raise undone(self._address, lost) from lost
        return call.read(answered(reply))

    async def get(self, table: str, key: Item) -> Item | None:
        """The item of that key, as this transaction has left it; None when there is none."""
        return await self._run(calls.get(table, key))

    async def put(
        self,
        table: str,
        item: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Write an item, whole; returns the one that it replaces."""
        return await self._run(calls.put(table, item, condition, expected_version))

    async def update(
        self,
        table: str,
        key: Item,
        update: Update,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Updated:
        """Change an item in part, or make it of its key; returns what it was and is."""
        return await self._run(calls.update(table, key, update, condition, expected_version))

    async def delete(
        self,
        table: str,
        key: Item,
        *,
        condition: Condition | None = None,
        expected_version: int | None = None,
    ) -> Item | None:
        """Remove an item; returns it, or None when there was none, which is no change."""
        return await self._run(calls.delete(table, key, condition, expected_version))

    async def check(self, table: str, key: Item, condition: Condition) -> None:
        """Raise ConditionCheckFailedError unless the condition holds for the item of that key."""
        await self._run(calls.check(table, key, condition))
