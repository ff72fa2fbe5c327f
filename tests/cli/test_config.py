"""What penstock.toml promises: a mistake is named before anything starts, and no secret shown."""

import inspect
from pathlib import Path

import pytest

from penstock.cli.config import Settings, load
from penstock.errors import ConfigError
from penstock.sources.script import ScriptSource, ScriptSourceConfig

PIPELINE = "[sources.shop]\ntype = 'script'\n[pipelines.o]\nsource = 'shop'\npath = 'o'\n"
MARKED = "apply_as_deletes = 'gone'\ndocument_schema = 'gone BOOLEAN'\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "penstock.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), environment=environment)
    message = str(caught.value)
    assert "Nothing was started" in message
    assert message.startswith(str(folder / "penstock.toml"))
    return message


def accepted(folder: Path, text: str, **environment: str) -> Settings:
    return load(write(folder, text), environment=environment)


def test_an_empty_file_is_no_configuration(tmp_path: Path) -> None:
    """As a reload of a file that is just being written would stop every source."""
    for text in ("", "# to be done\n"):
        assert "is empty" in refused(tmp_path, text)


def test_what_is_not_written_has_defaults(tmp_path: Path) -> None:
    settings = accepted(tmp_path, "[serve]")
    assert settings.sources == {}
    assert settings.serve.grpc == "127.0.0.1:50051"
    assert settings.log.path == tmp_path / "data/log"


def test_a_source_is_configured_by_the_class_of_its_type(tmp_path: Path) -> None:
    settings = accepted(tmp_path, '[sources.shop]\ntype = "script"\nseed = 7')
    source = settings.sources["shop"]
    assert source.config == ScriptSourceConfig(seed=7)
    opened = source.open()
    assert isinstance(opened, ScriptSource)
    assert opened.name == "shop"


def test_paths_are_relative_to_the_file_and_urls_stay(tmp_path: Path) -> None:
    settings = accepted(
        tmp_path,
        """
        [log]
        path = "deep/log"
        [sources.shop]
        type = "script"
        [pipelines.a]
        source = "shop"
        path = "lake/a"
        rejects = "wrong/a"
        [pipelines.b]
        source = "shop"
        path = "s3://b/c"
        rejects = "s3://b/wrong"
        [pipelines.c]
        source = "shop"
        path = "lake/c"
        """,
    )
    assert settings.log.path == tmp_path / "deep/log"
    tables = settings.table_pipelines
    assert tables["a"].path == str(tmp_path / "lake/a")
    assert tables["a"].rejects_path == str(tmp_path / "wrong/a")
    assert tables["b"].path == "s3://b/c"
    assert tables["b"].rejects_path == "s3://b/wrong"
    assert tables["c"].rejects_path == str(tmp_path / "lake/c_rejects")


def test_sizes_and_durations_are_read_as_written(tmp_path: Path) -> None:
    settings = accepted(tmp_path, '[log]\nretention = "3d"\nretention_bytes = "2GiB"')
    assert settings.log.retention == 3 * 86400
    assert settings.log.retention_bytes == 2 << 30


def test_a_variable_of_the_environment_takes_its_place_anywhere(tmp_path: Path) -> None:
    settings = accepted(
        tmp_path, '[sources.shop]\ntype = "script"\ndatabase = "${A}-${B}"', A="x", B="y"
    )
    config = settings.sources["shop"].config
    assert isinstance(config, ScriptSourceConfig)
    assert config.database == "x-y"


def test_an_unset_variable_is_named_with_its_key(tmp_path: Path) -> None:
    message = refused(tmp_path, '[sources.shop]\ntype = "mongodb"\nuri = "${MONGO_URI}"')
    assert "sources.shop.uri needs the environment variable MONGO_URI, which is not set" in message


def test_a_variable_without_a_name_is_refused(tmp_path: Path) -> None:
    assert "names no environment variable" in refused(tmp_path, '[log]\npath = "${}"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sorces.shop]\ntype = 'script'", "no section [sorces] (did you mean sources"),
        ("[log]\nretenton = '7d'", "no setting log.retenton (did you mean retention"),
        ("[serve]\ngrcp = 'x'", "no setting serve.grcp (did you mean grpc"),
        (
            "[sources.shop]\ntype = 'script'\nsed = 1",
            "no setting sources.shop.sed (did you mean seed",
        ),
        (
            f"{PIPELINE}keys = ['id']",
            "no setting pipelines.o.keys: the key is the source's own",
        ),
        (
            f"{PIPELINE}to = 'history'\nsequence_by = 'ts'",
            "no setting pipelines.o.sequence_by: the order is the log's",
        ),
        (
            f"{PIPELINE}apply_as_truncates = 'gone'",
            "no setting pipelines.o.apply_as_truncates: where the source says that all rows are",
        ),
        (f"{PIPELINE}column_list = ['a']", "column_list: a step keeps fields. Write transform ="),
        (f"{PIPELINE}except_column_list = ['a']", "leaves fields out. Write transform = [{ drop"),
        (f"{PIPELINE}ignore_null_updates = true", "what an update does not say stays as it was"),
        (f"{PIPELINE}stored_as_scd_type = 2", "type 1 is to = 'table', type 2 to = 'history'"),
        (f"{PIPELINE}track_history_column_list = ['a']", "are kept with to = 'history'"),
        (f"{PIPELINE}track_history_except_column_list = []", "are kept with to = 'history'"),
        (f"{PIPELINE}name = 'orders'", "pipelines.o.name: its name is NAME of [pipelines.NAME]"),
        (f"{PIPELINE}target = 'orders'", "pipelines.o.target: where it goes is said by path"),
        (f"{PIPELINE}once = true", "pipelines.o.once: write trigger = 'availableNow'"),
        (f"{PIPELINE}spark_conf = {{}}", "settings of Spark are under [spark]"),
        (
            f"{PIPELINE}to = 'audit'\nuri = 'mongodb://a/b'\napply_as_deletes = 'a'",
            "pipelines.o.apply_as_deletes: a pipeline to 'audit' keeps every change",
        ),
        (
            f"{PIPELINE}apply_as_deletes = 'deleted'",
            "apply_as_deletes and document_schema go together",
        ),
        (
            f"{PIPELINE}{MARKED}first_load = 'source'",
            "rows without steps or expectations (apply_as_deletes is a step)",
        ),
        (
            f"{PIPELINE}{MARKED}verify_every = '6h'\nverify_against = 'source'",
            "expectations (apply_as_deletes is a step); leave verify_against out",
        ),
        (
            f"{PIPELINE}document_schema = 'deleted BOOLEAN'",
            "apply_as_deletes and document_schema go together",
        ),
        (f"{PIPELINE}rejects = 'a%20b'", "a%20b has %20, which Delta reads as one character"),
        ("[sources.shop]\ntype = 'mongo'", "did you mean mongodb?"),
        ("[sources.shop]\nseed = 1", "sources.shop.type must be one of"),
        ("[sources.shop]\ntype = 'script'\nseed = 'many'", "sources.shop.seed: Input should be"),
        ("[log]\nretention = '7 parsecs'", "log.retention: '7 parsecs' is not a duration"),
        ("[serve]\ngrpc = '0.0.0.0:1'", "reachable from other machines"),
        ("[sources.'a/b']\ntype = 'script'", "sources.a/b must be a table whose name is letters"),
        ("sources = 3", "sources must be a table"),
        ("[log", "is not TOML"),
    ],
)
def test_a_mistake_is_named_by_its_key_with_what_was_meant(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in refused(tmp_path, text)


@pytest.mark.parametrize(
    "source", ["type = 'mongodb'\nuri = 'mongodb://a'", "type = 'mysql'\nuser = 'a'"]
)
def test_a_deadline_that_an_idle_server_cannot_meet_is_refused(tmp_path: Path, source: str) -> None:
    """It answers once in a heartbeat, so capture would reconnect for ever (S15)."""
    text = f"[sources.shop]\n{source}\nheartbeat_seconds = 6\nheartbeat_deadline_seconds = "
    for deadline in (3, 6):
        said = f"heartbeat_deadline_seconds ({deadline}) is not over heartbeat_seconds (6)"
        assert said in refused(tmp_path, f"{text}{deadline}")
    config = accepted(tmp_path, f"{text}6.5").sources["shop"].config
    assert config.deadline_seconds == 6.5  # type: ignore[attr-defined]


def test_each_parameter_of_auto_cdc_is_a_setting_or_told_how_to_have_it(tmp_path: Path) -> None:
    """And the page on pipelines says the same of each."""
    pipelines = pytest.importorskip("pyspark.pipelines", exc_type=ImportError)
    named = set(inspect.signature(pipelines.create_auto_cdc_flow).parameters)
    page = Path("docs/how-to/pipelines.md").read_text()
    for name in named | {"apply_as_truncates", "ignore_null_updates", "track_history_column_list"}:
        assert f"| `{name}`" in page or f", `{name}`" in page, name
        if name not in {"source", "apply_as_deletes"}:
            said = refused(tmp_path, f"{PIPELINE}{name} = 'x'")
            assert f"there is no setting pipelines.o.{name}: " in said


def test_all_mistakes_of_a_section_are_named_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, "[log]\nretenton = 1\nmap_byts = 2")
    assert "log.retenton" in message
    assert "log.map_byts" in message


def test_all_mistakes_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    """And none that is but the consequence of another."""
    message = refused(
        tmp_path,
        """
        [log]
        retenton = 1
        [serv]
        [sources.a]
        type = "mysq"
        [sources.b]
        type = "mongodb"
        uri = "${B_URI}"
        database = "admin"
        [sources.c]
        type = "script"
        seed = "many"
        [pipelines.p]
        source = "a"
        path = "p"
        [pipelines.q]
        source = "d"
        path = "${PLACE}"
        """,
    )
    path, lines = tmp_path / "penstock.toml", message.splitlines()
    assert lines[0] == f"{path} has 6 errors. Nothing was started."
    for line, said in zip(
        lines[1:],
        (
            "- sources.b.uri needs the environment variable B_URI, which is not set in the",
            "- pipelines.q.path needs the environment variable PLACE",
            "- there is no section [serv] (did you mean serve",
            "- there is no setting log.retenton (did you mean",
            "- sources.a.type must be one of",
            "- sources.c.seed: Input should be",
        ),
        strict=True,
    ):
        assert line.startswith(said)
        assert "Nothing was started" not in line


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("postgresql", "it can be the destination of a pipeline to = 'replicate')"),
        ("Postgres", "PostgreSQL is not captured; it can be the destination"),
        ("mariadb", "MariaDB is captured with type = 'mysql'"),
        ("dynamodb", "captured with type = 'store'"),
        ("mongo", "did you mean mongodb?"),
    ],
)
def test_a_type_that_there_is_not_is_answered_by_what_it_means(
    tmp_path: Path, kind: str, said: str
) -> None:
    message = refused(tmp_path, f"[sources.shop]\ntype = '{kind}'")
    assert said in message
    assert message.count("did you mean") == (kind == "mongo")


@pytest.mark.parametrize(
    ("name", "why"), [("x" * 300, "File name too long"), ("a\\u0000b", "null character")]
)
def test_a_path_that_nothing_can_have_is_an_error(tmp_path: Path, name: str, why: str) -> None:
    text = f'[log]\npath = "{name}"\n[archive]\npath = "{name}"\n[access]\nlog = "{name}"\n'
    said = refused(tmp_path, f'{text}tokens = "{name}"\n')
    for setting in ("log.path", "archive.path", "access.log", "access.tokens"):
        assert f"{setting} cannot be the name of a file or folder: " in said
    assert said.count(why) == 4


def test_a_log_path_that_leads_to_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refused(tmp_path, "[log]\npath = 'loop/log'")


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load(tmp_path / "none.toml")


def test_no_message_shows_what_came_from_the_environment(tmp_path: Path) -> None:
    message = refused(tmp_path, '[serve]\ngrpc = "${ADDRESS}"', ADDRESS="hunter2")
    assert "hunter2" not in message
    assert "${ADDRESS}" in message


def test_a_pipeline_of_an_unknown_source_is_refused(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        "[sources.shop]\ntype = 'script'\n[pipelines.a]\nsource = 'shp'\npath = 'lake'",
    )
    assert "no [sources.shp] (did you mean shop?)" in message


def pipelines(*settings: str) -> str:
    """Pipelines a, b, ... with these settings."""
    return "[sources.shop]\ntype = 'script'\n" + "".join(
        f"[pipelines.{name}]\nsource = 'shop'\n{text}\n"
        for name, text in zip("abc", settings, strict=False)
    )


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("path = 'lake'", "path = 'lake'", "a.path and pipelines.b.path"),
        ("path = 'lake'", "path = './x/../lake/'", "a.path and pipelines.b.path"),
        ("path = 'lake'", "path = 'lake/orders'", "a.path and pipelines.b.path"),
        ("path = 'lake/x/y'", "path = 'lake/x'", "a.path and pipelines.b.path"),
        ("path = 's3://b/lake'", "path = 's3a://b/lake/orders'", "a.path and pipelines.b.path"),
        ("path = 'lake'", "path = 'file://{folder}/lake'", "a.path and pipelines.b.path"),
        ("path = 'a'\nrejects = 'r'", "path = 'b'\nrejects = 'r'", "a.rejects and pipelines.b.rej"),
        ("path = 'a'", "path = 'b'\nrejects = 'a/wrong'", "a.path and pipelines.b.rejects"),
        ("path = 'a'", "path = 'a_rejects'", "a.rejects and pipelines.b.path"),
        ("path = 'a'\nrejects = 'a'", "path = 'b'", "a.path and pipelines.a.rejects"),
        ("path = 'a'\nrejects = 'a/'", "path = 'b'", "a.path and pipelines.a.rejects"),
        ("path = 'a/t'\nrejects = 'a'", "path = 'b'", "a.path and pipelines.a.rejects"),
        ("path = 'a'\nstanding = 'a'", "path = 'b'", "a.path and pipelines.a.standing"),
        ("path = 'a/t'\nstanding = 'a'", "path = 'b'", "a.path and pipelines.a.standing"),
        (
            "path = 'a'\nstanding = 's'",
            "path = 'b'\nstanding = 's'",
            "a.standing and pipelines.b.s",
        ),
        ("path = 'a'\nrejects = 's'\nstanding = 's'", "path = 'b'", "a.rejects and pipelines.a.st"),
        (
            "path = 'a'\nrejects = 's'\nstanding = 's/s'",
            "path = 'b'",
            "a.rejects and pipelines.a.s",
        ),
        ("path = 'a'", "path = 'b'\nstanding = 'a/wrong'", "a.path and pipelines.b.standing"),
        ("path = 'a'", "path = 's'\nstanding = 'a_rejects'", "a.rejects and pipelines.b.standing"),
        (
            "path = 'a'\ncollections = ['lines', 'orders']\nstanding = 'a/orders'",
            "path = 'b'",
            "a.path and pipelines.a.standing",
        ),
        (
            "path = 'a'\nto = 'history'\ncollections = ['lines', 'orders']\nrejects = 'a/lines'",
            "path = 'b'",
            "a.path and pipelines.a.rejects",
        ),
        (
            "path = 'a'\nstanding = 's'\nfirst_load = 'source'",
            "path = 's_load'",
            "a.standing and pipelines.b.path",
        ),
        (
            "path = 'a'\nstanding = 's'\nverify_every = '6h'",
            "path = 's_verified'",
            "a.standing and pipelines.b.path",
        ),
        ("path = 'a'\nto = 'history'", "path = 'a'", "a.path and pipelines.b.path"),
        ("path = 'a'\nto = 'changelog'", "path = 'a/orders'", "a.path and pipelines.b.path"),
        (
            "path = 'a'\nto = 'changelog'\nformat = 'parquet'",
            "path = 'a_manifest'\nto = 'changelog'",
            "a.path and pipelines.b.path",
        ),
        *(
            (
                "path = 'a'\nto = 'view'\nquery = 'SELECT count(*) AS n FROM orders'",
                f"path = 'a_{beside}'",
                "a.path and pipelines.b.path",
            )
            for beside in ("state", "apart")
        ),
    ],
)
def test_pipelines_that_would_write_over_each_other_are_refused_and_both_named(
    tmp_path: Path, a: str, b: str, said: str
) -> None:
    message = refused(tmp_path, pipelines(a, b.format(folder=tmp_path)))
    assert f"pipelines.{said}" in message


@pytest.mark.parametrize("key", ["path", "rejects", "standing"])
def test_a_password_in_the_url_of_a_place_is_refused_and_not_repeated(
    tmp_path: Path, key: str
) -> None:
    places = {"path": "s3://b/a", "rejects": "s3://b/r", "standing": "s3://b/s"}
    places[key] = "s3://AKIA:qui/et@b/x"
    written = "\n".join(f"{one} = '{url}'" for one, url in places.items())
    message = refused(tmp_path, pipelines(written))
    assert f"pipelines.a.{key} is a URL with a password" in message
    assert "qui" not in message


def test_an_account_in_the_url_of_a_place_is_no_password(tmp_path: Path) -> None:
    accepted(tmp_path, pipelines("path = 'abfss://container@account.dfs.core.windows.net/a'"))


@pytest.mark.parametrize(
    ("to", "step"),
    [
        ("path = 'a'", "select = ['name']"),
        ("path = 'a'\nto = 'changelog'", "drop = ['_id']"),
        ("to = 'replicate'\nuri = 'mongodb://h/d'", "rename = {_id = 'id'}"),
    ],
)
def test_a_step_that_takes_the_key_is_refused_where_it_is_known(
    tmp_path: Path, to: str, step: str
) -> None:
    written = "\n".join(
        (f"[pipelines.a]\nsource = 'shop'\n{to}", f"[[pipelines.a.transform]]\n{step}")
    )
    uri = "mongodb://h/?replicaSet=r"
    message = refused(tmp_path, f"[sources.shop]\ntype = 'mongodb'\nuri = '{uri}'\n{written}")
    assert "changes or leaves out _id" in message
    accepted(tmp_path, f"[sources.shop]\ntype = 'script'\n{written}")


def test_pipelines_side_by_side_are_accepted(tmp_path: Path) -> None:
    settings = accepted(
        tmp_path,
        pipelines(
            "path = 'lake/orders'\ncollections = ['orders']",
            "path = 'lake/orders2'\nrejects = 'lake/orders2/_rejects'",
            "path = 's3://b/lake/orders'\nstanding = 's3://b/lake/orders/stands'",
        ),
    )
    assert list(settings.pipelines) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "more",
    [
        "to = 'changelog'\nformat = 'parquet'",
        "to = 'changelog'",
        "to = 'history'",
        "collections = ['lines', 'orders']\nstanding = 'a/_stands'",
        "verify_every = '6h'",
        "to = 'view'\nquery = 'SELECT status, count(*) AS n FROM orders GROUP BY status'",
    ],
)
def test_a_pipeline_stands_in_its_own_folder(tmp_path: Path, more: str) -> None:
    assert list(accepted(tmp_path, pipelines(f"path = 'a'\n{more}")).pipelines) == ["a"]


@pytest.mark.parametrize(
    ("uri", "more", "database"),
    [
        ("mongodb://h/trails?replicaSet=r", "", "trails"),
        ("mongodb://u:p%2Fq@h,i:1/tr%61ils", "", "trails"),
        ("mongodb://h/trails", "database = 'other'", "other"),
        ("mongodb://u:p@h/admin", "", "audit"),
        ("mongodb://h/?replicaSet=r", "", "audit"),
        ("mongodb://h", "", "audit"),
    ],
)
def test_a_trail_is_in_the_database_that_its_uri_names(
    tmp_path: Path, uri: str, more: str, database: str
) -> None:
    trail = f"[pipelines.t]\nsource = 'shop'\nto = 'audit'\nuri = '{uri}'\n{more}\n"
    settings = accepted(tmp_path, f"[sources.shop]\ntype = 'script'\n{trail}")
    assert settings.audit_pipelines["t"].database == database


def test_what_is_no_connection_string_of_mongodb_is_told_at_once_and_not_quoted(
    tmp_path: Path,
) -> None:
    message = refused(
        tmp_path,
        """
        [checkpoint]
        store = "mongodb"
        instance = "a"
        uri = "10.0.0.1:27017/s3cret"
        [sources.b]
        type = "mongodb"
        uri = "b:s3cret@db.test"
        [pipelines.p]
        to = "audit"
        source = "b"
        uri = "postgresql://u:s3cret@db.test"
        """,
    )
    for setting in ("checkpoint.uri", "sources.b.uri", "pipelines.p.uri"):
        assert f"- {setting}: it must begin with mongodb:// or mongodb+srv://" in message
    assert "s3cret" not in message


def test_a_collection_of_a_step_that_the_log_has_not_told_of_is_named(tmp_path: Path) -> None:
    text = (
        PIPELINE + "[[pipelines.o.transform]]\ncollections = ['ordrs', 'items']\ndrop = ['a']\n"
        "[[pipelines.o.expect]]\nname = 'paid'\ncollections = ['item']\ncondition = 'a > 0'\n"
        "document_schema = 'a INT'\n"
    )
    pipeline = accepted(tmp_path, text).pipelines["o"]
    nothing = "matches nothing that the log has told of; the nearest are"
    assert pipeline.unmatched({"orders", "items"}) == [
        f"transform.collections 'ordrs' {nothing} orders",
        f"expect.collections 'item' {nothing} items",
    ]
    assert pipeline.unmatched(set()) == [], "nothing has been captured yet"
