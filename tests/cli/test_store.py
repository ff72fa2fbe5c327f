"""`penstock store`: a store looked into, filled and copied, here or through its server."""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import store
from penstock.store import KeyType, StreamViewType
from tests.cli.service import Done, penstock
from tests.store.faces import served

ITEM = {"id": "a", "n": 10**38 - 1, "d": None}


@pytest.fixture(params=["folder", "socket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The path of a store with a table `t`: its folder, or its server's socket."""
    path = tmp_path / "store"
    with store.open(path, sweep_seconds=None) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).stream(
            StreamViewType.KEYS_ONLY
        ).execute()
        if request.param == "socket":
            with served(db, tmp_path / "s"):
                yield tmp_path / "s"
            return
    yield path


@pytest.mark.slow
def test_items_go_in_and_come_out_exactly(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """F15: in plain JSON, and what it does not have in DynamoDB's."""

    def run(*words: str) -> Done:
        return penstock(capsys, "store", words[0], str(place), *words[1:])

    assert run("put", "t", json.dumps(ITEM), "--json").out == '{"put":true,"replaced":false}\n'
    assert json.loads(run("get", "t", '{"id": "a"}').out) == ITEM
    sets = {"id": {"S": "b"}, "raw": {"B": "AAE="}, "tags": {"NS": ["1", "2"]}}
    assert run("put", "t", json.dumps(sets), "--dynamodb").code == 0
    assert json.loads(run("get", "t", '{"id": {"S": "b"}}', "--dynamodb").out) == sets
    refused = run("get", "t", '{"id": "b"}')
    assert (refused.code, refused.out) == (2, "")
    assert "--dynamodb" in refused.err
    found = run("scan", "t", "--filter", '{"AttributeExists": {"Attr": "n"}}')
    assert [json.loads(line) for line in found.out.splitlines()] == [ITEM]
    lines = [json.loads(line) for line in run("scan", "t", "--dynamodb").out.splitlines()]
    assert lines[1] == sets
    assert len(run("scan", "t", "--dynamodb", "--limit", "1").out.splitlines()) == 1

    assert run("create", "u", "--partition-key", "id:S").code == 0
    file = tmp_path / "t.jsonl"
    assert run("export", "t", "--output", str(file), "--json").out == '{"exported":2}\n'
    assert [json.loads(line)["Item"] for line in file.read_text().splitlines()] == lines
    assert run("export", "t").out == file.read_text()
    assert run("import", "u", str(file), "--json").out == '{"imported":2}\n'
    assert run("scan", "u", "--dynamodb").out == run("scan", "t", "--dynamodb").out

    assert run("delete", "t", '{"id": "a"}', "--json").out == '{"deleted":true}\n'
    assert run("delete", "t", '{"id": "a"}', "--json").out == '{"deleted":false}\n'
    gone = run("get", "t", '{"id": "a"}', "--json")
    assert (gone.code, gone.out) == (1, "null\n")
    told = [json.loads(line) for line in run("tables", "--json").out.splitlines()]
    assert [(one["table"], one["stream"] and one["stream"]["records"]) for one in told] == [
        ("t", 3),
        ("u", None),
    ]
    assert "KEYS_ONLY" in run("tables").out


@pytest.mark.slow
def test_items_are_found_by_their_key_and_by_an_index(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> Done:
        return penstock(capsys, "store", *words)

    def ids(*words: str) -> list[str]:
        done = run("query", str(place), *words)
        assert done.code == 0, done.err
        return [json.loads(line)["id"] for line in done.out.splitlines()]

    items = [{"id": str(number), "of": "x", "n": number / 2} for number in range(5)]
    for item in [*items, {"id": "without"}]:
        assert run("put", str(place), "t", json.dumps(item)).code == 0
    where = (str(place), "t", "by")
    keys = ("--partition-key", "of:S", "--sort-key", "n:N", "--json")
    assert run("index", "create", *where, *keys).out == '{"created":"by"}\n'
    (told,) = [json.loads(line) for line in run("tables", str(place), "--json").out.splitlines()]
    by = {"name": "by", "partitionKey": "of:S", "sortKey": "n:N", "scope": None, "ready": True}
    assert told["indexes"] == [by]
    assert " by" in run("tables", str(place)).out

    assert ids("t", "without") == ["without"]
    assert ids("t", "none") == []
    assert ids("t", "x", "--index", "by") == ["0", "1", "2", "3", "4"]
    assert ids("t", "x", "--index", "by", "--reverse", "--limit", "2") == ["4", "3"]
    assert ids("t", "x", "--index", "by", "--from", "0.5", "--to", "1.0") == ["1", "2"]
    assert ids("t", "x", "--index", "by", "--from", "1.5") == ["3", "4"]
    assert ids("t", "x", "--index", "by", "--to", "0") == ["0"]

    raw = ("--partition-key", "raw:B", "--scope", "k")
    assert run("index", "create", str(place), "t", "raw", *raw).code == 0
    put = json.dumps({"id": {"S": "k#1"}, "raw": {"B": "AP8="}})
    assert run("put", str(place), "t", put, "--dynamodb").code == 0
    assert json.loads(
        run("query", str(place), "t", "AP8=", "--index", "raw", "--dynamodb").out
    ) == json.loads(put)

    for words, sentence in (
        (("x", "--index", "none"), "no index 'none'"),
        (("x", "--index", "by", "--from", "many"), "'many' is no number"),
        (("!", "--index", "raw"), "'!' is no base64"),
        (("x", "--to", "1"), "no sort key"),
    ):
        refused = run("query", str(place), "t", *words)
        assert refused.code != 0
        assert sentence in refused.err
        assert refused.out == ""
    assert run("index", "drop", *where, "--json").out == '{"dropped":"by"}\n'
    assert "no index 'by'" in run("index", "drop", *where).err


def test_an_import_stops_at_the_line_that_cannot_be_and_says_what_was_put(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def lines(*bad: str) -> str:
        good = [json.dumps({"Item": {"id": {"S": f"{number:03}"}}}) for number in range(60)]
        file = tmp_path / "lines.jsonl"
        file.write_text("\n".join([*good, *bad]))
        return str(file)

    def imported(*bad: str) -> Done:
        return penstock(capsys, "store", "import", str(place), "t", lines(*bad))

    for bad in ("nonsense", '{"id": {"S": "x"}}', '{"Item": {"id": {"X": "x"}}}', "[]"):
        done = imported(bad)
        assert done.code == 2
        assert "line 61" in done.err
        assert "50 items that were put before are kept" in done.err
    done = imported('{"Item": {"id": {"N": "1"}}}')
    assert (done.code, "None of them was put" in done.err) == (2, True)
    scanned = penstock(capsys, "store", "scan", str(place), "t")
    assert len(scanned.out.splitlines()) == 50
    assert imported().code == 0
    scanned = penstock(capsys, "store", "scan", str(place), "t")
    assert len(scanned.out.splitlines()) == 60


def test_a_backup_is_a_store_and_needs_the_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with store.open(tmp_path / "store", sweep_seconds=None) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).execute()
        with served(db, tmp_path / "s"):
            refused = penstock(capsys, "store", "backup", str(tmp_path / "s"), str(tmp_path / "b"))
            assert (refused.code, "name the store's folder" in refused.err) == (2, True)
            words = ("store", "backup", str(tmp_path / "store"), str(tmp_path / "b"))
            assert penstock(capsys, *words, "--json").code == 0
            again = penstock(capsys, *words)
            assert (again.code, "not an empty folder" in again.err) == (2, True)
    listed = penstock(capsys, "store", "tables", str(tmp_path / "b"), "--json")
    assert json.loads(listed.out)["table"] == "t"


@pytest.mark.parametrize(
    "words",
    [
        ("tables", "PATH"),
        ("get", "PATH", "t", "{}"),
        ("put", "PATH", "t", '{"id": "a"}'),
        ("import", "PATH", "t"),
        ("backup", "PATH", "target"),
    ],
)
def test_where_no_store_is_none_is_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "none"
    done = penstock(capsys, "store", *(str(path) if word == "PATH" else word for word in words))
    assert done.code == 2
    assert "there is no store" in done.err
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("put", "t", "nonsense"),
        ("put", "t", "[1]"),
        ("get", "t", '{"id": 0.'),
        ("get", "t", '{"id":', "--dynamodb"),
        ("scan", "t", "--filter", "nonsense"),
        ("create", "u", "--partition-key", "id"),
        ("create", "u", "--partition-key", "id:X"),
        ("create", "u", "--partition-key", "id:S", "--stream", "ALL"),
        ("index-create", "t", "by", "--partition-key", "id"),
        ("index-create", "t", "by", "--partition-key", "id:S", "--scope", "a#"),
    ],
)
def test_what_means_nothing_is_a_sentence_and_a_code(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    done = penstock(capsys, "store", *words[0].split("-"), str(place), *words[1:])
    assert done.code in (1, 2)
    assert done.err.startswith("error: ")
    assert done.out == ""


def test_options_of_the_server_are_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for option, value in (
        ("--connections-max", "0"),
        ("--request-bytes-max", "12"),
        ("--request-bytes-max", "many"),
        ("--outbox-bytes-max", "0"),
        ("--transaction-seconds-max", "0"),
        ("--stop-seconds-max", "-1"),
    ):
        words = ("serve", str(tmp_path / "store"), "--socket", str(tmp_path / "s"), option, value)
        done = penstock(capsys, "store", *words)
        assert done.code == 2, (option, done.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("/dev/full", "(No space left on device)"),
        ("nowhere/items.json", "at nowhere/items.json (No such file or directory)"),
        ("/", "at / (Is a directory)"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, why: str
) -> None:
    with store.open(tmp_path, sweep_seconds=None) as db:
        db.create_table("t").partition_key("id", KeyType.STRING).execute()
        db.put("t", {"id": "a"})
    done = penstock(capsys, "store", "export", str(tmp_path), "t", "--output", file)
    assert done.code == 2
    assert why in done.err
    assert "make room" in done.err
    assert done.out == ""


def exported(folder: Path, *files: list[dict[str, Any]]) -> Path:
    """An export as DynamoDB makes it, downloaded."""
    (folder / "data").mkdir(parents=True)
    manifest = ""
    for number, items in enumerate(files):
        data = gzip.compress(b"".join(json.dumps({"Item": one}).encode() + b"\n" for one in items))
        (folder / "data" / f"part{number}.json.gz").write_bytes(data)
        manifest += (
            json.dumps(
                {
                    "itemCount": len(items),
                    "md5Checksum": base64.b64encode(
                        hashlib.md5(data, usedforsecurity=False).digest()
                    ).decode(),
                    "etag": "e",
                    "dataFileS3Key": f"backups/AWSDynamoDB/0123-ab/data/part{number}.json.gz",
                }
            )
            + "\n"
        )
    (folder / "manifest-files.json").write_text(manifest)
    summary = {"version": "2020-06-30", "itemCount": 3, "outputFormat": "DYNAMODB_JSON"}
    (folder / "manifest-summary.json").write_text(json.dumps(summary))
    return folder


def imported(
    place: Path, capsys: pytest.CaptureFixture[str], file: Path | str
) -> tuple[Done, list[str]]:
    """What the import of a file says, and the items that are there then."""
    done = penstock(capsys, "store", "import", str(place), "t", str(file))
    scan = penstock(capsys, "store", "scan", str(place), "t")
    return done, [json.loads(line)["id"] for line in scan.out.splitlines()]


PARTS: list[list[dict[str, Any]]] = [
    [{"id": {"S": "a"}}, {"id": {"S": "b"}}],
    [],
    [{"id": {"S": "c"}}],
]


@pytest.mark.parametrize("named", ["", "manifest-files.json", "manifest-summary.json"])
def test_an_export_that_dynamodb_made_is_imported_as_it_comes(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, named: str
) -> None:
    """Each data file that the manifest names; what else lies there is not of it."""
    folder = exported(tmp_path / "export", *PARTS)
    (folder / "data" / "other.json.gz").write_bytes(b"of another export")
    done, ids = imported(place, capsys, folder / named)
    assert (done.code, done.err) == (0, "imported 3 items\n")
    assert ids == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("data/part2.json.gz", None, "part2.json.gz is not there, one of the 3"),
        ("data/part2.json.gz", "x", "not as the export's manifest says"),
        ("manifest-files.json", None, "there is no manifest-files.json in"),
        ("manifest-files.json", "{}", "is not that of an export"),
        ("manifest-files.json", "", "the export has 3 items, and manifest-files.json"),
        (
            "manifest-files.json",
            '{"itemCount": 3, "md5Checksum": "%", "dataFileS3Key": "data/part0.json.gz"}',
            "is not that of an export",
        ),
        ("manifest-summary.json", '{"outputFormat": "ION"}', "the format ION"),
        (
            "manifest-summary.json",
            '{"exportType": "INCREMENTAL_EXPORT"}',
            "has changes and not items",
        ),
    ],
)
def test_of_an_export_that_is_not_whole_nothing_is_imported(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    content: str | None,
    why: str,
) -> None:
    folder = exported(tmp_path / "export", *PARTS)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    done, ids = imported(place, capsys, folder)
    assert done.code == 2
    assert why in " ".join(done.err.split())
    assert "Nothing was imported" in " ".join(done.err.split())
    assert ids == []


def test_a_file_with_fewer_items_than_the_manifest_says_is_told(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = exported(tmp_path / "export", *PARTS)
    manifest = folder / "manifest-files.json"
    manifest.write_text(manifest.read_text().replace('"itemCount": 1', '"itemCount": 2'))
    (folder / "manifest-summary.json").unlink()
    done, ids = imported(place, capsys, folder)
    assert done.code == 2
    assert "part2.json.gz has 1 items, and the export's manifest says 2" in done.err.replace(
        "\n", " "
    )
    assert ids == ["a", "b", "c"]


def test_a_file_that_is_compressed_or_begins_with_a_mark_is_read(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = b"\xef\xbb\xbf" + b"".join(b'{"Item": {"id": {"S": "%d"}}}\n' % n for n in range(60))
    file = tmp_path / "lines"
    for content in (lines, gzip.compress(lines)):
        file.write_bytes(content)
        assert imported(place, capsys, file)[0].err == "imported 60 items\n"
    file.write_bytes(gzip.compress(lines, compresslevel=0)[:-900])
    done, _ = imported(place, capsys, file)
    assert done.code == 2
    assert "is compressed with gzip, and damaged or cut off" in done.err.replace("\n", " ")
    assert "The 0 items" not in done.err
