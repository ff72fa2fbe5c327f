"""A pipeline on a standalone cluster: a master and two workers, the service across TLS."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cli.compare import compare
from penstock.sources.script import ScriptSource, ScriptSourceConfig
from penstock.spark.table.arrow import compute
from tests.children import MODULE, Child
from tests.cli.service import SHOP, Service, configure
from tests.flight.blocks import BlockLog
from tests.seeds import seed_of
from tests.spark.cluster import (
    ROOT,
    SMALL,
    Certified,
    code_places,
    entries_of,
    history,
    serving,
    zipped,
)
from tests.spark.tables import fold, rows_of
from tests_support.servers import ServerUnavailableError, SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs/how-to/cluster.md").read_text()
TRANSACTIONS = 300


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is on the driver's machine alone."""
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def cluster(here: Path) -> Iterator[SparkCluster]:
    """A cluster whose workers see neither the driver's files nor Penstock: other machines."""
    try:
        with SparkCluster(hidden=[here, *code_places()]) as running:
            yield running
    except ServerUnavailableError as error:
        pytest.skip(str(error))


def said_on_the_page(program: str) -> list[str]:
    """The words of the page's command that begins with `program`."""
    commands = PAGE.replace("\\\n", "").splitlines()
    (command,) = (line for line in commands if line.startswith(f"$ {program} "))
    return shlex.split(command.removeprefix("$ "))


def replaced(words: Sequence[str], here: dict[str, str]) -> list[str]:
    """`words` with what stands for a user's own replaced by what is here."""
    assert set(here) <= set(words), set(here) - set(words)
    return [here.get(word, word) for word in words]


def test_spark_submit_runs_a_pipeline_of_the_configuration_as_the_page_says(
    cluster: SparkCluster, here: Path, tmp_path: Path
) -> None:
    """The service is another process, which others reach by TLS and with a token alone."""
    certified = Certified(tmp_path)
    shop = SHOP.format(rate=0).replace('"script"', f'"script"\ntransactions = {TRANSACTIONS}')
    config = configure(
        here,
        f'{shop}\n[serve.tls]\ncertificate = "{certified.certificate}"\nkey = "{certified.key}"\n'
        f'[access]\ntokens = "{certified.tokens}"\n'
        f'[pipelines.shop]\nsource = "shop"\npath = "lake"\nto = "table"\n',
    )
    (here / "penstock_pipeline.py").write_text(block("python"))
    zipped(here / "penstock.zip")
    with Service(config, "--one-process") as service:
        command = replaced(
            said_on_the_page("spark-submit"),
            {
                "spark-submit": str(Path(sys.executable).with_name("spark-submit")),
                "spark://master:7077": cluster.url,
                "penstock.example.com:50052": service.ready["flight"],
                "spark.executor.memory=4g": "spark.executor.memory=512m",
            },
        )
        settings = [
            f"--conf={name}={value}"
            for name, value in SMALL.items()
            if name != "spark.executor.memory"
        ]
        done = subprocess.run(
            [command[0], *settings, *command[1:], "--once", "--json"],
            cwd=here,
            env=certified.environment(here),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["sequence"] > 0
    truth = ScriptSource("shop", ScriptSourceConfig()).shop.state_at(TRANSACTIONS)
    for collection, documents in truth.items():
        rows = [json.loads(document) for document in documents.values()]
        assert compare(collection, rows, here / "lake" / collection).equal


def block(language: str) -> str:
    """The page's only example in that language."""
    _, _, rest = PAGE.partition(f"```{language}\n")
    return rest.partition("```")[0]


def of_collection(entries: pa.Table, name: str) -> pa.Table:
    return entries.filter(compute.equal(entries["collection"], name))


def test_tables_are_right_though_an_executor_and_a_worker_are_killed(
    cluster: SparkCluster, here: Path, tmp_path: Path
) -> None:
    """Invariant 7, on other machines: executors have neither our files nor our code, which Spark
    hands them."""
    seed = seed_of("cluster")
    dice = random.Random(seed)
    log = BlockLog(block_events=500)
    log.append(history(dice, commits=21_000))
    certified = Certified(tmp_path)
    archive, lake = zipped(here / "penstock.zip"), here / "killed"
    with serving(log, certified) as address:
        command = (*MODULE, "tests.spark.cluster_driver", cluster.url, address, lake, archive)
        with Child(*command, cwd=ROOT, env=certified.environment(here)) as driver:
            assert driver.line() == "penstock: False, files: False", driver.tail()
            # The first batch has begun or will soon; then one is done, and the next in work.
            os.kill(dice.choice(cluster.executors()), signal.SIGKILL)
            driver.line()
            dice.choice(cluster.workers).kill()
            assert driver.wait() == 0, driver.tail()
            assert driver.rest().split()[-1] == str(log.head)
    whole = entries_of(log)
    for collection in ("orders", "lines"):
        assert rows_of(lake / collection) == fold(of_collection(whole, collection))
    assert not (here / "killed_rejects").exists()
