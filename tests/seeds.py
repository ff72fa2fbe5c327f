"""Seeds of tests that do something at random: printed, and repeated by PENSTOCK_SEED."""

import os
import random


def seed_of(name: str) -> int:
    """A seed for the test of that name; a failure shows it."""
    seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"{name}: PENSTOCK_SEED={seed}")
    return seed
