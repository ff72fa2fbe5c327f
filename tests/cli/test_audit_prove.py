"""`penstock audit verify`, `repair`, `erase`, `archive` and `retain`, as people run them."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from penstock.audit.trail import Trail
from penstock.cli import audit_archive, audit_erase, audit_verify
from penstock.errors import AuditError, ConfigError, RequestError, TrailUnavailableError
from tests.audit.proofs import history
from tests.audit.support import trail_of, write
from tests_support.servers import MongoReplicaSet

CONFIG = """
[sources.shop]
type = "script"
[pipelines.trail]
to = "audit"
source = "shop"
uri = "{uri}"
database = "{database}"
answer_seconds = 2
retry_attempts = 1
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def trail(mongo: MongoReplicaSet, mongo_database: str) -> Any:
    made = trail_of(mongo.uri, mongo_database)
    write(made, history(), events_max=6)
    yield made
    made.close()


@pytest.fixture
def run(trail: Trail, tmp_path: Path) -> Run:
    """Run a command on the trail: its exit code, and what it said."""
    path = tmp_path / "penstock.toml"
    uri = trail.config.uri.get_secret_value()
    path.write_text(CONFIG.format(uri=uri, database=trail.config.database))
    return runner(path)


def runner(config: Path) -> Run:
    app = typer.Typer()
    for one in (audit_verify, audit_erase, audit_archive):
        one.register(app)

    def invoke(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*arguments, "--config", str(config)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output

    return invoke


def test_a_sound_trail_says_its_hash_to_keep(run: Run, trail: Trail) -> None:
    code, said = run("verify", "trail")
    assert code == 0
    head = trail.head()
    assert head is not None
    assert f"give it to a later proof: {head.hash.hex()}" in said
    code, said = run("verify", "trail", "--expect", head.hash.hex(), "--from", "7", "--json")
    report = msgspec.json.decode(said)
    assert code == 0
    assert report["expected"].startswith(f"batch {head.batch}")
    with pytest.raises(RequestError, match="64 hex digits"):
        run("verify", "trail", "--expect", "beef")


def test_the_first_broken_record_is_named_and_put_back(
    run: Run, trail: Trail, tmp_path: Path
) -> None:
    archives = str(tmp_path / "archives")
    assert run("archive", "trail", "--before", "2999-01-01", "--to", archives)[0] == 0
    trail.records.update_one({"at": 7}, {"$set": {"chg.v.t": 5}})
    trail.records.delete_many({"at": {"$in": [9, 10]}})
    code, said = run("verify", "trail")
    assert code == AuditError.exit_code
    assert "BROKEN: 3; the first: record at 7, db.orders, key 7, _id " in said
    assert "record at 9: there is no record at this place" in said
    code, said = run("repair", "trail", "--no-log", "--archive", archives)
    assert (code, "3 would be put back; say --write" in said) == (0, True)
    assert run("verify", "trail")[0] == AuditError.exit_code
    code, said = run("repair", "trail", "--no-log", "--archive", archives, "--write")
    assert (code, "records: 3 put back (3 from the archive)" in said) == (0, True)
    assert run("verify", "trail", "--archive", archives)[0] == 0


def test_a_key_is_erased_from_trail_and_archive(run: Run, trail: Trail, tmp_path: Path) -> None:
    archives = str(tmp_path / "archives")
    run("archive", "trail", "--before", "2999-01-01T00:00:00Z", "--to", archives)
    asked = ("--table", "db.orders", "--pk", '{"id": 7}', "--reason", "request 17")
    code, said = run("erase", "trail", *asked, "--dry-run")
    assert (code, "1 records would be erased" in said) == (0, True)
    code, said = run("erase", "trail", *asked, "--archive", archives)
    assert (code, "erased: 1 records, 1 in archives; told at [21]" in said) == (0, True)
    code, said = run("verify", "trail", "--archive", archives)
    assert (code, "20 records whole, 1 erased" in said) == (0, True)
    assert "1 erasures" in run("erase", "trail", "--unfinished")[1]
    with pytest.raises(RequestError, match="or --unfinished"):
        run("erase", "trail")
    with pytest.raises(RequestError, match="all"):
        run("erase", "trail", "--table", "db.orders")


def test_old_rows_are_archived_and_then_removed(run: Run, trail: Trail, tmp_path: Path) -> None:
    archives = str(tmp_path / "archives")
    keep = ("retain", "trail", "--table", "db.orders", "--days", "0")
    with pytest.raises(RequestError, match="name the --archive"):
        run(*keep)
    code, said = run("archive", "trail", "--before", "2999-01-01", "--to", archives)
    assert (code, "archived 20 records of places 1 to 20" in said) == (0, True)
    assert (
        "it is all there up to place 20"
        in run("archive", "trail", "--before", "2999-01-01", "--to", archives)[1]
    )
    assert "0 rows" in run(*keep[:-1], "30", "--archive", archives, "--dry-run")[1]
    assert "19 rows" in run(*keep, "--archive", archives, "--dry-run")[1]
    assert "removed 19 rows" in run(*keep, "--archive", archives)[1]
    code, said = run("verify", "trail", "--archive", archives)
    assert (code, "2 records whole, 0 erased, 19 of 19 retired" in said) == (0, True)
    with pytest.raises(RequestError, match="neither a day"):
        run("archive", "trail", "--before", "yesterday", "--to", archives)


@pytest.mark.slow
def test_what_is_no_trail_and_who_does_not_answer_are_told(tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text(
        CONFIG.format(uri="mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", database="d")
    )
    run = runner(path)
    with pytest.raises(ConfigError, match=r"no \[pipelines.trial\] \(did you mean trail\?\)"):
        run("verify", "trial")
    with pytest.raises(
        TrailUnavailableError,
        match=r"127\.0\.0\.1:1 refuses connections.*run this again, and it goes on",
    ):
        run("verify", "trail")


PAGE = Path("docs/how-to/audit.md")
OURS = {"verify", "repair", "erase", "archive", "retain"}


def test_the_commands_of_the_page_run_as_they_stand(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archives = str(tmp_path / "archives")
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    ran = 0
    for line in lines:
        words = shlex.split(line.removeprefix("$ penstock audit ").replace("2026", "2999"))
        if words[0] in OURS:
            code, said = run(*(word.replace("/archives", archives) for word in words))
            assert code == 0, (line, said)
            ran += 1
    assert ran == 8
    run("archive", "trail", "--before", "2999-01-01", "--to", archives)
    (example,) = re.findall(
        r"```python\n(import bson.*?|from pathlib.*?)```", PAGE.read_text(), re.DOTALL
    )
    exec(example.replace("/archives", archives), {})
    assert capsys.readouterr().out.startswith("7 {'id': {'t': 7}")
