"""Where a target stands that has written a part of a batch."""

from collections.abc import Iterable, Iterator

import pytest

from penstock.audit.packing import Ended, Part, Step, Whole
from penstock.client.flight import LogClient
from penstock.errors import AuditError, StreamChangedError
from penstock.serve.flight import FlightServer
from penstock.spark.within import Places, ending_at, place_within
from tests.flight.blocks import BlockLog, insert


@pytest.fixture
def log() -> BlockLog:
    made = BlockLog()
    made.append([[insert(number)] for number in range(20)])
    return made


@pytest.fixture
def server(log: BlockLog) -> Iterator[FlightServer]:
    made = FlightServer(log)
    made.start()
    yield made
    made.stop()


def test_it_is_the_last_place_that_the_log_could_say(log: BlockLog, server: FlightServer) -> None:
    after, until = log.marker(2), log.marker(18)
    with LogClient(server.address, patience_seconds=0) as client:
        places = Places(client, after=after, until=until)
        known = log.marker(7)
        assert places.at(7) == known
        log.trim(10)
        assert places.at(9) == known
        known = log.marker(12)
        assert places.at(12) == known
        log.trim(20)
        assert places.at(15) == known
        assert places.at(18) == until


def test_a_service_that_does_not_answer_keeps_no_batch_from_being_written(
    log: BlockLog, server: FlightServer
) -> None:
    after, until = log.marker(2), log.marker(18)
    with LogClient(server.address, patience_seconds=0) as client:
        places = Places(client, after=after, until=until)
        server.stop()
        assert [places.at(sequence) for sequence in (7, 12, 18)] == [after, after, until]


def test_a_log_that_is_another_one_by_now_says_no_place(
    log: BlockLog, server: FlightServer
) -> None:
    """The same entry at the same sequence, and others before it."""
    read = BlockLog()
    read.append([[insert(number)] for number in (1, 0, *range(2, 20))])
    until = read.marker(18)
    with LogClient(server.address, patience_seconds=0) as client:
        assert client.marker(log_id=until.log_id, sequence=7) != read.marker(7)
        with pytest.raises(StreamChangedError):
            place_within(client, 7, until=until)
        with pytest.raises(StreamChangedError):
            Places(client, after=read.marker(2), until=until).at(7)


def test_the_last_step_of_a_whole_batch_has_all_up_to_its_end() -> None:
    ended: list[Step] = [Whole([], 3), Part([]), Ended(5)]
    assert list(ending_at(ended, 9)) == [Whole([], 3), Part([]), Ended(9)]
    assert list(ending_at(ended[:1], 9)) == [Whole([], 9)]
    assert list(ending_at([], 9)) == []

    def broken() -> Iterable[Step]:
        yield Whole([], 3)
        raise AuditError("it is broken")

    found: list[Step] = []
    with pytest.raises(AuditError, match="broken"):
        found.extend(ending_at(broken(), 9))
    assert found == [Whole([], 3)]
