"""A connection to the MongoDB that is replicated into, and what its errors say."""

from contextlib import AbstractContextManager
from typing import Any, Final

import pymongo
from pymongo import MongoClient
from pymongo.errors import (
    ConfigurationError,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.topology_description import TopologyDescription
from pymongo.write_concern import WriteConcern

from penstock.audit.outages import passes
from penstock.errors import ConfigError, DestinationError
from penstock.mongo_causes import Address, cause, granting, is_untrusted
from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.destination import PLACES, REJECTS, TABLES
from penstock.spark.replica.documents import CODEC

Document = dict[str, Any]

LIFETIME_SECONDS: Final = 60.0
"""Of a transaction, where the server does not say."""
_UNHURRIED_SECONDS: Final = 7 * 86400.0
"""No transaction lasts so long."""
_NAMESPACE_EXISTS: Final = 48


def connect(pipeline: str, config: ReplicatePipelineConfig) -> MongoClient[Document]:
    """A client, which has asked no server yet. Raises ConfigError."""
    tls: Document = {}
    if config.tls is not None:
        tls["tls"] = config.tls != "off"
    if config.tls == "unverified":
        tls["tlsAllowInvalidCertificates"] = True
    if config.ca is not None:
        tls["tlsCAFile"] = str(config.ca)
    if config.certificate is not None:
        tls["tlsCertificateKeyFile"] = str(config.certificate)
    try:
        return MongoClient[Document](
            config.uri.get_secret_value(),
            appname="penstock",
            serverSelectionTimeoutMS=int(min(config.answer_seconds, 5.0) * 1000),
            socketTimeoutMS=int(config.answer_seconds * 1000),
            **tls,
        )
    except (ConfigurationError, InvalidURI, ValueError, OSError):
        raise ConfigError(
            f"pipeline {pipeline}: its uri, or the files for TLS, cannot be used. "
            f"Nothing was started. Correct them; the message would quote a password."
        ) from None


def database_of(client: MongoClient[Document], config: ReplicatePipelineConfig) -> Any:
    """The database, of whose answers none is ever taken back. Raises ConfigurationError."""
    return client.get_database(
        config.database or client.get_default_database().name,
        codec_options=CODEC,
        read_preference=ReadPreference.PRIMARY,
        read_concern=ReadConcern("majority"),
        write_concern=WriteConcern("majority", j=True),
    )


def checked(client: MongoClient[Document], pipeline: str, config: ReplicatePipelineConfig) -> Any:
    """The database, as it is.

    Raises ConfigError, DestinationError for a server without transactions.
    """
    try:
        database = database_of(client, config)
    except ConfigurationError:
        raise ConfigError(
            f"pipeline {pipeline}: neither its uri nor `database` names a database. "
            f"Nothing was started."
        ) from None
    hello = client.admin.command("hello")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise DestinationError(
            pipeline=pipeline,
            what="the destination is a standalone MongoDB, which has no transactions",
            remedy="Make it a replica set, of this one member at least: start mongod with "
            "--replSet, and run rs.initiate() once.",
        )
    return database


def prepare(client: MongoClient[Document], pipeline: str, config: ReplicatePipelineConfig) -> Any:
    """As `checked`, with our own collections in it."""
    database = checked(client, pipeline, config)
    there = set(database.list_collection_names())
    for name in (PLACES, TABLES, REJECTS):
        if name not in there:
            make(database, name)
    if REJECTS not in there:
        database[REJECTS].create_index([("pipeline", 1), ("table", 1), ("healed", 1)])
    return database


def make(database: Any, name: str) -> None:
    """Have a collection, whoever makes it at this moment."""
    try:
        database.create_collection(name, check_exists=False)
    except OperationFailure as error:
        if error.code != _NAMESPACE_EXISTS:
            raise


def lifetime_seconds(client: MongoClient[Document]) -> float:
    """So long a transaction may last there."""
    try:
        name = "transactionLifetimeLimitSeconds"
        return float(client.admin.command({"getParameter": 1, name: 1})[name])
    except OperationFailure:
        return LIFETIME_SECONDS  # its user may not ask


def unhurried() -> AbstractContextManager[None]:
    """Within it, what is done to a whole collection in a transaction is answered however long it
    takes, or until the server ends the transaction: cut off, it would only be undone, and begun
    again. That a server is gone its client finds out by itself, beside the question."""
    return pymongo.timeout(_UNHURRIED_SECONDS)


def cause_of(
    config: ReplicatePipelineConfig, error: PyMongoError, seen: TopologyDescription | None
) -> tuple[str, str]:
    """What happened, and the next step; `seen` is what the client knew of its servers."""
    uri = config.uri.get_secret_value()
    own = {"tls": "tls", "ca": "ca"} if config.tls is not None else {}
    address = Address.of(uri, **own)
    return cause(
        error, seen, address, granting=granting(address, [("readWrite", config.mongodb_database)])
    )


def lasts(error: PyMongoError, seen: TopologyDescription | None) -> bool:
    """Whether trying again does not help."""
    if isinstance(error, ServerSelectionTimeoutError) and seen is not None:
        return is_untrusted(seen)
    return not passes(error)
