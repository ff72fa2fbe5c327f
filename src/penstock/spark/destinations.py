"""Where pipelines may go: what stands behind each `to`, a door for packages (`penstock.doors`)."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from penstock.doors import DESTINATIONS, find, load, names, unusable
from penstock.spark.config.audit import AuditPipelineConfig
from penstock.spark.config.changelog import ChangelogPipelineConfig
from penstock.spark.config.history import HistoryPipelineConfig
from penstock.spark.config.reading import ReadingConfig
from penstock.spark.config.replicate import ReplicatePipelineConfig
from penstock.spark.config.table import TablePipelineConfig
from penstock.spark.config.view import ViewPipelineConfig

if TYPE_CHECKING:
    from penstock.spark.config import PipelineConfig
    from penstock.spark.pipeline_run import PipelineRun
    from penstock.spark.target import Target

_EXTRAS: Final = {"postgres": "postgresql", "mariadb": "mysql"}
_BESIDE: Final = "its tables have come, as the row beside them says"


class Destination(Struct, frozen=True, kw_only=True):
    """What stands behind a `to`. The names of functions are "module:function", and nothing of them
    is imported, nor Spark, before a pipeline runs."""

    config: type[ReadingConfig]
    """How a pipeline that goes there is configured; its field `to` has the one value."""
    target: str
    """Of a `PipelineRun`: its `Target`."""
    needs: Callable[[Any], tuple[str, ...]] = lambda _: ()
    """Of a configuration: the modules, besides that of `target`, that its runs import."""
    extras: Callable[[Any], str] = lambda _: "spark,java"
    """Of a configuration: what of `penstock[...]` its runs need."""
    beginning: str = ""
    """Of (name, config, bounds, whole, lake): the `Beginning` that a run would have. Without one,
    `penstock pipeline plan` refuses the pipeline."""
    stands: str = "its destination has come"
    """What says how far a pipeline has come, behind "that is how far"."""
    verify: str = ""
    """As `verifying.verify_tables`: compare with the log. Without one, nothing is compared."""
    doctor: str = ""
    """Of (name, config): the `Check`s that `penstock doctor` tells. It may block, and raises
    ImportError for what is not installed."""
    unverified: str = ""
    """What to do in place of that, with `{name}` for the pipeline's."""

    def open(self, run: "PipelineRun") -> "Target":
        """The target of a run."""
        target: Target = function(self.target)(run)
        return target

    def import_all(self, config: ReadingConfig) -> None:
        """Import what a run of the configuration needs, as far as that is installed.

        Raises ImportError for what is not.
        """
        for module in (self.target.partition(":")[0], *self.needs(config)):
            import_module(module)


def function(name: str) -> Callable[..., Any]:
    """What "module:function" names."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def known_destinations() -> list[str]:
    """Every `to` that an installed package brings."""
    return names(DESTINATIONS)


def destination_named(to: object) -> Destination:
    """What stands behind `to`. Raises ValueError for what no installed package brings, and
    ConfigError for what cannot be loaded."""
    point = find(DESTINATIONS, to) if isinstance(to, str) else None
    if point is None:
        known = ", ".join(map(repr, known_destinations()))
        raise ValueError(
            f"a pipeline cannot go to {to!r}; what exists is: "
            f"{known or 'nothing, for Penstock is not installed as a package: pip install it'}"
        )
    try:
        found: object = load(point)
    except ImportError as error:
        raise unusable(point, error) from error
    if not isinstance(found, Destination):
        raise unusable(point, TypeError(f"{found!r} is no Destination"))
    return found


def config_class(to: object) -> "type[PipelineConfig]":
    """How a pipeline with that `to` is configured; raises as `destination_named`. What another
    package brings is treated as what it inherits from ours."""
    return cast("type[PipelineConfig]", destination_named(to).config)


def _of_tables(_: Any) -> tuple[str, ...]:
    return (
        "penstock.spark.loading.load",
        "penstock.spark.verifying",
        "penstock.spark.against.source",
    )


def _of_replica(config: ReplicatePipelineConfig) -> tuple[str, ...]:
    if config.kind.startswith("mongodb"):
        return ("penstock.spark.replica.mongodb",)
    dialect = "postgres" if config.kind.startswith("postgres") else "mysql"
    return "penstock.spark.replica.sql", f"penstock.spark.replica.{dialect}"


def _extras_of_replica(config: ReplicatePipelineConfig) -> str:
    kind = config.kind.partition("+")[0]
    return f"spark,{_EXTRAS.get(kind, kind)}"


TABLE: Final = Destination(
    config=TablePipelineConfig,
    target="penstock.spark.tables:open_target",
    needs=_of_tables,
    beginning="penstock.spark.tables:beginning_of_tables",
    stands=_BESIDE,
    verify="penstock.spark.verifying:verify_tables",
)
HISTORY: Final = Destination(
    config=HistoryPipelineConfig,
    target="penstock.spark.tables:open_target",
    needs=_of_tables,
    beginning="penstock.spark.tables:beginning_of_tables",
    stands=_BESIDE,
    verify="penstock.spark.verifying:verify_tables",
)
VIEW: Final = Destination(
    config=ViewPipelineConfig,
    target="penstock.spark.views:open_target",
    beginning="penstock.spark.views:beginning_of_view",
    stands="its current rows have come, as the row beside them says",
    verify="penstock.spark.verifying_view:verify_view",
)
CHANGELOG: Final = Destination(
    config=ChangelogPipelineConfig,
    target="penstock.spark.changelogs:open_target",
    beginning="penstock.spark.changelogs:beginning_of_changelog",
    stands="its changelog has come, as the row beside it says",
    verify="penstock.spark.verifying_changelog:verify_changelog",
)
REPLICATE: Final = Destination(
    config=ReplicatePipelineConfig,
    target="penstock.spark.replicate:open_target",
    needs=_of_replica,
    extras=_extras_of_replica,
    beginning="penstock.spark.replicate:beginning_of_replica",
    doctor="penstock.spark.destination_doctors:examine_replica",
    stands="its destination has come, as its place there says",
    verify="penstock.spark.replica.verifying:verify_replica",
)
AUDIT: Final = Destination(
    config=AuditPipelineConfig,
    target="penstock.spark.audit:open_target",
    extras=lambda _: "spark,java,mongodb",
    beginning="penstock.spark.audit:beginning_of_trail",
    doctor="penstock.spark.destination_doctors:examine_trail",
    stands="its trail has come, as the head of the trail says",
    unverified="A trail is proved by `penstock audit verify {name}`.",
)
