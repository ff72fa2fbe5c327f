"""What tells whether the steps of a pipeline are the ones that its rows were made by."""

import hashlib
import hmac
import json
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from penstock.spark.config import SteppedPipelineConfig
from penstock.spark.transform.config import ExpectConfig, TransformConfig

_HEX: Final = 32
_HASHED: Final = "of its text"
"""What `hash` hashes of a value; part of the digest, for it was once another thing."""


class StepDigest(Struct, frozen=True, kw_only=True):
    """One step, as it is told from any other."""

    collections: tuple[str, ...]
    """As in its configuration; empty for all."""
    digest: str


def deciding_steps(config: SteppedPipelineConfig) -> list[TransformConfig | ExpectConfig]:
    """What decides how documents come to their tables, and which do, in order."""
    return [*config.steps, *(one for one in config.expect if one.action != "warn")]


def digests_of(config: SteppedPipelineConfig) -> tuple[StepDigest, ...]:
    """Those of the steps of a pipeline, in order.

    Of a function only its name is in it. A salt is its key, so the digest tells no more of it than
    the hashes do that the step makes.
    """
    return tuple(
        StepDigest(collections=one.collections, digest=_digest(one))
        for one in deciding_steps(config)
    )


def changed_in(
    collections: Collection[str], before: Sequence[StepDigest], now: Sequence[StepDigest]
) -> list[str]:
    """Those of the collections that have other steps now; the empty name is of all of them."""
    return sorted(name for name in collections if _of(name, before) != _of(name, now))


def _of(collection: str, steps: Sequence[StepDigest]) -> list[object]:
    if not collection:
        return [(frozenset(one.collections), one.digest) for one in steps]
    return [one.digest for one in steps if not one.collections or collection in one.collections]


def _digest(step: TransformConfig | ExpectConfig) -> str:
    said = step.model_dump(
        mode="json", exclude_defaults=True, exclude={"collections", "name", "salt"}
    )
    salt = step.salt if isinstance(step, TransformConfig) else None
    key = b"" if salt is None else salt.get_secret_value().encode()
    if salt is not None:
        said["hashed"] = _HASHED
    text = json.dumps(said, sort_keys=True).encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:_HEX]
