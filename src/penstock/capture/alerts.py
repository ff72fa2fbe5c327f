"""What somebody must be told of, once per episode, and once more when it is over. Pure.

A condition is what is wrong at a moment; an episode lasts from when it is first seen until it has
been gone for a while, so that one that comes and goes is one alert. An alert carries a code and
numbers, never an error's text: no document, key or address can be in it.
"""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

CALM_SECONDS: Final = 30.0
"""A condition must be gone for so long before its episode is called over."""

_ENDED_MAX: Final = 64


class Kind(StrEnum):
    """What an alert is about."""

    GAP = "gap"
    """Changes were lost between a source and the log; the log says which."""
    STOPPED = "stopped"
    """A source is not captured any more, and no retry mends it."""
    TIME_TO_LOSS = "time_to_loss"
    """A source will soon discard what was not captured yet."""
    LOG_FULL = "log_full"
    """The log takes nothing more, so no source is captured."""


_SENTENCES: Final = {
    Kind.GAP: "Changes of {source} are missing from the log. It has a gap entry where they belong, "
    "and nothing was skipped silently. Copy the data again with `penstock snapshot {source}`, or "
    "replay what `penstock deadletter list` shows.",
    Kind.STOPPED: "The capture of {source} has stopped ({code}) and nothing was skipped. See "
    "`penstock status`, mend the cause, then run `penstock resume {source}`.",
    Kind.TIME_TO_LOSS: "{source} will soon discard changes that are not captured yet. See "
    "`penstock status` for why it lags, and give its database a longer history meanwhile.",
    Kind.LOG_FULL: "The log takes nothing more, so capture waits and nothing is lost. Make space "
    "on its disk, or lower its retention.",
}


class Condition(Struct, frozen=True, kw_only=True):
    """Something that is wrong now."""

    kind: Kind
    source: str = ""
    """Empty for what concerns the whole service."""
    code: str = ""
    """The code of the error that led there, if one did."""
    facts: dict[str, float | int | str] = {}
    """Numbers that help; they are those of the moment and do not make it another episode."""
    part: str = ""
    """Tells one from another of the same kind and source, where there may be several."""
    since_ms: int | None = None
    """Unix milliseconds since when it is so; None: since it was first seen."""

    @property
    def episode(self) -> "Key":
        return self.kind, self.source, self.part


Key = tuple[Kind, str, str]


class Alert(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is sent. `id` is that of the episode: the same when it is raised and when it is over."""

    id: str
    alert: Kind
    status: str
    """raised or resolved."""
    source: str
    code: str
    message: str
    since_ms: int
    """Unix milliseconds when the episode began."""
    at_ms: int
    """Unix milliseconds of this message."""
    facts: dict[str, Any] = {}


class Told(Struct, frozen=True, kw_only=True):
    """An episode that somebody was told of, and not of its end yet: what a restart must know."""

    kind: Kind
    source: str
    part: str
    code: str
    since_ms: int


class _Episode:
    def __init__(self, condition: Condition, since_ms: int, *, known: bool = False) -> None:
        self.condition = condition
        self.since_ms = since_ms
        self.told = known
        """`send` took it."""
        self.delivered = known
        self.gone_since: float | None = None

    @property
    def id(self) -> str:
        kind, source, part = self.condition.episode
        return f"{kind}:{source}:{part or self.since_ms}"

    def as_told(self) -> Told:
        kind, source, part = self.condition.episode
        code = self.condition.code
        return Told(kind=kind, source=source, part=part, code=code, since_ms=self.since_ms)


class Episodes:
    """Knows what was told already; what was delivered, over restarts too.

    What a restart cannot know to be delivered is told again, with the same `id` where the condition
    itself says since when it is so: rather twice than never.
    """

    def __init__(self, *, calm_seconds: float = CALM_SECONDS, told: Iterable[Told] = ()) -> None:
        """`told` is what `told()` was before a restart."""
        self._calm_seconds = calm_seconds
        self._open: dict[Key, _Episode] = {}
        self._ended: dict[str, _Episode] = {}
        """By id: their end is on its way. The oldest are forgotten when there are too many."""
        for one in told:
            condition = Condition(kind=one.kind, source=one.source, part=one.part, code=one.code)
            self._open[condition.episode] = _Episode(condition, one.since_ms, known=True)

    def told(self) -> list[Told]:
        """What somebody knows to have begun, and not to be over."""
        episodes = [*self._open.values(), *self._ended.values()]
        return [one.as_told() for one in episodes if one.delivered]

    def delivered(self, alert: Alert) -> None:
        """An alert that `send` took has reached somebody."""
        if alert.status == "resolved":
            self._ended.pop(alert.id, None)
            return
        for episode in (*self._open.values(), *self._ended.values()):
            if episode.id == alert.id:
                episode.delivered = True

    def forget(self, kind: Kind) -> None:
        """Know of no episode of this kind any more; nobody is told that it is over."""
        for key in [key for key in self._open if key[0] is kind]:
            del self._open[key]
        for one in [one for one, ended in self._ended.items() if ended.condition.kind is kind]:
            del self._ended[one]

    def step(
        self,
        conditions: Iterable[Condition],
        *,
        now_ms: int,
        steady_seconds: float,
        send: Callable[[Alert], bool],
        unknown: Collection[Kind] = (),
    ) -> None:
        """Tell what is new and what is over, by `send`. Of the kinds in `unknown`, what is not
        among `conditions` may still be so, and is not over.

        `send` returns False for an alert that it cannot take now; it is offered again at the next
        step, for as long as it is true.
        """
        present = {condition.episode: condition for condition in conditions}
        for key, condition in present.items():
            since_ms = now_ms if condition.since_ms is None else condition.since_ms
            episode = self._open.setdefault(key, _Episode(condition, since_ms))
            episode.condition, episode.gone_since = condition, None
            if not episode.told:
                episode.told = send(_alert(episode, "raised", now_ms))
        for key, episode in list(self._open.items()):
            if key in present:
                continue
            if key[0] in unknown:
                episode.gone_since = None
                continue
            if episode.gone_since is None:
                episode.gone_since = steady_seconds
            if steady_seconds - episode.gone_since < self._calm_seconds:
                continue
            # What nobody was told of needs no end.
            if not episode.told:
                del self._open[key]
            elif send(_alert(episode, "resolved", now_ms)):
                del self._open[key]
                self._end(episode)

    def _end(self, episode: _Episode) -> None:
        self._ended[episode.id] = episode
        if len(self._ended) > _ENDED_MAX:
            del self._ended[next(iter(self._ended))]


def _alert(episode: _Episode, status: str, now_ms: int) -> Alert:
    condition = episode.condition
    sentence = _SENTENCES[condition.kind].format(source=condition.source, code=condition.code)
    return Alert(
        id=episode.id,
        alert=condition.kind,
        status=status,
        source=condition.source,
        code=condition.code,
        message=sentence if status == "raised" else f"Over: {sentence}",
        since_ms=episode.since_ms,
        at_ms=now_ms,
        facts=dict(condition.facts),
    )
