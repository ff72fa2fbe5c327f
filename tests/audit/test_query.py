"""`penstock audit query`: what it writes, and how it ends."""

import csv
import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import bson
import pytest
from bson import json_util

from penstock.audit.trail import Trail
from tests.audit.commands import configured
from tests.audit.support import commit_of, row, text, write
from tests.audit.test_querying import erase
from tests.children import Child
from tests.cli.service import COMMAND, Done, penstock

pytestmark = pytest.mark.server


@pytest.fixture
def config(tmp_path: Path, trail: Trail) -> str:
    return configured(tmp_path, trail)


def query(capsys: pytest.CaptureFixture[str], config: str, *options: str) -> Done:
    return penstock(capsys, "audit", "query", "trail", "--config", config, *options)


def ats(done: Done) -> list[int]:
    assert done.code == 0, done.err
    return [json.loads(line)["at"] for line in done.out.splitlines()]


def test_a_table_shows_who_changed_what(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail
) -> None:
    before, place = {"id": 1, "name": "a", "qty": 1}, {"file": "mysql-bin.000001", "offset": 1234}
    write(
        trail,
        [
            row(1, after={"id": 1, "name": "a", "note": None}),
            row(2, before=before, after={"id": 1, "name": "b", "qty": 2}, origin=text(place)),
            row(3, before={"id": 1, "na\x1b[2Jme": "b\x1b[2J"}, document_id="\x1b]0;x\x07"),
            row(4, kind=3, operation_type="drop", full_document=text({"statement": "DROP TABLE"})),
        ],
    )
    erase(trail, 1)
    done = query(capsys, config, "--order", "asc")
    assert done.code == 0, done.err
    header, *lines = done.out.splitlines()
    assert header.split() == ["TS(IST)", "OP", "DB", "TABLE", "PK", "CHANGES", "GTID", "FILE:POS"]
    assert "2023-11-15 03:43:20" in lines[0]
    assert lines[0].count("(erased)") == 2
    assert 'name:"a"→"b" | qty:1→2' in lines[1]
    assert "0-1-2" in lines[1]
    assert lines[1].endswith("mysql-bin.000001:1234")
    assert not {"\x1b", "\x07"} & set(done.out), "what a record says does not steer the terminal"
    assert "DROP TABLE" in lines[3]


def test_a_key_of_another_type_is_not_found_and_it_is_said_why(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail
) -> None:
    """A12."""
    write(trail, [row(1, after={"id": "123"})])
    done = query(capsys, config, "--pk", "123")
    assert (done.code, done.out) == (0, "")
    assert """--pk '"123"'""" in done.err
    assert query(capsys, config, "--pk", "5x").err == "no record matches\n"
    assert "id:→" in query(capsys, config, "--pk", '"123"').out


def test_null_and_what_is_not_there_are_shown_apart(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail
) -> None:
    """A14."""
    changed = row(1, before={"id": 1, "a": None, "b": 0}, after={"id": 1, "a": "", "b": None})
    write(trail, [changed, row(2, after={"id": 2, "a": None})])
    said = query(capsys, config).out
    assert 'a:∅→"" | b:0→∅' in said
    assert "id:→2 | a:→∅" in said


def test_jsonl_is_the_record_whole_and_canonical_keeps_every_type(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail
) -> None:
    write(trail, [row(1, after={"id": 1, "v": "x" * (9 << 20)})])
    done = query(capsys, config, "--format", "jsonl", "--canonical")
    stored = trail.records.find_one({})
    assert stored is not None
    said = json_util.loads(done.out, json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert said["chg"] == {"id": {"t": 1}, "v": {"t": "x" * (9 << 20)}}, "spilled values too"
    del said["chg"]
    assert bson.encode(said) == bson.encode(stored)
    relaxed = json.loads(query(capsys, config, "--json").out)
    assert relaxed["at"] == 1
    assert relaxed["ts"] == {"$date": "2023-11-14T22:13:20.001Z"}


def test_csv_has_the_columns_of_all_records_in_its_first_line(config: str, trail: Trail) -> None:
    write(
        trail,
        [row(1, after={"id": 1, "a": 'say "x",\r\nthen'}), row(2, after={"id": 2, "b": "=cmd()"})],
    )
    command = (*COMMAND, "audit", "query", "trail", "--config", config, "--format", "csv")
    done = subprocess.run((*command, "--order", "asc"), capture_output=True, check=True)
    written = done.stdout.decode()
    assert "\r\n" in written
    lines = list(csv.reader(StringIO(written, newline=""), strict=True))
    assert lines[0][6:] == [
        *("Primary_Key", "Binlog_File", "Binlog_Position", "a_FROM", "a_TO"),
        *("b_FROM", "b_TO", "id_FROM", "id_TO"),
    ]
    assert lines[1][9:] == ["", 'say "x",\r\nthen', "", "", "", "1"]
    assert lines[2][9:] == ["", "", "", "'=cmd()", "", "2"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_follow_each_other_by_cursor(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail, order: str
) -> None:
    """A24."""
    write(trail, commit_of(1, 7))
    options = ("--json", "--limit", "3", "--order", order)
    seen: list[int] = []
    cursor: tuple[str, ...] = ()
    for page in range(3):
        done = query(capsys, config, *options, *cursor)
        seen += ats(done)
        if page == 0:
            write(trail, commit_of(8, 2))
        cursor = ("--cursor", json.loads(done.err)["cursor"]) if done.err else ()
    assert seen == (list(range(1, 10)) if order == "asc" else list(range(7, 0, -1)))
    if order == "asc":
        later = query(capsys, config, *options, *cursor)
        assert ats(later) == []
        write(trail, [row(10, after={"id": 10})])
        assert ats(
            query(capsys, config, *options, "--cursor", json.loads(later.err)["cursor"])
        ) == [10]
    else:
        assert cursor == (), "there is nothing behind the first record"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--op", "x"), "'x' is no operation"),
        (("--since", "today"), "--since: 'today' is no moment"),
        (("--order", "up"), "--order 'up' is neither"),
        (("--format", "xml"), "--format 'xml' is none of"),
        (("--format", "csv", "--json"), "exclude each other"),
        (("--canonical",), "--canonical is about"),
        (("--wide", "--json"), "--wide is about"),
        (("--cursor", "zzz"), "--cursor is none of ours"),
        (("--limit", "0"), "or equal to 1"),
        (("--nope",), "No such option"),
    ],
)
def test_what_is_written_wrongly_ends_with_2_and_its_name(
    capsys: pytest.CaptureFixture[str],
    config: str,
    trail: Trail,
    options: tuple[str, ...],
    sentence: str,
) -> None:
    """A23."""
    write(trail, commit_of(1, 1))
    done = query(capsys, config, *options)
    assert (done.code, done.out) == (2, "")
    assert sentence in " ".join(done.err.split())


def test_a_pipeline_without_a_trail_is_said_to_have_none(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    done = penstock(capsys, "audit", "query", "shop", "--config", config)
    assert (done.code, "only one that goes to 'audit'" in done.err) == (2, True)
    done = penstock(capsys, "audit", "query", "trial", "--config", config)
    assert (done.code, "did you mean trail?" in done.err) == (2, True)
    done = query(capsys, config)
    assert (done.code, "no audit trail of shop" in done.err) == (7, True)


def test_whoever_reads_no_further_ends_it_quietly(config: str, trail: Trail) -> None:
    write(trail, commit_of(1, 5_000), events_max=5_000)
    command = (*COMMAND, "audit", "query", "trail", "--json", "--config", config)
    with Child(*command, lines_max=1) as process:
        assert process.line().startswith("{"), process.tail()
        process.wait()
        assert "Traceback" not in process.errors()


@pytest.mark.parametrize("words", [(), ("audit", "query"), ("audit", "view")])
def test_help_needs_no_database_driver(words: tuple[str, ...]) -> None:
    """Who only captures and serves has none installed."""
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "penstock.cli", *words, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.split("|")[-1].strip() for line in said.stderr.splitlines()}
    assert "Usage: penstock" in said.stdout
    assert not {"pymongo", "bson"} & imported


def test_commands_that_are_imported_late_are_listed_and_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert {"query", "view", "verify", "repair", "erase", "restore"} <= set(
        penstock(capsys, "audit", "--help").out.split()
    )
    absent = str(tmp_path / "absent.toml")
    done = penstock(capsys, "audit", "restore", "trail", "--until", "x", "--config", absent)
    assert (done.code, "there is no configuration" in done.err) == (2, True)
    assert penstock(capsys, "audit", "nothing").code == 2


def test_what_an_erasure_leaves_and_says_is_shown(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail
) -> None:
    write(trail, commit_of(1, 3))
    words = ("audit", "erase", "trail", "--table", "db.orders", "--pk", '{"id":2}')
    done = penstock(capsys, *words, "--reason", "asked for", "--config", config)
    assert done.code == 0, done.err
    _, own, *rows = query(capsys, config).out.splitlines()
    assert " sys " in own
    assert "asked for" in own
    assert ["(erased)" in line for line in rows] == [False, True, False]
    assert query(capsys, config, "--op", "sys").out.splitlines()[1].split() == own.split()


def test_a_table_that_the_trail_has_no_record_of_is_told_by_every_command(
    capsys: pytest.CaptureFixture[str], config: str, trail: Trail, tmp_path: Path
) -> None:
    write(trail, commit_of(1, 3))
    told = "table 'db.ordrs' matches nothing of the trail; the nearest are db.orders"

    def err(command: str, *options: str, code: int = 0) -> str:
        done = penstock(capsys, "audit", command, "trail", "--config", config, *options)
        assert done.code == code, done.err
        return " ".join(done.err.split())

    erasure = ("--pk", '{"id":2}', "--reason", "asked for", "--dry-run")
    assert told in err("erase", "--table", "db.ordrs", *erasure)
    said = err("query", "--db", "db", "--table", "ordrs", "--json", "--order", "asc")
    line, cursor = said.replace("} {", "}\n{").splitlines()
    assert json.loads(line) == {"unmatched": told}
    assert "cursor" in json.loads(cursor)
    assert told in err("retain", "--table", "db.ordrs", "--days", "1", "--without-archive")
    until = ("--until", "head", "--output", str(tmp_path / "x.sql"))
    assert told in err("restore", "--table", "db.ordrs", *until, code=7)
    assert "no table of dp was there at record 3" in err("restore", "--db", "dp", *until, code=7)
    archived = ("--before", "2099-01-01", "--to", str(tmp_path))
    assert told in err("archive", "--table", "db.ordrs", *archived)
    assert "matches nothing" not in err("erase", "--table", "db.orders", *erasure)
    assert "matches nothing" not in err("query", "--table", "db.orders", "--op", "d")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("form", ["table", "csv", "jsonl", "--help"])
def test_what_finds_no_room_is_said_in_a_sentence(
    trail: Trail, config: str, form: str, unbuffered: str
) -> None:
    write(trail, [row(1, after={"id": 1})])
    said = [form] if form == "--help" else ["trail", "--config", config, "--format", form]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "audit", "query", *said],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: what is printed cannot be written (No space left")
    assert done.stderr.count(b"\n") == 1
