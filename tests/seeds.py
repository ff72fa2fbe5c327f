"""Seeds of tests that do something at random: printed, and repeated by PENSTOCK_SEED; and how many
cases of a costly one are tried."""

import os
import random
import zlib


def seed_of(name: str) -> int:
    """A seed for the test of that name; a failure shows it. The same each time in CI, as cases of
    properties are there: a change is refused for what it does, and not for its luck."""
    fixed = os.environ.get("CI") == "true"
    new = zlib.crc32(name.encode()) if fixed else random.SystemRandom().randrange(1 << 32)
    seed = int(os.environ.get("PENSTOCK_SEED", new))
    print(f"{name}: PENSTOCK_SEED={seed}")
    return seed


def cases(count: int) -> int:
    """How many cases a costly property is tried with: all of them in long runs and for whoever has
    one test run; a third in CI, which tries the same each time; a tenth in the fast loop."""
    if os.environ.get("PENSTOCK_QUICK") == "true":
        return max(1, count // 10)
    return max(1, count // 3) if os.environ.get("CI") == "true" else count
