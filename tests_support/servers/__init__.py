"""Real database servers for tests: on loopback, in temporary folders, gone when the test is.

    with MongoReplicaSet() as mongo:
        client = MongoClient(mongo.uri)

mongod comes from the package registry that pip is set up with, pinned by hash; etcd, MariaDB and
PostgreSQL come from Debian, and zero-cache from npm, pinned by a lock. MySQL comes from Debian's
sid, a later MariaDB and Prometheus from trixie, where they can be had. Spark comes with the
pyspark package, and Delta Lake for it from the registry that Maven is set up with, pinned by hash.
`python -m tests_support.servers install` installs them all.
"""

from tests_support.servers.etcd import EtcdServer, EtcdTls
from tests_support.servers.mariadb import MariaDbServer, MariaDbVersion
from tests_support.servers.maven import DELTA, Jars, install_jars
from tests_support.servers.mongodb import MongoReplicaSet, MongoStandalone, MongoVersion
from tests_support.servers.mysql import MySqlServer
from tests_support.servers.npm import ZERO, NpmProject, install_npm
from tests_support.servers.packages import (
    MONGOD_PACKAGES,
    PinnedWheel,
    ServerPackage,
    ServerUnavailableError,
    install,
    installed,
    servers_directory,
)
from tests_support.servers.postgres import PostgresServer
from tests_support.servers.process import (
    Server,
    ServerProcess,
    ServerStartError,
    free_ports,
)
from tests_support.servers.spark import (
    SparkCluster,
    SparkConnectServer,
    SparkMaster,
    SparkWorker,
)
from tests_support.servers.sql import SqlServer
from tests_support.servers.zero_cache import RESET_EXIT_CODE, ZeroCache

__all__ = [
    "DELTA",
    "MONGOD_PACKAGES",
    "RESET_EXIT_CODE",
    "ZERO",
    "EtcdServer",
    "EtcdTls",
    "Jars",
    "MariaDbServer",
    "MariaDbVersion",
    "MongoReplicaSet",
    "MongoStandalone",
    "MongoVersion",
    "MySqlServer",
    "NpmProject",
    "PinnedWheel",
    "PostgresServer",
    "Server",
    "ServerPackage",
    "ServerProcess",
    "ServerStartError",
    "ServerUnavailableError",
    "SparkCluster",
    "SparkConnectServer",
    "SparkMaster",
    "SparkWorker",
    "SqlServer",
    "ZeroCache",
    "free_ports",
    "install",
    "install_jars",
    "install_npm",
    "installed",
    "servers_directory",
]
