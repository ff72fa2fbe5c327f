"""GET /health, /ready and /metrics of a running service, as monitoring asks for them."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient

from penstock.cli.tail import oldest
from penstock.client import follow_sync
from penstock.client.flight import LogClient
from penstock.event import Kind
from tests.children import standing_still
from tests.cli.service import Service, configure, penstock
from tests.waiting import wait_until
from tests_support.servers import MongoReplicaSet, MySqlServer

SHOP = """
[log]
path = "log"
free_bytes_min = 0
[sources.shop]
type = "script"
transactions = 40
heartbeat_seconds = 0.2
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
{more}
"""


def get(address: str, path: str, *, host: str | None = None) -> tuple[int, str]:
    """Status and body of one GET."""
    asked = urllib.request.Request(f"http://{address}{path}")
    if host is not None:
        asked.add_header("Host", host)
    try:
        with urllib.request.urlopen(asked) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(page: str) -> dict[str, float]:
    """Every sample of an exposition; a name that comes twice with the same labels is refused."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found
            found[name] = sample.value
    return found


def state_of(address: str) -> str:
    """What the only source is doing, as /health tells."""
    backends = json.loads(get(address, "/health")[1])["backends"]
    return str(backends[0]["state"]) if backends else ""


@pytest.mark.slow
def test_a_known_workload_shows_in_the_metrics_of_both_processes(tmp_path: Path) -> None:
    """P27: every counter has its value, and one page shows both processes."""
    more = '[log]\npath = "log"\nfree_bytes_min = 0\nretention = "1h"\n[capture]\n'
    quota = 'quotas = { shop = "1GiB" }\n'
    text = SHOP.format(more="").replace('[log]\npath = "log"\nfree_bytes_min = 0\n', more + quota)
    with Service(configure(tmp_path, text)) as service:
        address = service.ready["http"]
        with LogClient(service.ready["flight"]) as client:
            wait_until(lambda: state_of(address) == "finished", "the end of the shop")
            head = client.bounds().head
        # What Penstock itself says of the source (started, stopped) is none of the source's events.
        events, commits = 0, set[int]()
        with follow_sync(
            service.ready["grpc"], after=oldest(service.ready["flight"]), control_events=True
        ) as changes:
            for change in changes:
                if change.kind is not Kind.SYSTEM:
                    events += 1
                    commits.add(change.commit)
                if change.sequence == head:
                    break
        code, page = get(address, "/metrics")
        assert code == 200
        found = samples(page)
    assert found['penstock_events_ingested_total{source="shop"}'] == events
    assert found['penstock_commits_ingested_total{source="shop"}'] == len(commits) == 40
    assert found["penstock_capture_up"] == 1
    assert found['penstock_batch_size_sum{source="shop"}'] >= events
    batches = found['penstock_batch_size_count{source="shop"}']
    assert found['penstock_ingestion_latency_seconds_count{source="shop"}'] == batches
    assert found['penstock_queue_depth{component="hand_over",source="shop"}'] == 0
    assert 'penstock_backpressure_events_total{level="critical",source="shop"}' in found
    assert found["penstock_append_seconds_count"] >= batches
    assert found['penstock_source_over_quota{source="shop"}'] == 0
    assert found["penstock_log_bytes"] > 0
    assert found["penstock_log_head_sequence"] == head
    assert found['penstock_publish_latency_seconds_count{protocol="grpc"}'] > 0
    assert found['penstock_events_published_total{protocol="grpc"}'] >= head
    assert found["penstock_state_lag_events"] >= 0
    assert found["penstock_state_failed"] == 0
    assert found["penstock_capture_process_resident_memory_bytes"] > 0
    assert found["penstock_serve_process_resident_memory_bytes"] > 0


@pytest.mark.slow
def test_health_is_200_with_capture_and_503_without(tmp_path: Path) -> None:
    with Service(configure(tmp_path, SHOP.format(more=""))) as service:
        address = service.ready["http"]
        code, body = get(address, "/health")
        said = json.loads(body)
        assert (code, said["status"]) == (200, "ok")
        assert [one["name"] for one in said["backends"]] == ["shop"]
        assert said["currentRows"]["status"] == "ok"
        assert {"version", "startedAt", "uptime", "lag", "consumers", "bufferSize"} <= set(said)
        assert get(address, "/ready") == (200, "ready\n")
        with standing_still(service.ready["pids"]["capture"]):
            code, body = get(address, "/health")
            assert (code, json.loads(body)["status"]) == (503, "unhealthy")
            assert get(address, "/ready")[0] == 503
            assert samples(get(address, "/metrics")[1])["penstock_capture_up"] == 0


IDLE_SECONDS = 3
LAG = 'penstock_source_lag_seconds{{source="{}"}}'
IDLE = f"""
[serve]
grpc = "127.0.0.1:0"
flight = "127.0.0.1:0"
http = "127.0.0.1:0"
health_lag_max = {IDLE_SECONDS}
[sources.mongo]
type = "mongodb"
uri = "%s"
database = "%s"
heartbeat_seconds = 0.2
[sources.mysql]
type = "mysql"
user = "root"
port = %d
include = ["%s.*"]
heartbeat_seconds = 0.2
"""


@pytest.mark.slow
def test_an_idle_database_is_not_behind_by_metric_status_and_health(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mongo: MongoReplicaSet,
    mongo_client: MongoClient[dict[str, Any]],
    mongo_database: str,
    mysql: MySqlServer,
    mysql_database: str,
) -> None:
    """Its last change lies further back than the limit."""
    with mysql.connect() as db, db.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {mysql_database}.a (id INT PRIMARY KEY)")
    text = IDLE % (mongo.uri, mongo_database, mysql.port, mysql_database)
    config = configure(tmp_path, text)
    with Service(config, "--one-process") as service:
        address = service.ready["http"]

        def told() -> dict[str, dict[str, Any]]:
            done = penstock(capsys, "status", "--config", str(config), "--json")
            return {one["source"]: one for one in json.loads(done.out)["sources"]}

        wait_until(lambda: all(one["state"] == "running" for one in told().values()))
        mongo_client[mongo_database]["a"].insert_one({"_id": 1})
        with mysql.connect() as db, db.cursor() as cursor:
            cursor.execute("SET timestamp = 1000000000")  # long ago, by the server's own account
            cursor.execute(f"INSERT INTO {mysql_database}.a VALUES (1)")
            db.commit()

        def idle() -> bool:
            # What an idle primary writes by itself, once in ten seconds.
            mongo_client["admin"].command("appendOplogNote", 1, data={})
            sources = told()
            since = [one["sinceChangeSeconds"] or 0 for one in sources.values()]
            lags = [one["lagSeconds"] for one in sources.values()]
            page = samples(get(address, "/metrics")[1])
            lags += [page.get(LAG.format(name)) for name in sources]
            code, body = get(address, "/health")
            health = json.loads(body)
            lags += [one["lag"] for one in health["backends"]]
            well = (code, health["status"]) == (200, "ok")
            behind = [lag for lag in lags if lag is None or lag >= IDLE_SECONDS]
            return well and len(lags) == 6 and not behind and min(since) > 2 * IDLE_SECONDS

        wait_until(idle)


@pytest.mark.slow
def test_the_paths_are_the_configured_ones(tmp_path: Path) -> None:
    """P34: a path that is configured is the path."""
    more = 'health_path = "/up"\nready_path = "/go"\nmetrics_path = "/numbers/all"'
    with Service(configure(tmp_path, SHOP.format(more=more))) as service:
        address = service.ready["http"]
        assert [get(address, path)[0] for path in ("/up", "/go", "/numbers/all")] == [200] * 3
        assert get(address, "/health")[0] == 404


@pytest.mark.slow
def test_a_page_of_another_host_name_is_refused(tmp_path: Path) -> None:
    """A browser that was led here under a name of its own gets nothing."""
    with Service(configure(tmp_path, SHOP.format(more=""))) as service:
        assert get(service.ready["http"], "/metrics", host="attacker.example")[0] == 400


@pytest.mark.slow
def test_no_http_is_served_where_it_is_off(tmp_path: Path) -> None:
    text = SHOP.format(more="").replace('http = "127.0.0.1:0"', 'http = "off"')
    with Service(configure(tmp_path, text)) as service:
        assert service.ready["http"] == "off"


@pytest.mark.parametrize("setting", ['health_path = "up"', 'ready_path = "/metrics"'])
def test_paths_that_cannot_be_are_refused(tmp_path: Path, setting: str) -> None:
    from penstock.cli.config import load
    from penstock.errors import ConfigError

    with pytest.raises(ConfigError, match=r"is not a path|must differ"):
        load(configure(tmp_path, SHOP.format(more=setting)))
