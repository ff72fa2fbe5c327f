"""Collections that a pipeline names and the log does not: a name that is misspelt, perhaps."""

from collections.abc import Iterable
from typing import Final

from penstock.client.flight import LogClient, ReadRequest
from penstock.errors import TrimmedError
from penstock.progress import Progress
from penstock.spark.config import PipelineConfig
from penstock.spark.table.standing import loads

_BYTES: Final = 64 << 10
"""The first entry of a collection is enough, so it is asked for few."""


def without_entries(
    client: LogClient, config: PipelineConfig, names: Iterable[str], *, until: Progress
) -> list[str]:
    """Those of `names` of which the log has no entry up to `until`, in their order; none for a
    pipeline whose rows come from the source itself.

    One that has some is known with its first; for one that has none, the service looks through
    what the log says of its blocks. None, where retention removes entries meanwhile.
    """
    if loads(config):
        return []
    try:
        after = client.bounds().trimmed
        return [
            name for name in names if not _has_entry(client, config, name, after=after, until=until)
        ]
    except TrimmedError:
        return []


def _has_entry(
    client: LogClient, config: PipelineConfig, name: str, *, after: int, until: Progress
) -> bool:
    request = ReadRequest(
        log_id=until.log_id,
        after=after,
        until=until.sequence,
        source=config.source,
        collections=(f"{config.source}/{name}",),
        columns=("collection",),
        batch_bytes=_BYTES,
    )
    if after >= until.sequence:
        return False
    return any(name in batch.column("collection").to_pylist() for batch in client.read(request))
