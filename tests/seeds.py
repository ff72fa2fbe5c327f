"""Seeds of tests that do something at random: printed, and repeated by PENSTOCK_SEED; and how many
cases of a costly one are tried."""

import os
import random


def seed_of(name: str) -> int:
    """A seed for the test of that name; a failure shows it."""
    seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"{name}: PENSTOCK_SEED={seed}")
    return seed


def cases(count: int) -> int:
    """How many cases a costly property is tried with: a third in CI, which tries the same each
    time; all of them for whoever works here, and in long runs."""
    return max(1, count // 3) if os.environ.get("CI") == "true" else count
