"""Write each change's sequence and id as a line of a file: the work of a consumer.

`python -m tests.client.consumer_process ADDRESS PROGRESS EFFECTS`
"""

import sys
from pathlib import Path

from penstock.client import FileProgress, Retry, follow_sync


def consume(address: str, progress: Path, effects: Path) -> None:
    retry = Retry(initial_seconds=0.05, max_seconds=0.1)
    with (
        effects.open("a", buffering=1) as file,
        follow_sync(
            address, store=FileProgress(progress), retry=retry, save_interval_seconds=0.01
        ) as changes,
    ):
        for change in changes:
            file.write(f"{change.sequence} {change.event.event_id}\n")


if __name__ == "__main__":
    consume(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
