"""The protocol's compressed form: the same is told, by fewer bytes, and a lie is an error."""

import random
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, SourceUnavailableError
from penstock.sources.mysql import MysqlSource, MysqlSourceConfig
from penstock.sources.mysql.connection import translated
from penstock.sources.mysql.doctor import doctor
from penstock.sources.mysql.frames import (
    FRAME_BYTES_MAX,
    Algorithm,
    MalformedFrameError,
    Unpacker,
    framed,
)
from penstock.testing.faults import CutProxy
from tests.mysql.support import Story, behind, caught_up, config_of, end_of, run, source_of
from tests.seeds import cases, seed_of
from tests.telling import follow
from tests_support.servers import MariaDbServer, MySqlServer, SqlServer

KNOWN: list[tuple[str, Algorithm]] = [("mariadb", "zlib"), ("mysql", "zlib"), ("mysql", "zstd")]
LARGE = 17 << 20
"""Bytes of a value that no frame and no packet holds alone."""


LOOKS = 1
"""BINLOG_DUMP_NON_BLOCK, among the flags of a dump."""


def is_dump(sent: bytes) -> bool:
    """Whether a client that sends this, in a frame, asks for the binlog from where it stands, and
    not for a look that ends by itself."""
    by_gtid, by_domain = b"\x1e", b"\x12"
    if sent[10:11] != b"\0":
        return False
    if sent[11:12] == by_gtid:
        return sent[12:13] == b"\0"
    return sent[11:12] == by_domain and len(sent) == 7 + 4 + 1 + 10 and not sent[16] & LOOKS


def is_dump_in_packets(sent: bytes) -> bool:
    return is_dump(bytes(7) + sent)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "algorithm"), KNOWN)
async def test_the_same_is_told_by_fewer_bytes_however_large_an_event_is(
    request: pytest.FixtureRequest, kind: str, algorithm: Algorithm
) -> None:
    """S1, S5: events of more than 16 MiB, which are several packets and frames."""
    server: SqlServer = request.getfixturevalue(kind)
    database: str = request.getfixturevalue(f"{kind}_database")
    include = [f"{database}.*"]
    with server.connect() as db:
        run(db, f"USE {database}", "CREATE TABLE a (id INT PRIMARY KEY, t LONGTEXT)")
        begun = await follow(source_of(server, include=include), Story(), lambda _: True)
        run(db, f"INSERT INTO a VALUES (1, REPEAT('abcdefgh', {LARGE} / 8)), (2, '')")
        # Digits that no algorithm makes small: frames of their own size.
        run(db, "INSERT INTO a VALUES (3, ''), (4, 'x')", "DELETE FROM a WHERE id = 2")
        run(db, *(f"UPDATE a SET t = CONCAT(t, SHA2({n}, 512)) WHERE id > 2" for n in range(20)))
        end = behind(end_of(db))
    stories: dict[str, tuple[Story, int]] = {}
    async with CutProxy(server.host, server.port) as proxy:
        for one in ("off", algorithm):
            proxy.cut(None, once=is_dump_in_packets if one == "off" else is_dump)
            config = config_of(server, include=include, port=proxy.port, compression=one)
            story = await follow(MysqlSource("db", config), Story(begun.position), end)
            stories[one] = (story, proxy.passed)
    (plain, bytes_plain), (packed, bytes_packed) = stories["off"], stories[algorithm]
    assert packed.events == plain.events
    assert len(packed.changes) == 45
    print(f"{kind}, {algorithm}: {bytes_packed} bytes on the wire instead of {bytes_plain}")
    assert bytes_plain > LARGE
    assert 1000 < bytes_packed < bytes_plain / 20


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "algorithm"), KNOWN)
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_cut_at_every_byte_of_a_frame_the_same_is_told(
    start_mariadb: Callable[..., MariaDbServer],
    start_mysql: Callable[..., MySqlServer],
    kind: str,
    algorithm: Algorithm,
    every: int,
) -> None:
    """S5, as without compression; of the bytes, one in so many, others each time. A server of its
    own: see test_cut."""
    first = random.Random(seed_of("cut frames")).randint(1, every)
    server: SqlServer = start_mariadb() if kind == "mariadb" else start_mysql()
    include = ["d.*"]
    with server.connect(autocommit=False) as db:
        run(db, "CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY, t TEXT)")
        begun = await follow(source_of(server, include=include), Story(), lambda _: True)
        run(db, "INSERT INTO a VALUES (1, REPEAT('x', 300)), (2, 'y')", "COMMIT")
        end = behind(end_of(db))
    async with CutProxy(server.host, server.port) as proxy:
        config = config_of(
            server, include=include, port=proxy.port, heartbeat_seconds=0.5, compression=algorithm
        )

        async def told(cut: int | None) -> Story:
            """What is told from the beginning, in as many sessions as it takes."""
            story = Story(begun.position)
            proxy.cut(cut, once=is_dump)
            while True:
                try:
                    return await follow(MysqlSource("db", config), story, end)
                except SourceUnavailableError:
                    story.crash()
                    if not server.process.running:
                        server.restart()

        expected = await told(None)
        whole = proxy.passed
        assert len(expected.changes) == 2
        for cut in range(first, whole, every):
            story = await told(cut)
            assert story.events == expected.events, f"cut at {cut}"
            assert proxy.broken == 1
    assert whole > 200


@pytest.mark.slow
async def test_what_a_server_does_not_speak_is_refused_and_never_left_out(
    mariadb: MariaDbServer, start_mysql: Callable[..., MySqlServer]
) -> None:
    """No setting is ignored: whoever asked for few bytes is told that they would be many."""
    plain = start_mysql(options=["--protocol-compression-algorithms=uncompressed"])
    servers: list[tuple[SqlServer, str]] = [(mariadb, "zstd"), (plain, "zstd"), (plain, "zlib")]
    for server, algorithm in servers:
        with pytest.raises(ConfigError, match=f"does not compress.*{algorithm}"):
            await follow(source_of(server, compression=algorithm), Story(), lambda _: True)
        (check,) = await doctor("db", config_of(server, compression=algorithm))
        assert (check.name, check.ok) == ("connection", False)


def certify(folder: Path) -> None:
    """A key and a certificate of its own, which a server of another user can read."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9"),
            *("-subj", "/CN=127.0.0.1", "-keyout", str(folder / "k.pem")),
            *("-out", str(folder / "c.pem")),
        ],
        check=True,
        capture_output=True,
    )
    for one in (folder, *folder.parents):
        one.chmod(0o755)
        if one.name.startswith("pytest-of-"):
            break
    (folder / "k.pem").chmod(0o644)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_tls_is_under_the_frames_and_answers_are_compressed_too(
    start_mariadb: Callable[..., MariaDbServer],
    start_mysql: Callable[..., MySqlServer],
    tmp_path: Path,
    kind: str,
) -> None:
    """A copy, whose rows are answers of the client library's, and the stream beside it."""
    options: list[str] = []
    if kind == "mariadb":
        certify(tmp_path)
        options = [f"--ssl-cert={tmp_path / 'c.pem'}", f"--ssl-key={tmp_path / 'k.pem'}"]
    server: SqlServer = (start_mariadb if kind == "mariadb" else start_mysql)(options=options)
    start = "snapshot" if kind == "mariadb" else "beginning"
    with server.connect() as db:
        run(db, "CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, t LONGTEXT)")
        run(db, f"INSERT INTO d.a VALUES (1, REPEAT('x', {LARGE})), (2, 'y')")
        for algorithm in ("zlib",) if kind == "mariadb" else ("zlib", "zstd"):
            source = source_of(
                server, start=start, compression=algorithm, tls="unverified", include=["d.*"]
            )

            def done(story: Story) -> bool:
                return len(story.changes) >= 2

            story = await follow(source, Story(), done)
            found = await caught_up(server, source, story)
            assert sorted(event.document_id for event in found.changes) == ["1", "2"]
            checks = await doctor("db", source.config)
            assert all(check.ok for check in checks if check.name in {"connection", "privileges"})


async def test_a_damaged_record_of_tls_is_a_lost_connection(
    mysql: MySqlServer, mysql_database: str
) -> None:
    """It was established: no file of ours is to blame, and a new one goes on."""
    include = [f"{mysql_database}.*"]
    async with CutProxy(mysql.host, mysql.port) as proxy:
        source = source_of(
            mysql, include=include, port=proxy.port, tls="unverified", heartbeat_seconds=0.2
        )
        story = await follow(source, Story(), lambda _: True)
        with mysql.connect(database=mysql_database) as db:
            run(db, "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")

            def damages(story: Story) -> bool:
                if story.changes:
                    proxy.damage()
                return False

            with pytest.raises(SourceUnavailableError, match=r"encrypted connection .* is damaged"):
                await follow(source, story, damages)
            run(db, "INSERT INTO a VALUES (2)")
            await follow(source, story, lambda story: len(story.changes) == 2)
    assert [event.document_id for event in story.changes] == ["1", "2"]


# --- frames ---------------------------------------------------------------------------------------


def packed(data: bytes, algorithm: Algorithm, *, number: int = 0) -> bytes:
    """One frame of `data`, as a server sends it."""
    small = zlib.compress(data) if algorithm == "zlib" else pa.compress(data, "zstd", asbytes=True)
    head = len(small).to_bytes(3, "little") + bytes([number]) + len(data).to_bytes(3, "little")
    return head + small


ALGORITHMS = st.sampled_from(("zlib", "zstd"))


@given(st.data(), ALGORITHMS, st.lists(st.binary(min_size=1, max_size=200), max_size=300))
@settings(max_examples=cases(100), deadline=None)
def test_frames_come_to_the_same_wherever_they_are_cut(
    data: st.DataObject, algorithm: Algorithm, parts: list[bytes]
) -> None:
    """S5: packed and not, more of them than their numbers count to."""
    first = data.draw(st.integers(0, 255))
    sent = b""
    for at, part in enumerate(parts):
        number = first + at & 0xFF
        frame = packed(part, algorithm, number=number)
        sent += frame if data.draw(st.booleans()) else framed(part, number)
    unpacker = Unpacker(algorithm)
    unpacker.answers(first - 1 & 0xFF)
    found, at = b"", 0
    while at < len(sent):
        size = data.draw(st.integers(1, 500))
        found += unpacker.take(sent[at : at + size])
        at += size
    assert found == b"".join(parts)


def lies(algorithm: Algorithm) -> dict[str, bytes]:
    """Frames that are not what they say."""
    good = packed(b"x" * 1000, algorithm)
    said = (1000).to_bytes(3, "little")

    def saying(size: int) -> bytes:
        return good.replace(said, size.to_bytes(3, "little"), 1)

    bomb = packed(bytes(FRAME_BYTES_MAX), algorithm)
    return {
        "more": saying(1001),
        "less": saying(999),
        "much more": saying(FRAME_BYTES_MAX),
        "a byte of sixteen million": bomb[:4] + (1).to_bytes(3, "little") + bomb[7:],
        "nothing": bytes(7),
        "another": bytes([*good[:3], 1, *good[4:]]),
        "noise": good[:7] + bytes(255 - byte for byte in good[7:]),
        "cut short": (len(good) - 8).to_bytes(3, "little") + good[3:-1],
        "with more behind": (len(good) - 6).to_bytes(3, "little") + good[3:] + b"x",
    }


@pytest.mark.parametrize("algorithm", ["zlib", "zstd"])
@pytest.mark.parametrize("lie", lies("zlib"))
def test_a_frame_that_lies_is_an_error_that_says_so(algorithm: Algorithm, lie: str) -> None:
    """S1: never a hang, never more bytes than it says, never a byte of it taken for good."""
    with pytest.raises(MalformedFrameError) as raised:
        Unpacker(algorithm).take(lies(algorithm)[lie])
    config = MysqlSourceConfig.model_validate({"user": "root", "compression": algorithm})
    error: Any = translated("db", config, raised.value)
    assert isinstance(error, SourceUnavailableError)
    assert "is damaged: a frame" in str(error)
    assert "nothing was skipped" in str(error)


@given(ALGORITHMS, st.data())
@settings(max_examples=cases(200), deadline=None)
def test_a_frame_with_a_byte_changed_is_an_error_or_what_it_was(
    algorithm: Algorithm, data: st.DataObject
) -> None:
    """Fuzzed: what is no error is another packet, which its own length and checksum prove."""
    good = bytearray(packed(bytes(range(256)) * 4, algorithm))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        found = Unpacker(algorithm).take(bytes(good))
    except MalformedFrameError:
        return
    assert len(found) <= FRAME_BYTES_MAX


def test_frames_of_ours_are_as_large_as_a_head_can_say() -> None:
    """A question of more than 16 MiB is several frames, numbered on."""
    data = bytes(FRAME_BYTES_MAX) + b"end"
    sent = framed(data, 255)
    assert (sent[:7], sent[-10:]) == (b"\xff\xff\xff\xff\0\0\0", b"\3\0\0\0\0\0\0end")
