"""A configuration whose pipeline keeps a test's trail, and the command as users start it."""

from pathlib import Path

from penstock.audit.trail import Trail

TRAIL = """
[sources.shop]
type = "script"
[pipelines.trail]
source = "shop"
to = "audit"
uri = "{uri}"
database = "{database}"
tz = "{tz}"
[pipelines.shop]
source = "shop"
to = "table"
path = "tables"
"""


def configured(folder: Path, trail: Trail, *, tz: str = "Asia/Kolkata") -> str:
    """The path of the configuration."""
    path = folder / "penstock.toml"
    uri = trail.config.uri.get_secret_value()
    path.write_text(TRAIL.format(uri=uri, database=trail.config.database, tz=tz))
    return str(path)
