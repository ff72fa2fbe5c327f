"""Tables keep what they promise in folders; and in a catalog, with Delta's own jars on Spark."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pydantic import ValidationError

from penstock.cli.places import beside, clash
from penstock.errors import ConfigError
from penstock.spark.config import (
    ReplicatePipelineConfig,
    TablePipelineConfig,
    folder_of,
    table_name_of,
)
from penstock.spark.table.catalog import Catalog
from penstock.spark.table.lake import Folders, Lake, lake_of
from tests.spark.cluster import ROOT
from tests.spark.lake_commands import LakeCommands, LongLakeCommands
from tests.spark.lake_contract import LakeContract, LongLakeContract, Place, World
from tests.spark.tables import change
from tests_support.servers import DELTA, ServerUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FolderPlace:
    """A folder."""

    spark = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def config(self, *collections: str, **more: Any) -> TablePipelineConfig:
        return TablePipelineConfig(
            source="shop", collections=collections, path=str(self._folder / "lake"), **more
        )

    def lake(self, config: TablePipelineConfig, name: str = "p") -> Lake:
        return lake_of(config, name)

    def path(self, config: TablePipelineConfig, table: str) -> str:
        folders = Folders(config, "p")
        if table in {"rejects", "standing"}:
            return (folders.rejects() if table == "rejects" else folders.standing()).path
        return folders.table(table).path


class TestFolders(LakeContract, LongLakeContract, LakeCommands, LongLakeCommands):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return FolderPlace(tmp_path)


def test_a_folder_that_does_not_say_its_name_has_a_table_that_does(tmp_path: Path) -> None:
    fits, long = "a" * 255, "ж" * 43
    assert folder_of(fits) == fits
    assert len(folder_of(long)) == 255
    assert folder_of(long) != folder_of(f"{long}ж")
    world = World(FolderPlace(tmp_path), long, "orders")
    for key in range(3):
        fields = {f"f{key}": 1}  # a merge that adds a column has delta-rs forget the name
        world.entries.commit(change(key, "insert", {"_id": key, **fields}, collection=long))
        world.apply(key)
        table = DeltaTable(tmp_path / "lake" / folder_of(long))
        assert table.metadata().name == long
        assert table.to_pyarrow_table().num_rows == key + 1


@pytest.mark.parametrize(
    ("uri", "length_max"), [("postgresql://h/d", 63), ("mysql://h/d", 64), ("mariadb://h/d", 64)]
)
def test_a_table_of_a_replica_has_a_name_that_its_server_takes(uri: str, length_max: int) -> None:
    def config(**more: str) -> ReplicatePipelineConfig:
        return ReplicatePipelineConfig.model_validate(
            {"to": "replicate", "source": "shop", "uri": uri, **more}
        )

    fits = "a" * length_max
    assert config().table_of("db", fits) == fits
    long = config().table_of("db", f"{fits}a")
    assert len(long) == length_max
    assert long != config().table_of("db", f"{fits}b")
    told = config(table="{database}_{collection}")
    assert told.table_of("db", fits) != told.table_of("dc", fits)
    for letter in "ж中-":
        wide = config().table_of("db", letter * 65)
        assert len(wide.encode() if length_max == 63 else wide) <= length_max


def catalog_cases(folder: Path, *arguments: str) -> None:
    """Run the same promises, and more, in a Spark that has Delta's jars."""
    try:
        DELTA.paths()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    cases = [f"tests/spark/{name}.py" for name in ("catalog_cases", "catalog_commands")]
    options = ("-n0", "--timeout=0", "-p", "no:cacheprovider", "--basetemp", str(folder / "cases"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments, *cases],
        cwd=ROOT,
        # A test runner's own settings are not the other's.
        env={
            **{name: value for name, value in os.environ.items() if "PYTEST" not in name},
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TMPDIR": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stderr[-5_000:]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tables_in_a_catalog_promise_the_same(tmp_path: Path) -> None:
    catalog_cases(tmp_path, "-m", "not soak")


@pytest.mark.spark
@pytest.mark.soak
def test_tables_in_a_catalog_promise_the_same_when_drivers_are_killed(tmp_path: Path) -> None:
    catalog_cases(tmp_path, "-m", "soak")


# --- what a configuration may say ---------------------------------------------------------------


def written(**more: Any) -> TablePipelineConfig:
    return TablePipelineConfig.model_validate({"source": "shop", **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "path is missing"),
        ({"catalog": "a.b.c"}, "'a.b.c' is no schema"),
        ({"catalog": "sa les"}, "is no schema"),
        ({"catalog": "main.sales", "path": "lake"}, "leave path out"),
        ({"catalog": "main.sales", "standing": "x"}, "leave standing out"),
        ({"catalog": "main.sales", "rejects": "x"}, "leave rejects out"),
        ({"catalog": "main.sales", "storage_options": {"a": "b"}}, "leave storage_options out"),
        ({"catalog": "main.sales", "first_load": "source"}, "penstock snapshot"),
        ({"catalog": "main.sales", "verify_against": "source"}, "have them compared with the log"),
        ({"catalog": "s", "collections": ["Orders", "orders"]}, "Orders and orders would be one"),
    ],
)
def test_what_a_catalog_does_not_go_with_is_refused_by_name(
    more: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        written(**more)


def test_what_is_done_in_folders_only_is_refused_in_a_catalog() -> None:
    config = written(catalog="main.sales")
    with pytest.raises(ConfigError, match=r"in the catalog, in main\.sales"):
        config.table_path("orders")
    for name in ("standing_path", "rejects_path", "load_path", "verified_path"):
        with pytest.raises(ConfigError, match=r"in the catalog, in main\.sales"):
            getattr(config, name)
    with pytest.raises(ConfigError, match="only Spark sees them"):
        lake_of(config, "p")


def test_pipelines_may_share_a_schema_and_it_is_no_folder() -> None:
    """Each table says whose it is."""
    config = written(catalog="main.sales")
    assert beside(Path("/etc"), config) == config
    assert clash({"p": config, "q": config}) is None


def test_a_spark_without_deltas_jars_is_refused_before_anything_is_read(
    spark: "SparkSession",
) -> None:
    for ask in (Catalog.see, Catalog.check):
        with pytest.raises(ConfigError, match=r"in spark_catalog\.default \([\w ()]+\)\. Nothing"):
            ask(Catalog(spark, "default", "p"))
    assert not spark.catalog.tableExists("penstock_standing_p")


def test_a_table_has_a_name_that_every_catalog_takes() -> None:
    names = ["orders", "orderItems", "order-items", "system.views", "ä", "a b`c"]
    assert [table_name_of(name) for name in names] == [
        "orders",
        "orderItems",
        "order__2ditems",
        "system__2eviews",
        "__c3__a4",
        "a__20b__60c",
    ]
