"""What the bars of running pipelines say: facts in, lines out. Pure.

All numbers are places in the log, which count the entries of all its sources: how far a pipeline
is behind is told so everywhere.
"""

from typing import Final

from msgspec import Struct, structs

from penstock.cli.bars import (
    Line,
    Step,
    left_words,
    line,
    rate_per_second,
    seconds_left,
    stepped,
)
from penstock.cli.pipeline_ask import STYLES, PipelineReport
from penstock.spark.progress import LoadProgress, PipelineProgress, RunBegan, RunFact, RunWaits

FOLLOWS_SECONDS: Final = 10.0
"""Who has all that the log had so long ago follows it; longer where batches are rarer."""


class Course(Struct, frozen=True, kw_only=True):
    """What is known of one pipeline of this driver."""

    pipeline: str
    once: bool = False
    """It ends at the head that the log had when it began."""
    follows_seconds: float = FOLLOWS_SECONDS
    began: int | None = None
    """Everything up to here was applied before this run; None before it began."""
    end: int = 0
    """Where the log ended then."""
    done: int = 0
    """Everything up to here is applied."""
    head: int = 0
    """Where the log ends, so far as is known."""
    heads: tuple[tuple[float, int], ...] = ()
    """When that was looked at, and what it was: of the last while."""
    steps: tuple[Step, ...] = ()
    load: LoadProgress | None = None
    load_steps: tuple[Step, ...] = ()
    waits: str = ""
    """The code of the error that holds it up."""
    rejected: int = 0
    lost: int = 0
    report: PipelineReport | None = None
    """What the service says of it."""
    ended: bool = False
    error: str = ""
    """The code of the one that it ended with."""

    @property
    def until(self) -> int:
        """Where it is to come, by what is known now: never before where it is."""
        return max(self.done, self.end if self.once else self.head)

    @property
    def behind(self) -> int:
        """How many entries it has not applied."""
        return self.until - self.done


def with_fact(course: Course, fact: RunFact, at: float) -> Course:
    """It began, waits, or has loaded something."""
    if isinstance(fact, LoadProgress):
        step = Step(at=at, done=fact.loaded, behind=fact.ranges - fact.loaded)
        known = course.load
        # What was divided anew has another pace, too.
        before = course.load_steps if known and known.ranges == fact.ranges else ()
        return structs.replace(course, load=fact, load_steps=stepped(before, step))
    if isinstance(fact, RunWaits):
        return structs.replace(course, waits=fact.code)
    assert isinstance(fact, RunBegan)
    course = structs.replace(
        course,
        waits="",
        done=max(course.done, fact.sequence),
        head=max(course.head, fact.head),
        heads=(*course.heads, (at, fact.head)),
    )
    if course.began is None:
        course = structs.replace(course, began=fact.sequence, end=fact.head)
    return _step(course, at)


def with_batch(course: Course, batch: PipelineProgress, at: float) -> Course:
    """A batch is in the destination."""
    course = structs.replace(
        course,
        waits="",
        done=max(course.done, batch.until),
        rejected=course.rejected + batch.rejected,
        lost=course.lost + batch.lost,
    )
    return _step(course, at)


def with_look(course: Course, head: int, report: PipelineReport | None, at: float) -> Course:
    """The service says where the log ends, and how the pipeline is."""
    heads = [*course.heads, (at, head)]
    while len(heads) > 1 and heads[1][0] <= at - course.follows_seconds:
        del heads[0]
    # A log that was put in the place of another may end before it.
    return structs.replace(course, head=head, heads=tuple(heads), report=report)


def with_end(course: Course, error: str) -> Course:
    """It is over; with the code of an error if that ended it."""
    return structs.replace(course, ended=True, error=error)


def _step(course: Course, at: float) -> Course:
    if course.began is None:
        return course
    step = Step(at=at, done=course.done, behind=course.behind)
    return structs.replace(course, steps=stepped(course.steps, step))


def follows(course: Course, now: float) -> bool:
    """Whether it has all that the log had a moment ago."""
    if course.once or course.began is None or not course.heads:
        return False
    if now - course.heads[-1][0] > course.follows_seconds:
        return False  # nobody knows
    asked = [head for at, head in course.heads if at <= now - course.follows_seconds]
    return course.done >= (asked[-1] if asked else course.head)


def lines_of(course: Course, now: float) -> list[Line]:
    """The pipeline's own bar, and one for its first load while that is not complete."""
    lines = [_own(course, now)]
    load = course.load
    if load is not None and not load.complete and not course.ended:
        lines.append(_load(load, course.load_steps, now))
    return lines


def _own(course: Course, now: float) -> Line:
    if course.began is None:
        return line(
            course.pipeline, done=0, total=None, said=_said(course, now), moves=not course.ended
        )
    rate = None if course.ended else rate_per_second(course.steps, now)
    left = None
    if not course.ended and not follows(course, now):
        left = seconds_left(course.steps, now, behind=course.behind)
    return line(
        course.pipeline,
        done=course.done - course.began,
        total=course.until - course.began,
        rate="" if rate is None else f"{rate:,.0f}/s",
        count=f"{course.behind:,} behind",
        left=left_words(left),
        said=_said(course, now),
    )


def state_of(course: Course, now: float) -> str:
    """In a word; those of `penstock pipeline list`, but that one that runs says how."""
    report = course.report
    if course.ended:
        return "failed" if course.error else "ended"
    if course.waits:
        return "waiting"
    if course.began is None:
        return "starting"
    if report is not None and report.state == "running" and report.stopping:
        return "stopping"
    return "following" if follows(course, now) else "running"


def _said(course: Course, now: float) -> tuple[tuple[str, str], ...]:
    state = state_of(course, now)
    code = course.error or course.waits
    said = [(f"{state} ({code})" if code else state, STYLES.get(state, "dim"))]
    if course.rejected:
        said.append((f"{course.rejected:,} rejected", "yellow"))
    if course.lost:
        said.append((f"{course.lost:,} LOST", "bold red"))
    report = course.report
    if report is not None and report.state == "running" and course.began is not None:
        if report.trimmed:
            said.append(("TRIMMED", "bold red"))
        if report.differences:
            said.append((f"{report.differences:,} DIFFER", "bold red"))
    return tuple(said)


def _load(load: LoadProgress, steps: tuple[Step, ...], now: float) -> Line:
    known = not load.undivided and load.ranges > 0
    behind = load.ranges - load.loaded
    words = ""
    if load.undivided:
        names = f"{len(load.undivided):,} collections" if all(load.undivided) else "source"
        words = f"{names} not divided into ranges yet"
    elif not behind:
        words = "waits for the log"
    return line(
        "  first load",
        done=load.loaded,
        total=load.ranges if known else None,
        count=f"{load.loaded:,} of {load.ranges:,} ranges" if known else f"{load.loaded:,} ranges",
        left=left_words(seconds_left(steps, now, behind=behind)) if known else "",
        said=((words, ""),),
    )
