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
    """How many cases a property is tried with: all of them in `make soak` and when a test is run by
    hand, a quarter in CI, which tries the same each time, and a tenth in `make check`."""
    if os.environ.get("PENSTOCK_QUICK") == "true":
        return max(1, count // 10)
    return max(1, count // 4) if os.environ.get("CI") == "true" else count
