"""`penstock zero propose` prints tables that take the rows that they were made from."""

import asyncio
import json
import tomllib
from pathlib import Path

import pytest

from penstock import extjson
from penstock.capture import pump
from penstock.cli.config import load
from penstock.log import LmdbLog
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from penstock.state.browsing import browse
from penstock.state.config import StateConfig
from penstock.state.keeper import StateKeeper
from penstock.wire import Stream
from penstock.zero.changes import Teller, creation
from penstock.zero.config import ZeroTablesConfig
from penstock.zero.mapping import Mapping
from penstock.zero.proposing import Proposer, toml
from tests.cli.service import configure, penstock
from tests.zero.folding import Replica


async def fill(config: Path) -> None:
    settings = load(config)
    async with LmdbLog(settings.log) as log:
        source = ScriptSource("shop", ScriptSourceConfig(transactions=300, events_per_second=0))
        await pump(source, log)
        keeper = StateKeeper(log, settings.log.path, StateConfig(free_bytes_min=0, interval=0))
        while keeper.step():
            pass
        keeper.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = configure(tmp_path)
    asyncio.run(fill(path))
    return path


def test_a_proposal_is_a_configuration_whose_tables_take_all_rows(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    done = penstock(capsys, "zero", "propose", "shop", "--config", str(config))
    assert done.code == 0, done.err
    proposed = tomllib.loads(done.out)["serve"]["zero"]
    mapping = Mapping(ZeroTablesConfig.model_validate(proposed))
    sampling, replica, rows = mapping.sampling(), Replica(), 0
    teller = Teller(sampling.tables(), mapping)
    for table in teller.tables:
        for message in creation(table):
            replica.apply(message)
    announced = teller.tables
    for row in browse(load(config).log.path, "shop", rows_max=1 << 20):
        stream = Stream(row.source, row.database, row.tenant, row.collection)
        assert row.full_document is not None
        for message in teller.row(stream, bytes(row.key), bytes(row.full_document)):
            replica.apply(message)
        rows += 1
    told = sum(len(table.rows) for table in replica.tables.values())
    assert told == rows > 100
    columns = [table.columns for table in announced]
    assert [table.columns for table in teller.tables] == columns


def test_a_proposal_as_json_says_how_many_rows_it_is_of(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    done = penstock(
        capsys, "zero", "propose", "shop", "--rows", "3", "--json", "--config", str(config)
    )
    said = json.loads(done.out)
    assert said["source"] == "shop"
    assert {table["rows"] for table in said["tables"]} <= {1, 2, 3}
    assert all(table["key"] for table in said["tables"])


def test_no_source_and_no_rows_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = configure(tmp_path)
    done = penstock(capsys, "zero", "propose", "none", "--config", str(path))
    assert done.code == 2
    assert "there are: shop" in done.err
    done = penstock(capsys, "zero", "propose", "shop", "--config", str(path))
    assert done.code == 2
    assert "penstock status" in done.err


def test_what_is_mixed_null_or_no_table_has_a_remark() -> None:
    proposer = Proposer("shop")
    for number in range(3):
        key = b'{"_id":%d}' % number
        odd = {"a b": "x", "n": [1, 1.5, "x"][number], "later": None, 'q"\\\n': True}
        proposer.add("db", "things", key, bytes(extjson.encode({"_id": number, **odd})))
        proposer.add("db", "keyless", b'{"_row":"%d"}' % number, b'{"a":1}')
        proposer.add("other", "things", key, b'{"_id":1}')
    tables = {table.collection: table for table in proposer.tables()}
    assert [one.name for one in tables.values()] == ["keyless", "things", "things_2"]
    assert tables["db.keyless"].columns == ()
    assert "no primary key" in tables["db.keyless"].note
    notes = {one.path: (one.name, one.type, one.note) for one in tables["db.things"].columns}
    assert notes["n"] == ("n", "json", "int 1, double 1, text 1")
    assert notes["a b"] == ("a_b", "text", "")
    assert "later" in tables["db.things"].note
    written = toml(proposer.tables())
    parsed = ZeroTablesConfig.model_validate(tomllib.loads(written)["serve"]["zero"])
    assert parsed.tables["things"].columns["a_b"].path == "a b"
    assert 'q"\\\n' in {one.path for one in parsed.tables["things"].columns.values()}
