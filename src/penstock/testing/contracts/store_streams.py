"""What every face of a store promises of streams, followers and consumers."""

import threading
from typing import Any

import pytest

from penstock.store import (
    AheadOfStreamError,
    CheckpointConflictError,
    Item,
    Page,
    RefusedError,
    Retention,
    StoreClosedError,
    StreamAlreadyEnabledError,
    StreamChangedError,
    StreamClosedError,
    StreamError,
    StreamFullError,
    StreamNotEnabledError,
    StreamRecord,
    StreamViewType,
    TrimmedDataError,
)
from penstock.testing.contracts.log import ManualClock
from penstock.testing.contracts.store_face import BOTH, StoreFace


def told(page: Page) -> list[tuple[str, object, object]]:
    """What the records of a page say: event, item before, item after."""
    return [(str(one.event_type), one.old_image, one.new_image) for one in page.records]


class StoreStreamsContract(StoreFace):
    """Inherited by way of `StoreContract`."""

    # --- streams ---------------------------------------------------------------------------------

    def test_every_record_has_its_own_sequence_and_pages_give_each_once(self) -> None:
        """F1, F2, F13."""
        with self.store() as db:
            db.write_batch(puts=[("t", {"id": f"k{number}"}) for number in range(10)])
            read, page = list[StreamRecord](), db.get_stream_records("t").limit(3).execute()
            while page.records:
                read += page.records
                page = db.get_stream_records("t").after(page.position).limit(3).execute()
            assert [record.keys["id"] for record in read] == [f"k{number}" for number in range(10)]
            sequences = [record.sequence_number for record in read]
            assert sequences == sorted(set(sequences))
            assert {record.commit_records for record in read} == {10}
            info = db.get_stream_info("t")
            assert (info.oldest_sequence, info.latest_sequence) == (sequences[0], sequences[-1])
            assert (info.records, info.enabled, info.view_type) == (10, True, BOTH)

            def names(described: Any) -> list[Any]:
                return [record.keys["id"] for record in described.execute().records]

            def records() -> Any:
                return db.get_stream_records("t")

            assert names(records().at_sequence(sequences[8])) == ["k8", "k9"]
            assert names(records().after_sequence(sequences[8])) == ["k9"]
            assert names(records().after(read[8].position)) == ["k9"]
            assert names(records().latest()) == []
            assert names(records().trim_horizon().max_bytes(1)) == ["k0"]

    @pytest.mark.parametrize("view", list(StreamViewType))
    def test_a_view_says_which_images_a_record_has(self, view: StreamViewType) -> None:
        with self.store(view=view) as db:
            db.put("t", {"id": "a", "n": 1})
            db.put("t", {"id": "a", "n": 2})
            db.delete("t", {"id": "a"})
            old: list[object] = [None, {"id": "a", "n": 1}, {"id": "a", "n": 2}]
            new: list[object] = [{"id": "a", "n": 1}, {"id": "a", "n": 2}, None]
            records = db.get_stream_records("t").execute().records
            assert [one.old_image for one in records] == (old if view.has_old else [None] * 3)
            assert [one.new_image for one in records] == (new if view.has_new else [None] * 3)
            assert {one.view for one in records} == {view}

    def test_a_reader_that_waits_gets_the_next_record(self) -> None:
        """F14."""
        with self.store() as db:
            found = list[Page]()
            reader = db.get_stream_records("t").wait(60)
            thread = threading.Thread(target=lambda: found.append(reader.execute()))
            thread.start()
            db.put("t", {"id": "a"})
            thread.join()
            assert [told(page) for page in found] == [[("Insert", None, {"id": "a"})]]
            after = db.get_stream_records("t").after(found[0].position).wait(0.05).execute()
            assert (after.records, after.position) == ([], found[0].position)

    def test_a_position_that_cannot_be_read_on_from_says_why(self) -> None:
        """F4, F10, F19."""
        with self.store() as db:
            for number in range(4):
                db.put("t", {"id": str(number)})
            first = db.get_stream_records("t").limit(1).execute()
            third = db.get_stream_records("t").limit(3).execute().records[2]
            assert db.prune_stream("t", until_sequence=third.sequence_number) == 3
            with pytest.raises(TrimmedDataError) as trimmed:
                db.get_stream_records("t").after(first.position).execute()
            assert trimmed.value.trimmed == third.sequence_number
            assert len(db.get_stream_records("t").after(third.position).execute().records) == 1
            with pytest.raises(AheadOfStreamError):
                db.get_stream_records("t").after_sequence(10**9).execute()
            with pytest.raises(RefusedError, match="no position"):
                db.get_stream_records("t").after("nonsense:x").execute()
            foreign = "0000000000000000.1:5"
            with pytest.raises(StreamChangedError):
                db.get_stream_records("t").after(foreign).execute()
            db.disable_stream("t")
            end = db.get_stream_records("t").after(third.position).execute()
            assert (len(end.records), end.closed) == (1, True)
            assert not db.get_stream_info("t").enabled
            over = db.get_stream_records("t").after(end.position).execute()
            assert (len(over.records), over.closed) == (0, True)
            db.enable_stream("t", BOTH)
            with pytest.raises(StreamChangedError):
                db.get_stream_records("t").after(over.position).execute()

    def test_streams_are_enabled_disabled_and_kept_as_their_retention_says(self) -> None:
        """F12."""
        with self.store(view=None) as db:
            with pytest.raises(StreamNotEnabledError):
                db.get_stream_records("t").execute()
            with pytest.raises(StreamNotEnabledError):
                db.disable_stream("t")
            db.enable_stream("t", BOTH, retention=Retention.by_hand(bytes_max=500))
            with pytest.raises(StreamAlreadyEnabledError):
                db.enable_stream("t", BOTH)
            with pytest.raises(StreamFullError):
                for number in range(10):
                    db.put("t", {"id": str(number), "data": "x" * 100})
            db.alter_table_stream_retention("t", Retention(records_max=1))
            db.put("t", {"id": "again"})
            while db.sweep():
                pass
            assert db.get_stream_info("t").records == 1

    def test_writes_that_change_nothing_are_recorded_where_that_is_asked_for(self) -> None:
        """F6."""
        with self.store(view=None) as db:
            db.enable_stream("t", BOTH, unchanged=True)
            db.put("t", {"id": "a"})
            db.put("t", {"id": "a"})
            events = [event for event, _, _ in told(db.get_stream_records("t").execute())]
            assert events == ["Insert", "Modify"]

    # --- following -------------------------------------------------------------------------------

    def test_a_follower_gets_what_was_and_what_comes_and_hears_of_the_end(self) -> None:
        """F14, F19."""
        with self.store() as db:
            db.put("t", {"id": "a"})
            following = db.follow("t")
            assert next(following).keys == {"id": "a"}
            db.put("t", {"id": "b"})
            last = next(following)
            assert last.keys == {"id": "b"}
            db.disable_stream("t")
            with pytest.raises(StreamClosedError) as closed:
                next(following)
            assert closed.value.position == last.position

    def test_a_follower_goes_on_behind_a_position_and_may_end_when_nothing_comes(self) -> None:
        with self.store() as db:
            for name in ("a", "b", "c"):
                db.put("t", {"id": name})
            first = next(db.follow("t", idle_seconds=5))
            behind = db.follow("t", after=first.position, idle_seconds=0.05)
            assert [record.keys["id"] for record in behind] == ["b", "c"]
            assert list(db.follow("t", start="latest", idle_seconds=0.05)) == []
            db.prune_stream("t", until_sequence=first.sequence_number + 1)
            with pytest.raises(TrimmedDataError):
                list(db.follow("t", after=first.position, idle_seconds=5))

    # --- consumers -------------------------------------------------------------------------------

    def test_a_consumer_goes_on_where_its_handler_last_returned(self) -> None:
        """At least once: what a handler raised on comes again."""
        with self.store() as db:
            for number in range(5):
                db.put("t", {"id": str(number)})
            handled = list[object]()

            def handle(records: list[StreamRecord]) -> None:
                handled.extend(record.keys["id"] for record in records)
                if "3" in handled and handled.count("3") == 1:
                    raise OSError("the mail server is down")

            consumer = db.consume("t", "mailer", limit=2)
            with pytest.raises(OSError, match="mail server"):
                consumer.run(handle, idle_seconds=0)
            assert handled == ["0", "1", "2", "3"]
            db.consume("t", "mailer", limit=2).run(handle, idle_seconds=0)
            assert handled == ["0", "1", "2", "3", "2", "3", "4"]
            db.consume("t", "mailer", limit=2).run(handle, idle_seconds=0)
            assert len(handled) == 7

    def test_a_consumer_that_begins_with_the_latest_misses_nothing_from_its_beginning_on(
        self,
    ) -> None:
        """Its place is kept before the first record, so a crash before it skips nothing."""
        with self.store() as db:
            db.put("t", {"id": "before"})
            db.consume("t", "c", start="latest").step(_never)
            db.put("t", {"id": "after"})
            handled = list[object]()
            again = db.consume("t", "c", start="latest")
            again.run(
                lambda records: handled.extend(one.keys["id"] for one in records), idle_seconds=0
            )
            assert handled == ["after"]

    def test_a_consumer_that_retention_overtook_copies_and_goes_on_from_before_the_copy(
        self,
    ) -> None:
        """F4: and without a callback it is an error, each time."""
        with self.store() as db:
            db.put("t", {"id": "a"})
            db.register_consumer("t", "c")
            last = db.get_stream_records("t").execute().records[-1]
            db.prune_stream("t", until_sequence=last.sequence_number)
            with pytest.raises(TrimmedDataError):
                db.consume("t", "c").run(_never, idle_seconds=0)
            copied, handled, why = list[Item](), list[object](), list[StreamError]()

            def copy(error: StreamError) -> None:
                why.append(error)
                db.put("t", {"id": "during"})
                copied.extend(db.scan("t").execute().items)

            consumer = db.consume("t", "c", resync=copy)
            consumer.run(
                lambda records: handled.extend(one.keys["id"] for one in records), idle_seconds=0
            )
            assert copied == [{"id": "a"}, {"id": "during"}]
            assert handled == ["during"]
            assert [type(error) for error in why] == [TrimmedDataError]
            db.consume("t", "c").run(_never, idle_seconds=0)

    def test_a_copy_that_failed_is_made_again(self) -> None:
        with self.store() as db:
            db.put("t", {"id": "a"})
            db.register_consumer("t", "c")
            last = db.get_stream_records("t").execute().records[-1]
            db.prune_stream("t", until_sequence=last.sequence_number)
            tries = list[int]()

            def copy(_: StreamError) -> None:
                tries.append(1)
                if len(tries) == 1:
                    raise OSError("no room")

            with pytest.raises(OSError, match="no room"):
                db.consume("t", "c", resync=copy).run(_never, idle_seconds=0)
            db.consume("t", "c", resync=copy).run(_never, idle_seconds=0)
            assert len(tries) == 2

    def test_a_consumer_hears_that_its_stream_ended_and_goes_over_to_the_next(self) -> None:
        """F10, F19: changes may lie between the two, so it copies."""
        with self.store() as db:
            db.put("t", {"id": "a"})
            handled, why = list[object](), list[StreamError]()
            consumer = db.consume("t", "c", resync=why.append)

            def handle(records: list[StreamRecord]) -> None:
                handled.extend(one.keys["id"] for one in records)

            consumer.run(handle, idle_seconds=0)
            db.disable_stream("t")
            with pytest.raises(StreamClosedError):
                consumer.run(handle, idle_seconds=0)
            assert why == []
            db.enable_stream("t", BOTH)
            consumer.run(handle, idle_seconds=0)
            assert [type(error) for error in why] == [StreamChangedError]
            db.put("t", {"id": "b"})
            consumer.run(handle, idle_seconds=0)
            assert handled == ["a", "b"]

    def test_two_consumers_of_one_name_are_told(self) -> None:
        with self.store() as db:
            for name in ("a", "b"):
                db.put("t", {"id": name})
            one, two = (db.consume("t", "c", limit=1) for _ in range(2))
            assert one.step(lambda _: None) == 1
            assert two.step(lambda _: None) == 1
            with pytest.raises(CheckpointConflictError) as conflict:
                one.step(lambda _: None)
            assert conflict.value.actual == two.position

    def test_how_far_consumers_are_behind_is_told_and_they_can_be_forgotten(self) -> None:
        """F12."""
        clock = ManualClock()
        with self.store(clock=clock) as db:
            for name in ("a", "b", "c"):
                db.put("t", {"id": name})
            consumer = db.consume("t", "c", limit=1)
            consumer.step(lambda _: None)
            db.consume("t", "d", start="latest", hold_bytes_max=1000).step(_never)
            clock.pass_(2)
            told = {one.name: one for one in db.get_stream_info("t").consumers}
            assert (told["c"].lag_records, told["c"].lag_ms) == (2, 2000)
            assert (told["d"].lag_records, told["d"].lag_ms) == (0, 0)
            assert (told["c"].hold_bytes_max, told["d"].hold_bytes_max) == (None, 1000)
            assert db.forget_consumer("t", "c")
            assert not db.forget_consumer("t", "c")
            assert [one.name for one in db.get_stream_info("t").consumers] == ["d"]
            with pytest.raises(CheckpointConflictError):
                consumer.step(lambda _: None)

    def test_retention_keeps_what_a_consumer_has_not_read_up_to_its_bytes(self) -> None:
        """F12: then it goes on, and says so."""
        retention = Retention(age_seconds=None, records_max=2)
        with self.store(retention=retention) as db:
            consumer = db.consume("t", "c", hold_bytes_max=3000)
            consumer.step(_never)
            for number in range(6):
                db.put("t", {"id": str(number), "data": "x" * 200})
            info = db.get_stream_info("t")
            assert (info.records, info.consumers[0].overrun) == (6, False)
            handled = list[object]()
            consumer.run(
                lambda records: handled.extend(one.keys["id"] for one in records), idle_seconds=0
            )
            assert handled == [str(number) for number in range(6)]
            db.put("t", {"id": "read"})
            assert db.get_stream_info("t").records <= 3
            for number in range(30):
                db.put("t", {"id": str(number), "data": "y" * 200})
            info = db.get_stream_info("t")
            assert 2 < info.records < 20
            assert info.bytes <= 3000 + 700
            assert info.consumers[0].overrun
            assert info.consumers[0].lag_records == 31
            with pytest.raises(TrimmedDataError):
                consumer.run(_never, idle_seconds=0)

    def test_who_waits_is_told_that_it_was_closed(self) -> None:
        with self.store() as db:
            told, waits = list[type[BaseException]](), threading.Event()

            def wait() -> None:
                following = db.follow("t")
                next(following)
                waits.set()
                try:
                    next(following)
                except BaseException as error:
                    told.append(type(error))

            db.put("t", {"id": "a"})
            thread = threading.Thread(target=wait)
            thread.start()
            waits.wait()
            db.close()
            thread.join()
            assert told == [StoreClosedError]


def _never(records: list[StreamRecord]) -> None:
    raise AssertionError(f"{len(records)} records came, and none were to")
