"""Have a pipeline that does not run begin again at an earlier place of the log.

Only tables of current rows can: they ignore what they have. Which places are refused is said in
`penstock.spark.table.standing`.
"""

import secrets
import time

from msgspec import structs

from penstock.client.flight import LogClient
from penstock.client.pipelines import PipelineTold
from penstock.errors import MalformedProgressError, RequestError
from penstock.holds import SEEN_SECONDS
from penstock.ports import Bounds
from penstock.progress import Progress, parse_progress
from penstock.spark.config import TablePipelineConfig
from penstock.spark.table.standing import Standing, StandingTable


def reset(
    name: str, config: TablePipelineConfig, client: LogClient, standing: StandingTable, asked: str
) -> tuple[Progress, Progress]:
    """Have the next run of a pipeline begin at `asked`; the place before, and after. Where that is
    the log's oldest entry, the log holds it from then on, as for a run that ended there.

    Raises as `reset_place` and `StandingTable.reset`; PartialViewError where we may not see
    everything of its source.
    """
    live, bounds = client.live_bounds(), client.bounds()
    place = reset_place(client, asked, bounds)
    known = {one.pipeline: one for one in client.pipelines()}.get(name)
    # What is in an archive, too, is not removed there.
    if known is None or place.sequence != bounds.trimmed or place.sequence < live.trimmed:
        return standing.reset(place, bounds), place
    told = PipelineTold(
        pipeline=name,
        run=secrets.token_hex(8),
        source=config.source,
        to=config.to,
        place=parse_progress(known.progress),
        state="ended",
    )
    stood: Progress | None = None
    while True:
        client.tell(structs.replace(told, place=place, oldest=True))
        try:
            time.sleep(SEEN_SECONDS)
            bounds = client.bounds()
            place = reset_place(client, asked, bounds)
            before = standing.reset(place, bounds)
        except BaseException:
            client.tell(told)
            raise
        client.tell(structs.replace(told, place=place))
        stood = stood or before
        if client.live_bounds().trimmed <= place.sequence:
            return stood, place
        # Retention was in the midst of removing some.


def question(name: str, place: Progress, standing: Standing | None) -> str:
    """What to ask before the next run of a pipeline begins at `place`; it stands as `standing`
    says."""
    asked = f"Have {name} begin again after entry {place.sequence:,}?"
    if standing is None or standing.progress.log_id != place.log_id:
        return asked
    missing = place.sequence - standing.progress.sequence
    if missing <= 0:
        return asked
    return (
        f"{name} stands at {place.sequence - missing:,}, and the log no longer has the "
        f"{missing:,} entries that follow: they are passed over, and what they inserted, changed "
        f"or deleted stays as it was in its tables, unless the log tells it again. {asked}"
    )


def reset_place(client: LogClient, asked: str, bounds: Bounds) -> Progress:
    """The place that `beginning`, `oldest` or a marker names, as this log has it, which is of
    `bounds`.

    Raises MalformedProgressError, TrimmedError, StreamChangedError or AheadError for a marker that
    cannot be resumed from, and RequestError for one inside a commit.
    """
    marker = None if asked in {"beginning", "oldest"} else _marker(asked)
    if marker is None:
        if asked == "beginning":
            return Progress(bounds.log_id, 0, 0)
        return Progress(bounds.log_id, bounds.trimmed, bounds.trimmed_check)
    place = client.plan(after=marker, until=marker).after
    if place.sequence > bounds.trimmed:
        before = client.marker(log_id=place.log_id, sequence=place.sequence - 1)
        if client.plan(after=before, events_max=1).to.sequence != place.sequence:
            raise RequestError(
                f"the marker {asked} is inside a transaction, and those are applied whole. "
                f"Nothing was changed. Take one at a transaction's end, as `penstock pipeline "
                f"list --json` shows."
            )
    return place


def _marker(asked: str) -> Progress:
    try:
        return parse_progress(asked)
    except MalformedProgressError:
        raise MalformedProgressError.saying(
            f"{asked[:64]!r} is no place of the log: say beginning, oldest or a marker. Nothing "
            f"was changed. `penstock pipeline list --json` shows markers, as `progress`."
        ) from None
