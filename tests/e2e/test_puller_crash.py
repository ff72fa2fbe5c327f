"""The puller's whole promise, through kill -9 of everything: nothing is lost in silence.

Three MongoDBs are captured into one log, whose place is published to etcd, while seeded writers
work on all three. Consumers of every kind follow: of every change, of coalesced ones, of shards by
key and by a field that changes, and one that takes no control events. The service, its processes,
the store and every consumer are killed at random, and one oplog rolls over while nobody reads it:
that loss is one gap in the log, and made good by a copy beside the stream. In the end every
consumer has what the collections hold. Then the machine's disk is gone.

Whoever takes control events is told of the gap and need do nothing: copied rows and told deletes
follow. Whoever does not, and whoever takes shards by a field, is stopped by it with DATA_LOSS, and
rebuilds from current rows: that is what a user does then, and so does `consumer.py`. The seed is
printed; PENSTOCK_SEED repeats a run's choices.
"""

import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from penstock.client import follow_sync
from penstock.errors import GapError
from penstock.event import Kind
from penstock.progress import parse_progress
from penstock.sources.mongodb.positions import parse_position
from tests.cli.service import spawn
from tests.e2e.comparison import Fold, canonical_of, stored_collection
from tests.e2e.deliveries import (
    check_merged,
    check_repeats,
    check_shard,
    check_source_order,
    gaps,
    open_gaps,
    shard_of,
    union,
)
from tests.e2e.puller import (
    CATCH_UP_THRESHOLD,
    COALESCING,
    FIELD,
    LOSS,
    STEADY,
    TOLD,
    WISHES,
    Crowd,
    Puller,
    plan_of,
    upstream,
)
from tests.e2e.workload import ACCOUNTS, COLLECTIONS, ORDERS, prepare
from tests.mongodb.histories import roll_over
from tests.seeds import seed_of
from tests.waiting import wait_until
from tests_support.servers import EtcdServer, MongoReplicaSet

FORGETFUL = "small"
"""The source whose oplog rolls over."""


def crash_run(deployed: Puller, *, kills: int, losses: int, seed: int) -> None:
    """Kill every victim `kills` times, and have the oplog roll over `losses` times; then compare
    everything, lose the machine, and compare everything again."""
    rng = random.Random(seed)
    for up in deployed.upstreams:
        prepare(up.client, up.database, rng, images=up.images)
    deployed.start()
    wait_until(
        lambda: deployed.filed("raw").count(b'"snapshot_completed"') == len(deployed.upstreams),
        "the first copies to come through",
        diagnose=deployed.consumers["raw"].tail,
    )
    crowd = Crowd(deployed.upstreams, seed=seed)
    with crowd.writing():
        for victim in plan_of(rng, deployed.victims, kills=kills, losses=losses):
            crowd.go_on(rng.randrange(20, 150))
            if victim == LOSS:
                lose_history(deployed, crowd)
            elif victim in COALESCING:
                hold_back(deployed, crowd, rng, victim)
            else:
                deployed.kill(victim)
        # The losses are made good under writers, and what comes last comes coalesced, too.
        wait_until(
            partial(all_made_good, deployed),
            "the losses to be made good",
            diagnose=deployed.service.tail,
        )
        for name in COALESCING:
            deployed.consumers[name].kill()
        crowd.go_on(5 * CATCH_UP_THRESHOLD)
    print(f"kills {deployed.kills}, writes {crowd.writes}, transactions {crowd.transactions}")
    assert all(crowd.transactions), "a run without transactions shows nothing about commits"
    for name in COALESCING:
        deployed.consumers[name].start()
        deployed.kills[name] += 1
    folds = settled(deployed, marker=-1)
    assert len(gaps(folds["raw"], FORGETFUL)) == losses, "one loss is one gap"
    compare(deployed, folds)
    compare_deliveries(deployed, folds)
    lose_machine(deployed, seed=seed)
    for process in (*deployed.consumers.values(), deployed.service):
        assert process.stop() in (0, -signal.SIGTERM)


def lose_history(deployed: Puller, crowd: Crowd) -> None:
    """Kill the service, and have one oplog forget what it had not told, deletes among it."""
    up = next(one for one in deployed.upstreams if one.source == FORGETFUL)

    def meanwhile() -> None:
        position = parse_position(deployed.position(FORGETFUL).position)
        up.client[up.database][ORDERS].delete_many({"_id": {"$lt": 30}})
        crowd.go_on(50)
        roll_over(up.client, position.token.time)

    deployed.kill("service", meanwhile=meanwhile)


def hold_back(deployed: Puller, crowd: Crowd, rng: random.Random, name: str) -> None:
    """Keep a consumer down until it is so far behind that it comes back to windows; then kill it
    once more, perhaps, when it has just begun to file them: within one, most likely."""
    bytes_before = 0

    def meanwhile() -> None:
        nonlocal bytes_before
        crowd.go_on(rng.randrange(3, 6) * CATCH_UP_THRESHOLD)
        bytes_before = len(deployed.filed(name))

    deployed.kill(name, meanwhile=meanwhile)
    if name == "merged" or rng.random() < 0.5:
        wait_until(
            lambda: len(deployed.filed(name)) != bytes_before,
            f"{name} to go on",
            diagnose=deployed.consumers[name].tail,
        )
        deployed.kill(name)


def all_made_good(deployed: Puller) -> bool:
    """Whether no gap is open, and who was stopped by one has rebuilt and follows again."""
    stopped = WISHES.keys() - set(TOLD)
    return not open_gaps(deployed.told()) and all(map(deployed.rebuilds, stopped))


def settled(deployed: Puller, *, marker: int) -> dict[str, Fold]:
    """Write a last document everywhere, and wait until everyone is at the end; what each has."""
    for up in deployed.upstreams:
        up.client[up.database][ACCOUNTS].insert_one({"_id": marker, "balance": 0})
    wanted = f'"documentId":"{marker}"'.encode()
    wait_until(
        lambda: deployed.filed("raw").count(wanted) >= len(deployed.upstreams),
        "the last changes to come through",
        diagnose=deployed.consumers["raw"].tail,
    )

    wait_until(
        lambda: not open_gaps(deployed.told()),
        "the gaps to be closed",
        diagnose=deployed.service.tail,
    )
    deployed.wait_for_all(list(deployed.consumers))
    deployed.check_published()
    return {name: deployed.fold(name) for name in deployed.consumers}


def compare(deployed: Puller, folds: Mapping[str, Fold]) -> None:
    """What every consumer has is what the collections hold."""
    raw = folds["raw"]
    raw.check_order()
    keys, fields = (
        [fold for name, fold in folds.items() if name.startswith(kind)] for kind in ("key", "field")
    )
    for up in deployed.upstreams:
        for name in COLLECTIONS:
            at = up.source, name
            stored = stored_collection(up.client[up.database][name])
            assert raw.documents(*at) == stored, at
            assert folds["merged"].documents(*at) == stored, at
            assert union(fold.documents(*at) for fold in keys) == stored, at
            assert union(fold.documents(*at) for fold in fields) == stored, at
        for name in STEADY:
            stored = stored_collection(up.client[up.database][name])
            for consumer in ("raw", "merged", "plain"):
                # Applied when it came, whatever came again: markers are safe in a crash (P8).
                got = folds[consumer].documents_as_they_came(up.source, name)
                assert got == stored, (consumer, up.source, name)
        expected: list[dict[str, str]] = [{} for _ in fields]
        for document in up.client[up.database][ORDERS].find():
            shard = shard_of(str(document[FIELD]).encode(), len(fields))
            expected[shard][canonical_of(document["_id"])] = canonical_of(document)
        assert [fold.documents(up.source, ORDERS) for fold in fields] == expected


def compare_deliveries(deployed: Puller, folds: Mapping[str, Fold]) -> None:
    """Each got what it asked for and nothing else, in order, and again only what a crash allows."""
    raw, kills = folds["raw"], deployed.kills
    of_service = kills["service"] + kills["serve"]
    lost = gaps(raw, FORGETFUL)
    for up in deployed.upstreams:
        check_source_order(raw, up.source)
        if up.source != FORGETFUL:
            assert not gaps(raw, up.source), "only one source lost anything"
    for name in TOLD:
        fold, wishes = folds[name], WISHES[name]
        assert not deployed.rebuilds(name), "who is told of a gap goes on"
        assert gaps(fold, FORGETFUL) == lost, "each gap once, in its place"
        # A window that a connection broke off in comes again, too.
        check_repeats(fold, kills_max=kills[name] + (of_service if wishes.coalesce else 0))
        if wishes.shards is not None and not wishes.coalesce:
            check_shard(raw, fold, wishes.shards)
    assert check_merged(raw, folds["merged"]), "nothing was ever coalesced"
    for name in WISHES.keys() - set(TOLD):
        # Two gaps may be made good by one copy, and then by one rebuild.
        stops = {raw.by_sequence[sequence]["progress"] for sequence in lost}
        assert set(deployed.rebuilds(name)) <= stops, name


def lose_machine(deployed: Puller, *, seed: int) -> None:
    """The disk is gone, and the published copy lags: what each kind of marker gets (P33)."""

    def all_published() -> bool:
        head = deployed.bounds().head
        return deployed.copy().sequence == head == deployed.saved("raw").sequence

    wait_until(all_published, "everything to be published", diagnose=deployed.service.tail)
    # From here on nothing is published, and `raw` stands where the copy does.
    deployed.consumers["raw"].kill()
    deployed.etcd.kill()
    crowd = Crowd(deployed.upstreams, seed=seed + 1000)
    with crowd.writing():
        crowd.go_on(150)
    ahead = [name for name in deployed.consumers if name != "raw"]
    base = deployed.saved("raw").sequence
    for name in ahead:
        wait_until(
            partial(deployed.beyond, name, base),
            f"{name} to leave the published copy behind",
            diagnose=deployed.consumers[name].tail,
        )
    old = deployed.fold("raw").by_sequence[base // 2]["progress"]
    deployed.service.kill()
    shutil.rmtree(deployed.machine)
    deployed.etcd.restart()
    assert deployed.copy().sequence == base
    deployed.service.start()
    deployed.service.fact("ready")

    # At the copy: the gaps, one of each source, and then everything that the lost log had and more.
    for up in deployed.upstreams:
        up.client[up.database][ACCOUNTS].insert_one({"_id": -2, "balance": 0})
    deployed.consumers["raw"].start()
    deployed.wait_for_all(["raw"])
    # Before it: the same, but what lies between is lost to it, and the gaps say so.
    with follow_sync(deployed.grpc, after=old, control_events=True) as changes:
        first = next(changes)
        assert (first.sequence, first.kind) == (base + 1, Kind.GAP)
    with follow_sync(deployed.grpc, after=old) as changes, pytest.raises(GapError):
        next(changes)

    # After it: DATA_LOSS, whoever they are; they rebuild once everything is copied into this log.
    for up in deployed.upstreams:
        done = spawn("snapshot", up.source, "--config", str(deployed.settings.path), "--json")
        assert done.code == 0, done.err
    log_id = deployed.bounds().log_id
    for name in ahead:
        wait_until(
            partial(rebuilt_in, deployed, name, log_id),
            f"{name} to rebuild",
            diagnose=deployed.consumers[name].tail,
        )
    folds = settled(deployed, marker=-3)
    raw = folds["raw"]
    begins = [raw.by_sequence[base + 1 + n] for n in range(len(deployed.upstreams))]
    assert [one["operationType"] for one in begins] == ["gap"] * len(begins)
    assert {one["source"] for one in begins} == {up.source for up in deployed.upstreams}
    compare(deployed, folds)


def rebuilt_in(deployed: Puller, name: str, log_id: int) -> bool:
    """Whether a consumer was stopped by that log, and rebuilt from it."""
    return any(parse_progress(marker).log_id == log_id for marker in deployed.rebuilds(name))


@pytest.fixture
def puller(
    mongo: MongoReplicaSet,
    mongo6027: MongoReplicaSet,
    start_mongo: Callable[..., MongoReplicaSet],
    start_etcd: Callable[..., EtcdServer],
    tmp_path: Path,
) -> Iterator[Puller]:
    """Two servers that remember, one that forgets when it is made to, and a store."""
    forgetful = start_mongo(oplog_mb=32, extra_args=("--syncdelay", "1"))
    with ExitStack() as stack:
        upstreams = [
            upstream("east", mongo),
            upstream("west", mongo6027, images=True),
            upstream(FORGETFUL, forgetful),
        ]
        for up in upstreams:
            stack.enter_context(up.client)
        deployed = Puller(upstreams, start_etcd(), tmp_path)
        stack.callback(deployed.stop)
        yield deployed


@pytest.mark.server
@pytest.mark.timeout(1500)
def test_every_consumer_of_three_backends_is_equal_after_kills_a_lost_oplog_and_a_lost_machine(
    puller: Puller,
) -> None:
    """P4, P8, P14, P19, P20, P24, P29, P30, P33; invariants 1 to 5 and 7."""
    crash_run(puller, kills=1, losses=1, seed=seed_of("puller"))


@pytest.mark.server
@pytest.mark.soak
def test_the_same_through_twelve_kills_of_each_and_three_lost_oplogs(puller: Puller) -> None:
    """The long run of the above."""
    crash_run(puller, kills=12, losses=3, seed=seed_of("puller soak"))
