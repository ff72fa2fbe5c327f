"""Exit codes that no error has."""

from typing import Final

ENDED_BY_FORCE: Final = 10
"""Of `penstock run --one-process` that was asked to stop and did not in time."""
INTERRUPTED: Final = 130
"""As shells have it of SIGINT."""
