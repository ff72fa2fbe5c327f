"""Which of many things a computation fails on, found by halves. Pure, but for what is asked."""

from collections.abc import Callable, Mapping

Fails = Callable[[int, int, Mapping[int, str]], str | None]
"""Why the things from `start` to before `stop`, without those named, cannot be computed; None if
they can."""


def found_failing(count: int, fails: Fails, *, together: bool, most: int) -> dict[int, str]:
    """Those of `count` things that cannot be computed, by number, each with its reason.

    Without `together` a thing fails by itself: the others are asked about in ranges. With it what
    fails is what does not go with those before it, and these are in each question. Without those
    that are found all others can be computed; but where there are more than `most`, one more than
    that is told, and nothing of the rest.
    """
    found: dict[int, str] = {}
    fine = 0
    while fine < count and len(found) <= most:
        first = 0 if together else fine
        why = fails(first, count, found)
        if why is None:
            break
        bad = count
        # Up to `fine` all can be computed, up to `bad` not.
        while bad - fine > 1:
            middle = (fine + bad) // 2
            said = fails(0 if together else fine, middle, found)
            if said is None:
                fine = middle
            else:
                bad, why = middle, said
        found[bad - 1] = why
        fine = bad
    return found
