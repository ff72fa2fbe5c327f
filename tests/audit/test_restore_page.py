"""docs/how-to/audit.md says how tables are restored, and what it tells to type works."""

import re
import shlex
from pathlib import Path

import pytest

from penstock.audit.trail import Trail
from penstock.cli.restore_asked import DOUBTS
from penstock.sources.mysql.connection import Connected
from tests.audit.restoring import Audited, restore
from tests.mysql.support import run
from tests_support.servers import MariaDbServer

PAGE = Path("docs/how-to/audit.md").read_text()
SECTION = PAGE.partition("## Go back in time\n")[2].partition("\n## ")[0]


def test_the_page_names_every_doubt() -> None:
    named = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", SECTION.partition("certain")[2], re.MULTILINE)
    assert {one for cell in named for one in re.findall(r"\w+", cell)} == set(DOUBTS)


@pytest.mark.server
async def test_what_the_page_tells_to_type_works(
    mariadb: MariaDbServer,
    trail: Trail,
    db: Connected,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(db, "CREATE DATABASE shop")
    audited = Audited(mariadb, trail, ["shop"], tmp_path)
    await audited.begin()
    run(
        db,
        *("USE shop", "SET timestamp = UNIX_TIMESTAMP('2026-01-31 11:00:00')"),
        "CREATE TABLE orders (id INT PRIMARY KEY, n INT)",
        "INSERT INTO orders VALUES (1, 1), (2, 2)",
        "SET timestamp = UNIX_TIMESTAMP('2026-02-01 11:00:00')",
        "UPDATE orders SET n = 3",
        "SET timestamp = DEFAULT",
    )
    await audited.catch_up()
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^\$ penstock audit restore (.+)$", SECTION, re.MULTILINE)
    assert len(lines) == 7
    for line in lines:
        target = f"mysql://root@127.0.0.1:{mariadb.port}"
        arguments = shlex.split(line.replace("mysql://restorer@db.internal", target))
        restore(audited, *arguments[1:], "--no-target")
    assert run(db, "SELECT * FROM shop_then.orders") == [(1, 1), (2, 2)]
    assert run(db, "SELECT * FROM shop.orders") == [(1, 1), (2, 2)]
    assert run(db, "SELECT * FROM shop_again.orders") == [(1, 3), (2, 3)]
    assert (tmp_path / "then.sql").exists()
    assert (tmp_path / "lake" / "then").exists()
