"""What a log says first that begins above the published copy of one that is gone.

Pure: both logs begin with the same bytes at the same sequences.
"""

from typing import NamedTuple

from penstock.log.assemble import Head, Packed, pack_commits
from penstock.log.layout import State
from penstock.ports import Above
from penstock.wire import encode_commit


class Beginning(NamedTuple):
    """The first state of a new log, and the blocks of its first entries."""

    state: State
    blocks: list[Packed]


def beginning(above: Above | None, *, ingested_at: int) -> Beginning:
    """An empty log; or one that stands at the published sequence and tells the gaps that follow it.

    The watermark is the published entry, so that a marker there proves itself by its check.
    """
    if above is None:
        return Beginning(State(), [])
    base = Head(above.head, above.head_commit, above.head_check)
    gaps = [encode_commit(gap.source, [gap], position=None) for gap in above.gaps]
    blocks, head = pack_commits(gaps, after=base, ingested_at=ingested_at)
    state = State(
        head=head.sequence,
        head_commit=head.commit,
        head_check=head.check,
        trimmed=base.sequence,
        trimmed_check=base.check,
    )
    return Beginning(state, blocks)
