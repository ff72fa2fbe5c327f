"""Where pipelines write: relative to the configuration, and never over one another."""

import posixpath
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.spark.config import PipelineConfig

_KEYS: Final = ("path", "rejects", "standing")
_FILES: Final = ("ca", "certificate", "key")
# Hadoop's names for the same store.
_SAME_SCHEME: Final = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}


class Place(Struct, frozen=True, kw_only=True):
    """A folder that a pipeline writes, and the setting that says so."""

    pipeline: str
    key: str
    parts: tuple[str, ...]
    """The folder's address, step by step, in one spelling."""

    @property
    def setting(self) -> str:
        return f"pipelines.{self.pipeline}.{self.key}"


def beside(folder: Path, pipeline: "PipelineConfig") -> "PipelineConfig":
    """`pipeline` with its relative folders and files made relative to `folder`; URLs stay."""
    written = {key: getattr(pipeline, key, None) for key in _KEYS}
    absolute: dict[str, str | Path] = {
        key: str(folder / place) for key, place in written.items() if place and "://" not in place
    }
    for key in _FILES:
        if isinstance(file := getattr(pipeline, key, None), Path):
            absolute[key] = folder / file
    return pipeline.model_copy(update=absolute)


def secret_in(pipeline: "PipelineConfig") -> list[str]:
    """Which of its settings of places are URLs with a password."""
    written = {key: getattr(pipeline, key, None) or "" for key in _KEYS}
    return [
        key for key, url in written.items() if ":" in url.rpartition("@")[0].partition("://")[2]
    ]


def clash(pipelines: "Mapping[str, PipelineConfig]") -> tuple[Place, Place] | None:
    """Two places that are the same, or of which one lies in the other; None if all keep apart.

    A pipeline may keep its own rejects, and where it stands, inside its own folder.
    """
    places = [place for name, one in pipelines.items() for place in _places(name, one)]
    for one, other in combinations(places, 2):
        shared = min(len(one.parts), len(other.parts))
        if one.parts[:shared] != other.parts[:shared]:
            continue
        inside = one.key == "path" and len(one.parts) < len(other.parts)
        if one.pipeline != other.pipeline or not inside:
            return one, other
    for name, pipeline in pipelines.items():
        tables = {table.parts: table for table in _tables(name, pipeline)}
        for place in _places(name, pipeline):
            if place.key != "path" and (table := tables.get(place.parts)) is not None:
                return table, place
    return None


def _places(name: str, pipeline: "PipelineConfig") -> Iterator[Place]:
    from penstock.spark.config import LakePipelineConfig

    if not isinstance(pipeline, LakePipelineConfig):
        return
    if pipeline.to == "table" and pipeline.catalog is not None:
        return  # its tables say whose they are
    written = [("path", pipeline.path)]
    if pipeline.to == "changelog" and pipeline.format == "parquet":
        written.append(("path", pipeline.manifest_path))
    if pipeline.to == "view":
        written += [("path", pipeline.state_path), ("path", pipeline.apart_path)]
    written += [("rejects", pipeline.rejects_path), ("standing", pipeline.standing_path)]
    if pipeline.to == "table" and pipeline.first_load != "off":
        written.append(("standing", pipeline.load_path))
    if pipeline.verify_every:
        written.append(("standing", pipeline.verified_path))
    for key, address in written:
        yield Place(pipeline=name, key=key, parts=_parts(address))


def _tables(name: str, pipeline: "PipelineConfig") -> Iterator[Place]:
    """The tables of the collections that it names; they lie in its path."""
    if pipeline.to != "table" and pipeline.to != "history":  # noqa: PLR1714 - types follow it
        return
    if pipeline.to == "table" and pipeline.catalog is not None:
        return
    for one in pipeline.collections:
        yield Place(pipeline=name, key="path", parts=_parts(pipeline.table_path(one)))


def _parts(address: str) -> tuple[str, ...]:
    if "://" not in address:
        return ("file", "", *Path(address).resolve().parts[1:])
    url = urlsplit(address)
    if url.scheme == "file":
        return ("file", "", *Path(unquote(url.path)).resolve().parts[1:])
    scheme = _SAME_SCHEME.get(url.scheme, url.scheme)
    steps = posixpath.normpath(f"/{url.path}").split("/")
    return (scheme, url.netloc, *(step for step in steps if step))
