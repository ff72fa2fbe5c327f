"""What keeps a store from being captured, each with its fix."""

import shutil
from pathlib import Path
from typing import Any

from penstock.sources.store.doctor import doctor
from penstock.store import KeyType, StreamViewType
from tests.sources_store.support import caught_up, make, source_of
from tests.store.support import opened


async def found(path: Path, position: str | None = None, **options: Any) -> dict[str, str]:
    """What is not right, by its name, with what was said; every one says what to do."""
    checks = await doctor("db", source_of(path, **options).config, position=position)
    return {check.name: check.detail for check in checks if not check.ok}


async def test_a_store_that_can_be_captured_has_nothing_to_mend(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        make(db, "a")
        story = await caught_up(db, source_of(tmp_path))
        assert await found(tmp_path) == {}
        assert await found(tmp_path, story.position) == {}


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    assert list(await found(tmp_path / "none")) == ["store"]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "looked into" in (await found(tmp_path / "loop"))["store"]
    path, backup = tmp_path / "store", tmp_path / "backup"
    with opened(path) as db:
        make(db, "a")
    shutil.copytree(path, backup)
    with opened(path) as db:
        db.put("a", {"id": 0})
        story = await caught_up(db, source_of(path))
        for number in range(3):
            db.put("a", {"id": number + 1})
        db.prune_stream("a", until_sequence=5)
        assert "of: a" in (await found(path, story.position))["position"]
        db.create_table("none").partition_key("id", KeyType.NUMBER).execute()
        thin = db.create_table("thin").partition_key("id", KeyType.NUMBER)
        thin.stream(StreamViewType.KEYS_ONLY).execute()
        unfit = await found(path)
        assert "none" in unfit["streams"]
        assert "thin" in unfit["tables"]
        assert await found(path, exclude=["none", "thin"]) == {}
        slip = await found(path, include=["a", "thinn"])
        assert slip == {
            "names": "include 'thinn' matches nothing that is there; the nearest are thin"
        }
        assert list(await found(path, "nonsense", exclude=["none", "thin"])) == ["position"]
    with opened(backup) as db:
        db.put("a", {"id": 9})
        assert "restored" in (await found(backup, story.position))["position"]
