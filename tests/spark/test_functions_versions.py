"""Versions of rows that a function makes are those that histories keep."""

import random
from functools import partial
from pathlib import Path

import pytest

from penstock.spark.functions import versions as functions_versions
from penstock.spark.functions.points import Pieces
from penstock.spark.history.apply import Tracking
from penstock.spark.transform.replay import signed
from tests.spark.kept import comparable, in_histories
from tests.spark.stories import (
    scattered,
    story,
    versions_of,
)

TRACKING = [((), ()), (("n",), ()), ((), ("n",)), (("name", "deep"), ())]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 330))
def test_versions_are_those_of_histories(tmp_path: Path, seed: int) -> None:
    """In any order of the entries, where some come twice, and whatever fields are tracked."""
    entries = story(seed).table()
    only, but = TRACKING[seed % len(TRACKING)]
    tracking = Tracking(columns=frozenset(only), except_columns=frozenset(but))
    found = versions_of(scattered(entries, seed), tracking=tracking)
    lists = {"track_history_column_list": only, "track_history_except_column_list": but}
    assert comparable(found) == in_histories(tmp_path, entries, **lists)


@pytest.mark.parametrize("seed", range(400, 410))
def test_versions_are_the_same_in_pieces_of_any_size(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A row has any number of versions, and no worker holds all of them."""
    entries = signed(story(seed, commits=40).table())
    whole = comparable(versions_of(entries))
    held = random.Random(seed).choice([1, 1000, 3000])
    monkeypatch.setattr(functions_versions, "Pieces", partial(Pieces, piece_bytes=held))
    assert comparable(versions_of(entries)) == whole
