"""What a server must be for a source to begin."""

import structlog

from penstock.errors import ConfigError
from penstock.sources.mysql.config import MysqlSourceConfig
from penstock.sources.mysql.connection import Connected, Facts, cascading, obstacles
from penstock.sources.mysql.described import computed_of_hidden, described, forbidden
from penstock.sources.mysql.logged import unlogged
from penstock.sources.mysql.moments import no_copies
from penstock.sources.mysql.positions import Flavour

logger = structlog.get_logger(__name__)


def require(
    source: str,
    config: MysqlSourceConfig,
    found: Facts,
    asking: Connected,
    *,
    flavour: Flavour,
) -> None:
    """Raise ConfigError where a server cannot be captured by this configuration, whatever its
    tables are. `flavour` is how its places are said."""
    unfit = obstacles(found, partial_rows=config.on_partial_rows == "decode")
    unfit = unfit or unlogged(asking, found, config.scope)
    if not unfit and config.copies and (obstacle := no_copies(asking, flavour)) is not None:
        unfit.append(obstacle)
    if unfit:
        why, remedy = unfit[0]
        raise ConfigError(
            f"{source}: {why}. Nothing was captured, and nothing was skipped. What to do: {remedy}."
        )


def require_tables(
    source: str, config: MysqlSourceConfig, asking: Connected, *, warns: bool
) -> None:
    """Raise ConfigError where the captured tables cannot be captured by this configuration.

    With `warns`, what is missed and may be is said once more.
    """
    require_logged(source, config, asking, warns=warns)
    _require_columns(source, config, asking)


def require_logged(
    source: str, config: MysqlSourceConfig, asking: Connected, *, warns: bool
) -> None:
    """Have every change of the captured tables in the binlog, or hear that it need not be."""
    if config.on_cascades == "ignore" and not warns:
        return
    cascades = cascading(asking, config.scope)
    if not cascades:
        return
    if config.on_cascades == "halt":
        raise ConfigError(
            f"{source}: a foreign key changes rows of {', '.join(cascades[:10])} by itself (ON "
            f"DELETE CASCADE, SET NULL), and the server writes that to no binlog: these changes "
            f"would be missed. What was captured before is safe. Have the application change these "
            f"rows (ON DELETE RESTRICT), exclude the tables, or set on_cascades = 'ignore' to "
            f"capture them without these changes."
        )
    logger.warning(
        "foreign keys change rows of these tables by themselves, and that is in no binlog",
        source=source,
        tables=cascades,
    )


def _require_columns(source: str, config: MysqlSourceConfig, asking: Connected) -> None:
    """Have rules of columns that the tables which are there can have."""
    if not config.scope.columns.patterns:
        return
    there = described(asking, config.scope)
    wrong = forbidden(there, config.columns.rules)
    if wrong:
        raise ConfigError(
            f"{source}: {'; '.join(wrong[:10])}. Nothing was captured by these rules, and nothing "
            f"was skipped. Correct `columns` of this source."
        )
    computed = computed_of_hidden(there, config.columns.rules)
    if computed:
        logger.warning(
            "columns that the server computes of others that are not told are left out",
            source=source,
            columns=computed,
        )
