"""MongoDB as a source: a replica set, or one of its databases, through one change stream."""

from penstock.sources.mongodb.config import MongoSourceConfig
from penstock.sources.mongodb.doctor import doctor
from penstock.sources.mongodb.source import MongoSource

__all__ = ["MongoSource", "MongoSourceConfig", "doctor"]
