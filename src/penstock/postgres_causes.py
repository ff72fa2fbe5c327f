"""Why a PostgreSQL is not reached, or refuses us: one cause for each, with where and what to do.
Pure.

By SQLSTATE; and of a connection that does not come about, for which libpq gives none, by the words
that libpq and the server have for it in English. Nothing that they wrote is repeated but names of
what they could not use, and of columns, constraints and tables.
"""

import re
from typing import Final, NamedTuple

import psycopg
from msgspec import Struct

from penstock.causes import Cause, Outlook


class Login(Struct, frozen=True, kw_only=True):
    """Where a server is, and whom to be there."""

    where: str
    """Its hosts and ports."""
    user: str
    database: str
    schema: str


class _Kind(NamedTuple):
    """What libpq's words, or an SQLSTATE, are about."""

    said: re.Pattern[str]
    outlook: Outlook
    what: str
    """With `{where}`, `{user}`, `{database}`, `{schema}` and `{said}` of what happened,"""
    remedy: str
    """and these, quoted for SQL, of the next step."""


def _refused(said: str, what: str, remedy: str) -> _Kind:
    return _Kind(re.compile(said), Outlook.REFUSED, what, remedy)


def _away(said: str, what: str, remedy: str) -> _Kind:
    return _Kind(re.compile(said), Outlook.AWAY, what, remedy)


_CONNECTING: Final = (
    _refused(
        "certificate verify failed",
        "the certificate of {where} is not trusted ({said})",
        "Set ca to the authority that signed it, or tls to unverified.",
    ),
    _refused(
        "does not match host name",
        "the certificate of {where} is another host's ({said})",
        "Set the host in uri to a name that the certificate has, or tls to unverified.",
    ),
    _refused(
        "server does not support SSL",
        "{where} has no TLS ({said})",
        "Switch TLS on at the server (ssl, ssl_cert_file and ssl_key_file), or set tls to off.",
    ),
    _refused(
        "connection requires a valid client certificate",
        "{where} asks for a certificate of ours",
        "Set certificate and key to what its authority has signed.",
    ),
    _refused(
        r"SSL error: .*alert (unknown ca|certificate required|bad certificate"
        r"|certificate (expired|revoked|unknown)|handshake failure)",
        "{where} refuses our certificate, or that there is none ({said})",
        "Set certificate and key to what its authority has signed.",
    ),
    _refused(
        "no password supplied",
        "{where} asks for a password of {user}, and there is none",
        "Give uri the password.",
    ),
    _refused(
        "authentication failed",
        "{where} lets {user} not in: no such role, another password, or one that has expired",
        "Correct user and password in uri, or as an administrator, run: "
        "ALTER ROLE {user} PASSWORD '...' VALID UNTIL 'infinity'",
    ),
    _refused(
        "is not permitted to log in",
        "{user} may not log in at {where}",
        "As an administrator, run: ALTER ROLE {user} LOGIN",
    ),
    _refused(
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "{where} takes no connection of {user} to {database} from this machine, "
        "as its pg_hba.conf has it",
        "Add a line for it there and reload the server; it may ask for TLS (hostssl).",
    ),
    _refused(
        "permission denied for database",
        "{user} may not connect to the database {database} at {where}",
        "As an administrator, run: GRANT CONNECT ON DATABASE {database} TO {user}",
    ),
    _refused(
        'database ".*" does not exist',
        "there is no database {database} at {where}",
        "Correct the database in uri, or as an administrator, run: CREATE DATABASE {database}",
    ),
    _refused(
        r"is not currently accepting connections|cannot connect to invalid database",
        "the database {database} at {where} takes no connections",
        "Correct the database in uri, or as an administrator, run: "
        "ALTER DATABASE {database} ALLOW_CONNECTIONS true",
    ),
    _refused(
        'role ".*" does not exist',
        "there is no role {user} at {where}",
        "Correct the user in uri, or as an administrator, run: "
        "CREATE ROLE {user} LOGIN PASSWORD '...'",
    ),
    _refused(
        r"could not load|could not (read|open) (root )?certificate file|does not exist"
        r"|certificate present, but not private key file"
        r"|has group or world access|must be owned by|is not a regular file"
        r"|invalid value for parameter|unrecognized configuration parameter"
        r"|invalid connection option|invalid (integer value|port number)"
        r'|invalid "?\w+"? value(?=: ")'
        r"|could not match \d+ (port numbers|host names)|could not parse network address"
        "|definition of service",
        "what is set for {where} cannot be used ({said})",
        "Correct the pipeline's uri, or its files for TLS.",
    ),
    _away(
        "failed to resolve host|could not translate host name",
        "the host name of {where} is not known",
        "Correct the host in uri, or the name service of this machine.",
    ),
    _away(
        "Connection refused|No such file or directory",
        "nothing listens at {where} ({said})",
        "Start the server, or correct host and port in uri.",
    ),
    _away(
        "timeout expired",
        "{where} does not answer in time",
        "See that the server is well, and that no firewall is in between.",
    ),
    _away(
        "invalid response to SSL negotiation|expected authentication request",
        "what answers at {where} does not speak as a PostgreSQL ({said})",
        "Correct host and port in uri, or what is between.",
    ),
    _away(
        "too many (clients|connections)|remaining connection slots",
        "{where} has as many connections as it takes, or as {user} may have",
        "Raise max_connections, or the role's CONNECTION LIMIT, if this stays.",
    ),
    _away(
        "starting up|shutting down|in recovery mode|not yet accepting connections",
        "{where} starts, stops or recovers",
        "Wait, and see that the server is well if this stays.",
    ),
)
"""Of a connection that does not come about. The first that is said counts: libpq tries with and
without TLS, and says both."""

_ANSWERED: Final = (
    _refused(
        "42501",
        "{user} lacks a privilege at {where} ({said})",
        "As an administrator, run: GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}; tables that "
        "are there already must be owned by that role.",
    ),
    _refused(
        "3F000",
        "there is no schema {schema} in {database} at {where} ({said})",
        "Correct the pipeline's database, which names the schema, or run: CREATE SCHEMA {schema}",
    ),
    _away(
        "25006",
        "{where} is read-only, as a standby is ({said})",
        "Give uri the primary; this goes on by itself when the server takes writes.",
    ),
    _away(
        "53100",
        "the disk of {where} is full ({said})",
        "Free space there; this goes on by itself.",
    ),
    _away(
        "55P03|40...",
        "another session at {where} is in the way ({said})",
        "See pg_stat_activity for what holds its locks if this stays.",
    ),
    _away(
        "53...",
        "{where} has not enough of something for us ({said})",
        "Look the code up in PostgreSQL's documentation if this stays.",
    ),
    _away(
        "57...",
        "{where}, or an administrator of it, ended what we asked ({said})",
        "See that the server is well if this stays.",
    ),
    _away(
        "08...",
        "the connection to {where} is broken ({said})",
        "See that the server is well, and what is between it and this machine.",
    ),
)
"""Of what a server answers, by its SQLSTATE."""


def cause(error: psycopg.Error, login: Login) -> Cause:
    """Of an error of a connection, or of what was asked on it."""
    state = error.sqlstate
    name = type(error).__name__
    if state is not None:
        said = ", ".join(filter(None, (f"{name} {state}", _of(error))))
        for kind in _ANSWERED:
            if kind.said.fullmatch(state):
                return _told(kind, login, said)
        return _other(login, said)
    text = str(error)
    for kind in _CONNECTING:
        found = kind.said.search(text)
        if found:
            return _told(kind, login, found[0])
    if isinstance(error, psycopg.ProgrammingError):
        return _other(login, name)
    return Cause(
        Outlook.AWAY,
        f"{login.where} does not answer, or broke off ({name})",
        "See that the server is well, and what is between it and this machine.",
    )


def _told(kind: _Kind, login: Login, said: str) -> Cause:
    names = {"user": login.user, "database": login.database, "schema": login.schema}
    quoted = {name: '"' + text.replace('"', '""') + '"' for name, text in names.items()}
    return Cause(
        kind.outlook,
        kind.what.format(where=login.where, said=said, **names),
        kind.remedy.format(**quoted),
    )


def _other(login: Login, said: str) -> Cause:
    return Cause(
        Outlook.OTHER,
        f"{login.where} says {said}",
        "Look the code up in PostgreSQL's documentation.",
    )


def _of(error: psycopg.Error) -> str | None:
    """What the server says that it is about."""
    diag = error.diag
    return diag.column_name or diag.constraint_name or diag.table_name
