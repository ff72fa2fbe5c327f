"""What is answered to a request, by whatever way it came."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.store import Transaction, updates
from penstock.store.paths import Path as DocumentPath
from penstock.store.paths import refuse_overlaps
from penstock.store.remote.answers import answer
from penstock.store.remote.requests import decode_request
from tests.store.support import opened, with_table

SETS: Any = [{"action": "SET", "path": f"n{at}", "value": at} for at in range(50)]


def update(key: str) -> Any:
    return {"op": "update_item", "table": "t", "key": {"id": key}, "updates": SETS}


@pytest.mark.parametrize(
    ("request_", "built"),
    [(update("a"), 1), ({"op": "transact", "actions": [update("a"), update("b")]}, 2)],
)
def test_an_update_is_built_once_and_before_other_writers_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Any, built: int
) -> None:
    told = list[str]()
    with opened(tmp_path) as db:
        with_table(db)
        write = db.write

        def taken(call: Callable[[Transaction], object]) -> object:
            told.append("taken")
            return write(call)

        def checked(paths: Sequence[DocumentPath]) -> None:
            told.append("built")
            refuse_overlaps(paths)

        monkeypatch.setattr(db, "write", taken)
        monkeypatch.setattr(updates, "refuse_overlaps", checked)
        answer(db, decode_request(json.dumps(request_).encode()))
        assert db.get("t", {"id": "a"}) == {"id": "a", **{f"n{at}": at for at in range(50)}}
    assert told == [*["built"] * built, "taken"]
