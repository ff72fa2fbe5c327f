"""What every `CheckpointStore` promises."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from penstock.errors import CheckpointConflictError
from penstock.ports import Ancestor, Checkpoint, CheckpointStore, SourceState


def checkpoint(instance: str, *, sequence: int = 10, log_id: int = (1 << 64) - 1) -> Checkpoint:
    """A copy with something in every field."""
    return Checkpoint(
        instance=instance,
        log_id=log_id,
        writer="writer",
        sequence=sequence,
        commit=3,
        check=0xFFFFFFFF,
        ancestors=(Ancestor(log_id=5, head=4), Ancestor(log_id=1 << 63, head=2, gone=True)),
        sources=(
            SourceState(
                source="shop",
                position='{"token":"ü\\u0000\\n"}',
                commits=3,
                events=10,
                last_timestamp=1_700_000_000_000,
                moved_at=1_700_000_000_001,
            ),
        ),
        past_sources=("former",),
        published_at=1_700_000_000_002,
    )


class CheckpointStoreContract:
    """Inherit, and give `open_store`; the store may be shared with others."""

    def open_store(self) -> CheckpointStore:
        """A store; two of them see the same copies."""
        raise NotImplementedError

    @asynccontextmanager
    async def stores(self) -> AsyncGenerator[tuple[CheckpointStore, CheckpointStore, str]]:
        """Two processes' stores, and the name of an instance that is nobody else's."""
        one, other = self.open_store(), self.open_store()
        instance = f"test-{uuid.uuid4().hex[:12]}"
        try:
            yield one, other, instance
        finally:
            await one.clear(instance)
            await one.close()
            await other.close()

    async def test_what_was_written_is_what_is_read_by_everyone(self) -> None:
        async with self.stores() as (one, other, instance):
            assert await one.read(instance) is None
            written = checkpoint(instance)
            revision = await one.write(written, replacing=None)
            assert await other.read(instance) == (written, revision)

    async def test_a_write_replaces_the_revision_that_it_names_and_no_other(self) -> None:
        async with self.stores() as (one, other, instance):
            first = await one.write(checkpoint(instance), replacing=None)
            second = await other.write(checkpoint(instance, sequence=20), replacing=first)
            with pytest.raises(CheckpointConflictError):
                await one.write(checkpoint(instance, sequence=15), replacing=first)
            with pytest.raises(CheckpointConflictError):
                await one.write(checkpoint(instance, sequence=15), replacing=None)
            kept = await one.read(instance)
            assert kept is not None
            assert (kept.checkpoint.sequence, kept.revision) == (20, second)

    async def test_the_same_content_written_again_is_another_revision(self) -> None:
        async with self.stores() as (one, other, instance):
            first = await one.write(checkpoint(instance), replacing=None)
            second = await one.write(checkpoint(instance), replacing=first)
            assert second != first
            with pytest.raises(CheckpointConflictError):
                await other.write(checkpoint(instance), replacing=first)

    async def test_of_writers_at_once_exactly_one_is_taken(self) -> None:
        """P33: two machines under one name cannot both go on."""
        async with self.stores() as (one, other, instance):
            revision: int | None = None
            for round_ in range(5):
                results = await asyncio.gather(
                    *(
                        store.write(
                            structs.replace(checkpoint(instance, sequence=round_), writer=str(n)),
                            replacing=revision,
                        )
                        for n, store in enumerate((one, other, one, other))
                    ),
                    return_exceptions=True,
                )
                taken = [n for n, result in enumerate(results) if isinstance(result, int)]
                refused = [r for r in results if isinstance(r, CheckpointConflictError)]
                assert (len(taken), len(refused)) == (1, 3), results
                kept = await one.read(instance)
                assert kept is not None
                assert kept.checkpoint.writer == str(taken[0])
                revision = kept.revision

    async def test_instances_keep_their_own_copies(self) -> None:
        async with self.stores() as (one, other, instance):
            longer = f"{instance}-2"
            try:
                await one.write(checkpoint(instance), replacing=None)
                await other.write(checkpoint(longer, sequence=99), replacing=None)
                kept = await other.read(instance)
                assert kept is not None
                assert kept.checkpoint.sequence == 10
                await one.clear(instance)
                assert await one.read(instance) is None
                assert await one.read(longer) is not None
            finally:
                await one.clear(longer)

    async def test_a_cleared_copy_is_gone_and_another_may_take_its_place(self) -> None:
        async with self.stores() as (one, other, instance):
            await one.clear(instance)
            revision = await one.write(checkpoint(instance), replacing=None)
            await other.clear(instance)
            with pytest.raises(CheckpointConflictError):
                await one.write(checkpoint(instance), replacing=revision)
            await other.write(checkpoint(instance, sequence=1), replacing=None)

    async def test_a_large_copy_is_kept_whole(self) -> None:
        """Many sources, each in the middle of a snapshot of many collections."""
        async with self.stores() as (one, other, instance):
            small = checkpoint(instance)
            sources = tuple(
                structs.replace(small.sources[0], source=f"s{n}", position="p" * 5_000)
                for n in range(100)
            )
            large = structs.replace(small, sources=sources)
            await one.write(large, replacing=None)
            kept = await other.read(instance)
            assert kept is not None
            assert kept.checkpoint == large
