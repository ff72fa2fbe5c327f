"""What `penstock doctor` promises: whatever is not right is named with its fix, and left alone."""

import asyncio
import gc
import json
import shlex
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from tests.cli.service import COMMAND, configure, penstock
from tests_support.servers import MongoReplicaSet, free_ports

FREE_PORTS = '\n[serve]\ngrpc = "127.0.0.1:0"\nflight = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\n'


def examined(
    capsys: pytest.CaptureFixture[str], folder: Path, text: str
) -> tuple[int, list[dict[str, Any]]]:
    done = penstock(capsys, "doctor", "--config", str(configure(folder, text)), "--json")
    return done.code, [json.loads(line) for line in done.out.splitlines()]


def test_a_simulated_shop_needs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, findings = examined(capsys, tmp_path, '[sources.shop]\ntype = "script"' + FREE_PORTS)
    assert code == 0
    assert {one["level"] for one in findings} == {"ok"}
    assert not (tmp_path / "data").exists()


def test_a_service_without_a_source_is_not_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, findings = examined(capsys, tmp_path, FREE_PORTS)
    assert code == 1
    assert [one["about"] for one in findings if one["level"] != "ok"] == ["sources"]


def test_a_port_that_is_taken_is_named_with_its_fix(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, findings = examined(capsys, tmp_path, f'[serve]\ngrpc = "{address}"')
    assert code == 1
    (finding,) = [one for one in findings if one["about"] == "serve.grpc"]
    assert address in finding["detail"]
    assert "grpc under [serve]" in finding["fix"]


def test_a_disk_without_space_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, findings = examined(capsys, tmp_path, '[log]\nfree_bytes_min = "900TiB"')
    assert code == 1
    (finding,) = [one for one in findings if one["name"] == "space"]
    assert finding["level"] == "error"
    assert finding["fix"]


def test_a_log_that_cannot_be_made_there_is_an_error_to_doctor_and_a_sentence_to_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Under a file, or in the place of one."""
    (tmp_path / "file").write_text("")
    source = '[sources.shop]\ntype = "script"\n' + FREE_PORTS
    for path in ("file/log", "file"):
        text = f'[log]\npath = "{path}"\n{source}'
        code, findings = examined(capsys, tmp_path, text)
        (finding,) = [one for one in findings if one["about"] == "log"]
        assert (code, finding["level"], finding["name"]) == (1, "error", "path")
        done = penstock(
            *(capsys, "run", "--config", str(configure(tmp_path, text)), "--one-process")
        )
        assert done.code == 2
        said = " ".join(done.err.split())
        assert "cannot be written to: " in said
        assert "Name a folder that this user may write to" in said
        assert "Traceback" not in said


READ_ONLY = """
set -e
mount --bind "$1/log" "$1/view"
mount -o remount,bind,ro "$1/view"
for name in $2; do mount --bind "$1/log/$name" "$1/view/$name"; done
shift 2
"$@" doctor || echo "doctor $?"
"$@" run --one-process || echo "run $?"
"$@" run || echo "run $?"
"""
"""In mounts of its own: the log is read-only, but for some of its files. By root, too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("writable", "cause"),
    [
        ("", "writer.lock cannot be written to: Read-only file system"),
        ("lock.mdb writer.lock", "view cannot be opened (Read-only file system)"),
        ("data.mdb lock.mdb writer.lock", "view cannot be written to: Read-only file system"),
    ],
)
def test_a_log_that_is_read_only_is_an_error_to_doctor_and_a_sentence_to_run(
    tmp_path: Path, writable: str, cause: str
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mounts of one's own here")
    text = '[log]\npath = "view"\n[sources.shop]\ntype = "script"\n' + FREE_PORTS
    config = configure(tmp_path, text)
    (tmp_path / "view").mkdir()
    asyncio.run(LmdbLog(LogConfig(path=tmp_path / "log")).close())
    program = tmp_path / "penstock"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@" --config {config}\n')
    program.chmod(0o755)
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(tmp_path), writable),
            str(program),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("error   log: path: ") == 1
    assert "mounted read-only" in done.stdout
    ends = [line for line in done.stdout.splitlines() if line.startswith(("doctor", "run"))]
    assert len(ends) == 3
    assert ends[0] == "doctor 1"
    assert ends[1] == ends[2]
    said = " ".join(done.stderr.split())
    assert cause in said
    assert said.count("error: ") >= 2, said  # of two processes, the first to meet it
    assert "Traceback" not in said
    assert "did not stop in time" not in said


@pytest.mark.parametrize("path", ["/proc/penstock", "/sys/penstock"])
def test_a_log_where_no_file_can_be_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: str
) -> None:
    source = f'[log]\npath = "{path}"\n[sources.shop]\ntype = "script"\n{FREE_PORTS}'
    code, findings = examined(capsys, tmp_path, source)
    (finding,) = [one for one in findings if one["about"] == "log"]
    assert (code, finding["level"], finding["name"]) == (1, "error", "path")


def test_an_archive_and_files_of_access_that_cannot_be_there_are_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    text = '[archive]\npath = "file/archive"\n[access]\ntokens = "file/tokens.json"\n'
    text += 'log = "file/access.log"\n[sources.shop]\ntype = "script"\n' + FREE_PORTS
    code, findings = examined(capsys, tmp_path, text)
    wrong = {f"{one['about']}.{one['name']}": one for one in findings if one["level"] != "ok"}
    assert (code, sorted(wrong)) == (1, ["access.log", "access.tokens", "archive.path"])
    assert "/file is no folder" in wrong["archive.path"]["detail"]
    assert "/file is no folder" in wrong["access.log"]["detail"]
    said = wrong["access.tokens"]["detail"]
    assert "file/tokens.json cannot be read: Not a directory. Nobody was let in." in said
    assert examined(capsys, tmp_path, text.replace("file/", "new/"))[0] == 0
    assert not (tmp_path / "new").exists()
    in_place_of_one = text.replace("file/archive", "file").replace("file/", "new/")
    assert examined(capsys, tmp_path, in_place_of_one)[0] == 1


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_store_of_published_copies_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, mongo: MongoReplicaSet, mongo_database: str
) -> None:
    (port,) = free_ports(1)
    source = '[sources.shop]\ntype = "script"\n' + FREE_PORTS
    for uri, expected, what in (
        (mongo.uri, (0, "ok"), "published as a: nothing yet"),
        (f"mongodb://127.0.0.1:{port}", (1, "error"), f"127.0.0.1:{port} refuses connections"),
    ):
        text = f'[checkpoint]\nstore = "mongodb"\ninstance = "a"\nuri = "{uri}"\ntimeout = 2\n'
        text += f'database = "{mongo_database}"\n{source}'
        code, findings = examined(capsys, tmp_path, text)
        (finding,) = [one for one in findings if one["about"] == "checkpoint"]
        assert ((code, finding["level"]), what in finding["detail"]) == (expected, True), finding
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_the_database_of_a_replica_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, mongo: MongoReplicaSet, mongo_database: str
) -> None:
    (port,) = free_ports(1)
    away = f"127.0.0.1:{port}"
    pipelines = {
        "fine": mongo.uri.replace("/?", f"/{mongo_database}?"),
        "mongo": f"mongodb://{away}/d",
        "mysql": f"mysql://u:s3cret@{away}/d",
        "postgres": f"postgresql://u:s3cret@{away}/d",
    }
    text = '[sources.shop]\ntype = "script"\n' + FREE_PORTS
    for name, uri in pipelines.items():
        text += f'[pipelines.{name}]\nto = "replicate"\nsource = "shop"\nuri = "{uri}"\n'
        text += "answer_seconds = 1\n"
    code, findings = examined(capsys, tmp_path, text)
    found = {one["about"]: one for one in findings if one["name"] == "destination"}
    assert code == 1
    assert found.pop("pipelines.fine")["level"] == "ok"
    assert len(found) == 3
    for one in found.values():
        assert (one["level"], away in one["detail"]) == ("error", True), one
        assert "s3cret" not in one["detail"]
    assert f"nothing listens at {away}" in found["pipelines.mysql"]["detail"]
    gc.collect()


def test_a_warning_is_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = '[log]\nretention_bytes = "900TiB"\n[sources.shop]\ntype = "script"' + FREE_PORTS
    done = penstock(capsys, "doctor", "--config", str(configure(tmp_path, text)))
    assert done.code == 0
    assert done.out.count("warning log: space: ") == 1
    assert "    fix: free space" in done.out
    assert "\nerror" not in done.out


def test_a_real_mongodb_is_looked_at_by_its_own_doctor(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, mongo: MongoReplicaSet
) -> None:
    _, findings = examined(
        capsys, tmp_path, f'[sources.orders]\ntype = "mongodb"\nuri = "{mongo.uri}"'
    )
    mine = {one["name"]: one["level"] for one in findings if one["about"] == "sources.orders"}
    assert mine["connection"] == mine["privileges"] == "ok"
