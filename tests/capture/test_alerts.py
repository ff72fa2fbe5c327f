"""Who is told what, and when: once per episode, and once more when it is over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.alerts import CALM_SECONDS, Alert, Condition, Episodes, Kind
from penstock.capture.gaps import Gap
from penstock.capture.status import Health, SourceStatus, State, health_of, worst
from penstock.capture.watch import Gaps, LossWatch, Silence, conditions_of
from penstock.errors import SourceUnavailableError
from penstock.ports import SourceState
from penstock.telemetry import REGISTRY
from tests.capture.doubles import ListSource
from tests.state.histories import system

STOPPED = Condition(kind=Kind.STOPPED, source="shop", code="source.changed")


class Told:
    """Takes alerts, as long as there is room."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self.room = True

    def __call__(self, alert: Alert) -> bool:
        if self.room:
            self.alerts.append(alert)
        return self.room

    @property
    def short(self) -> list[tuple[str, str]]:
        return [(alert.alert.value, alert.status) for alert in self.alerts]


def step(episodes: Episodes, told: Told, at: float, *conditions: Condition) -> None:
    episodes.step(conditions, now_ms=int(at * 1000), steady_seconds=at, send=told)


def test_an_episode_is_told_once_and_once_more_when_it_is_over() -> None:
    episodes, told = Episodes(), Told()
    for second in range(100):
        step(episodes, told, second, STOPPED)
    assert told.short == [("stopped", "raised")]
    for second in range(100, 200):
        step(episodes, told, second)
    assert told.short == [("stopped", "raised"), ("stopped", "resolved")]
    raised, resolved = told.alerts
    assert raised.id == resolved.id
    assert (raised.since_ms, resolved.since_ms) == (0, 0)
    assert raised.code == "source.changed"
    assert "penstock resume shop" in raised.message
    step(episodes, told, 200, STOPPED)
    assert told.alerts[-1].status == "raised"
    assert told.alerts[-1].id != raised.id


def test_what_comes_and_goes_is_one_episode() -> None:
    episodes, told = Episodes(), Told()
    for second in range(0, 600, 10):
        step(episodes, told, second, *([STOPPED] if second % 20 else []))
    assert told.short == [("stopped", "raised")]


def test_an_alert_that_cannot_be_taken_is_offered_again_while_it_is_true() -> None:
    """Invariant 6: a full queue refuses, and nothing is dropped."""
    episodes, told = Episodes(), Told()
    told.room = False
    step(episodes, told, 0, STOPPED)
    assert told.alerts == []
    told.room = True
    step(episodes, told, 1, STOPPED)
    assert told.short == [("stopped", "raised")]
    told.room = False
    step(episodes, told, 2)
    step(episodes, told, 2 + CALM_SECONDS)
    told.room = True
    step(episodes, told, 3 + CALM_SECONDS)
    assert told.short == [("stopped", "raised"), ("stopped", "resolved")]


def test_what_nobody_was_told_of_has_no_end_to_tell() -> None:
    episodes, told = Episodes(), Told()
    told.room = False
    step(episodes, told, 0, STOPPED)
    told.room = True
    step(episodes, told, 1)
    step(episodes, told, 1 + CALM_SECONDS)
    assert told.alerts == []


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=0.1, max_value=50),
            st.sets(st.sampled_from([(kind, name) for kind in Kind for name in ("a", "b")])),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_raised_and_resolved_take_turns_in_every_episode(
    story: list[tuple[float, set[tuple[Kind, str]], bool]],
) -> None:
    episodes, told, now = Episodes(), Told(), 0.0
    for seconds, present, room in story:
        now += seconds
        told.room = room
        step(episodes, told, now, *(Condition(kind=kind, source=name) for kind, name in present))
    by_episode: dict[tuple[Kind, str], list[str]] = {}
    for alert in told.alerts:
        by_episode.setdefault((alert.alert, alert.source), []).append(alert.status)
    for statuses in by_episode.values():
        assert statuses == ["raised", "resolved"] * (len(statuses) // 2) + ["raised"] * (
            len(statuses) % 2
        )


def status(state: State, *, name: str = "shop", failures: int = 0) -> SourceStatus:
    return SourceStatus(source=name, state=state, since_ms=0, failures=failures, code="x.y")


def test_what_is_wrong_follows_from_how_sources_are() -> None:
    found = conditions_of(
        [
            status(State.STOPPED),
            status(State.LOG_FULL, name="a"),
            status(State.LOG_FULL, name="b"),
            status(State.PAUSED, name="c"),
            status(State.RUNNING, name="d"),
        ],
        loss={"c": 59.6, "d": 60.0},
        time_to_loss_min=60,
        gaps={"d": {"7": Gap(sequence=7, since_ms=5)}, "gone": {"8": Gap(sequence=8, since_ms=6)}},
    )
    assert [(one.kind, one.source) for one in found] == [
        (Kind.STOPPED, "shop"),
        (Kind.TIME_TO_LOSS, "c"),
        (Kind.GAP, "d"),
        (Kind.LOG_FULL, ""),
    ]
    assert found[1].facts == {"secondsToLoss": 60, "state": "paused"}


@pytest.mark.parametrize(
    ("state", "failures", "silent", "near_loss", "health"),
    [
        (State.RUNNING, 0, False, False, Health.OK),
        (State.FINISHED, 0, True, False, Health.OK),
        (State.RUNNING, 0, True, False, Health.DEGRADED),
        (State.RUNNING, 0, False, True, Health.DEGRADED),
        (State.RETRYING, 9, False, False, Health.DEGRADED),
        (State.PAUSED, 0, False, False, Health.DEGRADED),
        (State.OVER_QUOTA, 0, False, False, Health.DEGRADED),
        (State.RETRYING, 10, False, False, Health.UNHEALTHY),
        (State.STOPPED, 0, False, False, Health.UNHEALTHY),
        (State.LOG_FULL, 1, False, False, Health.UNHEALTHY),
    ],
)
def test_health_follows_from_what_capture_does(
    state: State, failures: int, silent: bool, near_loss: bool, health: Health
) -> None:
    """P34: a stopped or stalled source is unhealthy; what passed is not held against it."""
    said = status(state, failures=failures)
    assert health_of(said, failures_max=10, silent=silent, near_loss=near_loss) is health
    assert worst(Health.OK, health) is health
    assert worst() is Health.OK


def durable(events: int) -> SourceState:
    return SourceState(
        source="shop", position="1", commits=1, events=events, last_timestamp=0, moved_at=0
    )


def test_a_source_without_a_change_for_long_is_silent_until_the_next_one() -> None:
    """P19: it is a signal and no gap; a heartbeat is no change."""
    silence = Silence()

    def look(at: float, events: int, after: float | None = 300.0) -> bool:
        return bool(silence.observe([durable(events)], silent_after=after, steady_seconds=at))

    assert not look(0, 5)
    assert not look(299, 5)
    assert look(300, 5)
    assert not look(301, 5, after=None)
    assert not look(302, 6)
    assert not look(601, 6)
    assert look(602, 6)


def test_gaps_are_counted() -> None:
    gaps = Gaps()
    name = "penstock_gaps_detected_total"
    before = REGISTRY.get_sample_value(name, {"source": "gappy"}) or 0
    for operation in ("snapshot_started", "gap", "snapshot_started"):
        gaps.take(system("gappy", operation))
    assert gaps.detected == {"gappy": 1}
    assert REGISTRY.get_sample_value(name, {"source": "gappy"}) == before + 1


def test_what_was_delivered_is_known_after_a_restart_and_what_was_not_is_told_again() -> None:
    """Rather twice than never; where the condition says since when it is so, with the same id."""
    gap = Condition(kind=Kind.GAP, source="shop", part="7", since_ms=5)
    episodes, told = Episodes(), Told()
    step(episodes, told, 1, STOPPED, gap)
    assert episodes.told() == [], "taken is not delivered"
    again, after = Episodes(told=episodes.told()), Told()
    step(again, after, 2, STOPPED, gap)
    assert sorted(after.short) == [("gap", "raised"), ("stopped", "raised")]
    assert {one.id for one in told.alerts} & {one.id for one in after.alerts} == {"gap:shop:7"}
    for alert in after.alerts:
        again.delivered(alert)
    known, silent = Episodes(told=again.told()), Told()
    step(known, silent, 3, STOPPED, gap)
    assert silent.alerts == []
    assert len(known.told()) == 2


def test_an_end_that_was_not_delivered_is_told_again_after_a_restart() -> None:
    gap = Condition(kind=Kind.GAP, source="shop", part="7", since_ms=5)
    episodes, told = Episodes(), Told()
    step(episodes, told, 1, gap)
    episodes.delivered(told.alerts[0])
    step(episodes, told, 2)
    step(episodes, told, 2 + CALM_SECONDS)
    assert told.short == [("gap", "raised"), ("gap", "resolved")]
    again, after = Episodes(told=episodes.told()), Told()
    step(again, after, 100)
    step(again, after, 100 + CALM_SECONDS)
    assert after.short == [("gap", "resolved")]
    again.delivered(after.alerts[0])
    assert again.told() == []
    assert after.alerts[0].id == told.alerts[0].id
    assert after.alerts[0].since_ms == 5


def test_ends_that_nobody_can_be_told_of_do_not_pile_up() -> None:
    """Invariant 6."""
    episodes, told = Episodes(calm_seconds=0), Told()
    for second in range(1000):
        step(episodes, told, second, *([STOPPED] if second % 2 else []))
        for alert in told.alerts:
            if alert.status == "raised":
                episodes.delivered(alert)
        told.alerts.clear()
    assert len(episodes.told()) <= 65


async def test_the_time_to_loss_is_that_of_who_answers() -> None:
    class Telling(ListSource):
        async def seconds_to_loss(self, position: str) -> float | None:
            if self.name == "down":
                raise SourceUnavailableError("down: nobody answers")
            return float(position)

    def value(name: str) -> float | None:
        metric = "penstock_source_time_to_loss_seconds"
        return REGISTRY.get_sample_value(metric, {"source": name})

    watch = LossWatch()
    sources = [Telling([], name="up"), Telling([], name="down"), ListSource([], name="other")]
    states = [
        SourceState(source=name, position="60", commits=0, events=0, last_timestamp=0, moved_at=0)
        for name in ("up", "down", "other", "gone")
    ]
    await watch.ask(sources, states)
    assert watch.seconds == {"up": 60.0}
    assert value("up") == 60.0
    await watch.ask(sources, [])
    assert watch.seconds == {}
    assert value("up") is None
