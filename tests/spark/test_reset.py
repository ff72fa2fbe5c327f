"""A pipeline that is reset misses nothing that the log still has, or is refused by name."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.cli import pipeline_plan
from penstock.errors import PipelineChangedError, ResetRefusedError, StreamChangedError
from penstock.ports import Bounds
from penstock.progress import Progress
from penstock.spark.config import TablePipelineConfig
from penstock.spark.overtaken import way_back
from penstock.spark.resetting import question
from penstock.spark.table.standing import Standing, decide_reset, decide_start

LOG = 0xFEDC_BA98_7654_3210
NAMES = ("lines", "orders", "refunds")


def bounds(trimmed: int = 0) -> Bounds:
    return Bounds(
        log_id=LOG,
        trimmed=trimmed,
        trimmed_check=0,
        head=1000,
        head_commit=1000,
        head_check=9,
    )


def config(*collections: str, source: str = "shop") -> TablePipelineConfig:
    return TablePipelineConfig.model_validate(
        {"source": source, "collections": collections, "path": "lake"}
    )


STANDING = Standing(
    pipeline="p",
    source="shop",
    collections=("orders", "lines"),
    progress=Progress(LOG, 500, 0),
    tables={"orders": 500, "lines": 400},
)


def reset(
    sequence: int,
    of: TablePipelineConfig | None = None,
    *,
    standing: Standing | None = STANDING,
    trimmed: int = 0,
    has: Mapping[str, int] | None = None,
    log_id: int = LOG,
) -> Standing:
    applied = {"orders": 500, "lines": 400} if has is None else has
    return decide_reset(
        of or config("orders", "lines"),
        "p",
        standing=standing,
        place=Progress(log_id, sequence, 0),
        bounds=bounds(trimmed),
        applied=lambda name: applied.get(name, 0),
    )


def test_going_back_is_always_possible_and_going_ahead_never() -> None:
    assert reset(0).progress.sequence == 0
    assert reset(450).tables == STANDING.tables
    with pytest.raises(ResetRefusedError, match="between 500 and 501"):
        reset(501)


def test_what_is_missing_sets_how_far_back_it_must_be() -> None:
    older = {"orders": 500, "lines": 120}
    assert reset(120, has=older).tables == older
    with pytest.raises(ResetRefusedError, match="between 120 and 121"):
        reset(121, has=older)
    three = config("orders", "lines", "refunds")
    assert reset(0, three).collections == ("orders", "lines", "refunds")
    with pytest.raises(ResetRefusedError, match="between 0 and 1"):
        reset(1, three)


def test_what_retention_took_is_left_out_only_knowingly() -> None:
    with pytest.raises(ResetRefusedError, match="first 300 entries"):
        reset(0, trimmed=300)
    assert reset(300, trimmed=300, has={"orders": 500}).tables["lines"] == 0


def test_what_is_not_these_tables_is_refused() -> None:
    with pytest.raises(ResetRefusedError, match="it is new"):
        reset(0, standing=None)
    with pytest.raises(StreamChangedError):
        reset(0, log_id=LOG - 1)
    with pytest.raises(PipelineChangedError, match="source shop"):
        reset(0, config("orders", "lines", source="hr"))


def test_the_question_says_what_is_passed_over() -> None:
    plain = "Have p begin again after entry 400?"
    assert question("p", Progress(LOG, 400, 0), STANDING) == plain
    assert question("p", Progress(LOG, 400, 0), None) == plain
    ahead = question("p", Progress(LOG, 2500, 0), STANDING)
    assert "stands at 500" in ahead
    assert "2,000 entries that follow: they are passed over" in ahead
    assert ahead.endswith("Have p begin again after entry 2,500?")


def test_an_overtaken_table_is_told_all_that_goes_missing() -> None:
    said = way_back("p", config("orders"))
    assert "inserted, changed or deleted in the missing entries stays as it was" in said
    assert "copied again first (`penstock snapshot shop`)" in said


@given(
    st.lists(st.sampled_from(NAMES), max_size=30),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 30)),
    st.sets(st.sampled_from(NAMES), min_size=1),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 32),
)
def test_no_table_misses_what_the_log_has(
    entries: list[str],
    restored: dict[str, int],
    was: set[str],
    stood: int,
    trimmed: int,
    place: int,
) -> None:
    """Against the plainest account: which entries each table has, and which it will be given."""
    stood, trimmed = min(stood, len(entries)), min(trimmed, len(entries))
    before = {
        name: max((at for at, of in enumerate(entries, 1) if of == name and at <= stood), default=0)
        for name in was
    }
    has = {name: min(at, restored.get(name, at)) for name, at in before.items()}
    standing = structs.replace(
        STANDING,
        collections=tuple(sorted(was)),
        progress=Progress(LOG, stood, 0),
        tables={name: at for name, at in before.items() if at},
    )
    if len(was) == 1:
        return  # its table lies elsewhere as soon as there are more
    try:
        after = reset(place, config(*NAMES), standing=standing, trimmed=trimmed, has=has)
    except ResetRefusedError:
        # Going back to all that is left is never refused.
        assert not (place == trimmed <= stood)
        return
    for name in NAMES:
        given_ = {
            at
            for at, of in enumerate(entries, 1)
            if of == name and (at <= has.get(name, 0) or at > after.progress.sequence)
        }
        wanted = {at for at, of in enumerate(entries, 1) if of == name and at > trimmed}
        assert wanted <= given_
    start = decide_start(
        config(*NAMES),
        "p",
        standing=after,
        bounds=bounds(trimmed),
        applied=lambda name: has.get(name, 0),
    )
    assert start.after == after.progress


@pytest.mark.parametrize(
    ("to", "more", "said"),
    [
        ("history", 'path = "h"', "has its history from a pipeline of its own"),
        ("replicate", 'uri = "mongodb://h/d"', "another pipeline into an empty database"),
        ("changelog", 'path = "c"', "give it a new name and a new place"),
    ],
)
def test_what_is_no_table_is_refused_with_what_to_do_instead(
    tmp_path: Path, to: str, more: str, said: str
) -> None:
    config = tmp_path / "penstock.toml"
    collections = "" if to == "changelog" else 'collections = ["orders"]\n'
    config.write_text(
        f'[sources.shop]\ntype = "script"\n[pipelines.p]\nto = "{to}"\nsource = "shop"\n'
        f"{collections}{more}\n"
    )
    with pytest.raises(ResetRefusedError, match=said):
        pipeline_plan.reset("p", "oldest", config=config)
