"""A connection to the MySQL or MariaDB that is replicated into."""

# The stubs of pymysql leave what is sent open.
# pyright: reportUnknownMemberType=false

import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import pymysql

from penstock.errors import ConfigError, DestinationError
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.uris import is_host, unusable

if TYPE_CHECKING:
    _Base = pymysql.Connection[pymysql.cursors.Cursor]
else:
    _Base = pymysql.Connection

_SESSION: Final = (
    "SET time_zone = '+00:00', sql_safe_updates = 0, unique_checks = 1, "
    # Fewer rows, and shorter texts, would be given without a word.
    "sql_select_limit = 18446744073709551615, group_concat_max_len = 1048576"
)
_MODE: Final = (
    # Strict, so that no value is cut or rounded to fit its column.
    "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,"
    # And a key that is 0 is 0, where the column would count by itself.
    "NO_AUTO_VALUE_ON_ZERO"
)
_PACKET_BYTES: Final = 16
"""Of a packet what is not the statement, and a little more."""
_IN_TOUCH: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""As with PostgreSQL: seconds of silence, and between questions; so many of them have no answer."""


class Connection(_Base):
    """Sends no statement that the server does not take: it would hang up, as one that is away."""

    _pipeline = ""
    _sock: Any
    _read_timeout: float | None
    statement_bytes_max = 1 << 30

    def learn_limit(self, pipeline: str) -> None:
        """Ask what the server takes at once."""
        self._pipeline = pipeline
        with self.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            ((packet,),) = cursor.fetchall()
            self.statement_bytes_max = int(packet) - _PACKET_BYTES

    def stay_in_touch(self) -> None:
        """Have the system find out by itself that the server's machine is gone."""
        for name, value in _IN_TOUCH.items():
            option = getattr(socket, name, None)
            if option is not None:
                self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @contextmanager
    def unhurried(self) -> Generator[None]:
        """A statement over a whole table takes as long as it takes, and is answered behind that:
        cut off, it would only be rolled back, and begun again."""
        before, self._read_timeout = self._read_timeout, None
        try:
            yield
        finally:
            self._read_timeout = before

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """As pymysql's. Raises DestinationError."""
        data = sql if isinstance(sql, bytes) else sql.encode()
        if len(data) > self.statement_bytes_max:
            raise DestinationError(
                pipeline=self._pipeline,
                what=f"a row makes a statement of {len(data)} bytes, and the destination's "
                f"max_allowed_packet is {self.statement_bytes_max + _PACKET_BYTES}",
                remedy="Raise max_allowed_packet there (SET GLOBAL, and in the server's "
                "configuration file; 1G at most), and start the pipeline again.",
            )
        return super().query(data, unbuffered)


def parsed(pipeline: str, config: ReplicatePipelineConfig) -> SplitResult:
    """The URI, whose host and port can be read. Raises ConfigError."""
    uri = _parsed(config.uri.get_secret_value())
    if uri is None:
        raise unusable(pipeline)
    return uri


def _parsed(text: str) -> SplitResult | None:
    try:
        uri = urlsplit(text)
        host, _ = uri.hostname, uri.port
    except ValueError:
        return None
    # A "/" or "#" in a password ends what is then taken for a host and its port.
    astray = "@" not in uri.netloc and "@" in uri.path + uri.fragment
    return uri if is_host(host or "") and not astray else None


def connect_seconds(config: ReplicatePipelineConfig) -> int:
    """How long a connection may take."""
    return max(1, int(min(config.answer_seconds, 30)))


def connect(pipeline: str, config: ReplicatePipelineConfig, uri: SplitResult, database: str) -> Any:
    """A `Connection` without autocommit. Raises pymysql.MySQLError, ConfigError."""
    connection = Connection(
        host=uri.hostname or "127.0.0.1",
        port=uri.port or 3306,
        user=unquote(uri.username or ""),
        password=unquote(uri.password or ""),
        database=database,
        charset="utf8mb4",
        autocommit=False,
        connect_timeout=connect_seconds(config),
        read_timeout=config.answer_seconds,
        write_timeout=config.answer_seconds,
        program_name="penstock",
        sql_mode=_MODE,
        init_command=_SESSION,
        ssl=_tls(pipeline, config),
        ssl_disabled=config.tls in {None, "off"},
    )
    connection.stay_in_touch()
    connection.learn_limit(pipeline)
    return connection


def _tls(pipeline: str, config: ReplicatePipelineConfig) -> ssl.SSLContext | None:
    if config.tls in {None, "off"}:
        return None
    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.certificate is not None:
            context.load_cert_chain(config.certificate, config.key)
    except OSError as error:
        raise ConfigError(
            f"pipeline {pipeline}: ca, certificate or key cannot be used "
            f"({error.strerror or error}). Nothing was written. Correct their paths."
        ) from error
    if config.tls == "unverified":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
