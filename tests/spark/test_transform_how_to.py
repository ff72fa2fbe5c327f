"""docs/how-to/transform.md: what it shows works as it says."""

import hashlib
import hmac
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli.config import load
from penstock.serve.flight import FlightServer
from penstock.spark.run import run_pipeline
from penstock.spark.table.chunk import INPUT_COLUMNS
from penstock.spark.transform.stage import Stage
from tests.flight.blocks import BlockLog
from tests.spark.tables import change, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "transform.md").read_text()
SALT = "a salt for this page"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_is_true(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SALT", SALT)
    monkeypatch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType]
    for code in blocks("python"):
        name = code.split()[1]
        (tmp_path / name).write_text(code)
    file = tmp_path / "penstock.toml"
    file.write_text("\n".join(['[sources.shop]\ntype = "script"\n', *blocks("toml")]))
    pipelines = load(file).table_pipelines
    assert set(pipelines) == {"shop", "live", "totals", "regions", "lines"}
    for name, config in pipelines.items():
        Stage(name, config, INPUT_COLUMNS).check(spark)
    given, made = (json.loads(text) for text in blocks("json"))
    log = BlockLog()
    draft = {**given, "_id": 2, "status": "draft"}
    log.append([[change(1, "insert", given), change(2, "insert", draft)]])
    server = FlightServer(log)
    server.start()
    try:
        run_pipeline("shop", pipelines["shop"], server.address, spark=spark, once=True)
    finally:
        server.stop()
    (row,) = rows_of(pipelines["shop"].path).values()
    digest = hmac.new(SALT.encode(), given["email"].encode(), hashlib.sha256)
    made["email"] = digest.hexdigest()
    made["total"] = {"$numberDecimal": "12.500000000000000000"}
    assert row == made
