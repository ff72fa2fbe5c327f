"""Which of many things a computation fails on, found by halves. Pure, but for what is asked."""

from collections.abc import Callable, Iterator, Mapping

Fails = Callable[[int, int, Mapping[int, str]], str | None]
"""Why the things from `start` to before `stop`, without those named, cannot be computed; None if
they can."""


def failing(count: int, fails: Fails, *, together: bool) -> Iterator[tuple[int, str]]:
    """Those of `count` things that cannot be computed, by number, each with its reason; ascending,
    and each asked for when it is wanted.

    Without `together` a thing fails by itself: the others are asked about in ranges. With it what
    fails is what does not go with those before it, and these are in each question. Without those
    that are found all others can be computed.
    """
    found: dict[int, str] = {}
    fine = 0
    while fine < count:
        why = fails(0 if together else fine, count, found)
        if why is None:
            return
        bad = count
        # What fails is often beside what failed: of those, each costs two questions.
        middle = fine + 1 if found else (fine + bad) // 2
        # Up to `fine` all can be computed, up to `bad` not.
        while bad - fine > 1:
            said = fails(0 if together else fine, middle, found)
            if said is None:
                fine = middle
            else:
                bad, why = middle, said
            middle = (fine + bad) // 2
        found[bad - 1] = why
        yield bad - 1, why
        fine = bad


def found_failing(count: int, fails: Fails, *, together: bool, most: int) -> dict[int, str]:
    """All that are `failing`; but where there are more than `most`, one more than that is told, and
    nothing of the rest."""
    found: dict[int, str] = {}
    for at, why in failing(count, fails, together=together):
        found[at] = why
        if len(found) > most:
            break
    return found
