"""A setting that names nothing which is there is told with the nearest names, until it does."""

from penstock.checks import Level
from penstock.sources.mysql.doctor import doctor
from tests.mysql.conftest import on
from tests.mysql.support import run, source_of
from tests_support.servers import SqlServer


@on("mariadb", "mysql")
async def test_a_slip_in_a_name_is_told_until_something_matches(
    server: SqlServer, database: str
) -> None:
    with server.connect() as db:
        run(db, f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)")
        source = source_of(
            server,
            include=[f"{database}.ordrs", f"{database}x.*", f"/{database}\\..*/"],
            exclude=["secret.keys"],
        )
        ordrs, other, secret = await source.unmatched()
        assert f"include '{database}.ordrs' matches nothing that is there" in ordrs
        assert f"the nearest are {database}.orders" in ordrs
        assert f"the nearest are {database}.*" in other
        assert secret == "exclude 'secret.keys' matches nothing that is there"
        checks = await doctor("db", source.config)
        (names,) = [check for check in checks if check.name == "names"]
        assert names.level is Level.WARNING
        assert ordrs in names.detail
        run(db, f"CREATE TABLE {database}.ordrs (id INT PRIMARY KEY)")
        assert len(await source.unmatched()) == 2


@on("mariadb", "mysql")
async def test_a_slip_in_the_name_of_a_column_to_hide_is_told(
    server: SqlServer, database: str
) -> None:
    with server.connect() as db:
        run(db, f"CREATE TABLE {database}.users (id INT PRIMARY KEY, email TEXT)")
        rules = {"exclude": [f"{database}.users.Email"], "mask": {f"{database}.users.email": "-"}}
        source = source_of(server, columns=rules)
        (told,) = await source.unmatched()
        assert f"columns.exclude '{database}.users.Email' matches nothing that is captured" in told
        assert f"the nearest are {database}.users.email" in told
        (names,) = [check for check in await doctor("db", source.config) if check.name == "names"]
        assert (names.level, names.detail) == (Level.WARNING, told)
