"""What `penstock doctor` says of where pipelines write, by destination."""

from penstock.checks import Check, Level
from penstock.errors import PenstockError
from penstock.spark.config import AuditPipelineConfig, ReplicatePipelineConfig


def examine_trail(name: str, config: AuditPipelineConfig) -> list[Check]:
    """Whether the trail can be written, and lasts; blocks.

    Raises ImportError where its client is not installed, ConfigError for a uri that is none.
    """
    from penstock.audit.doctor import doctor

    return doctor(config.source, name, config)


def examine_replica(name: str, config: ReplicatePipelineConfig) -> list[Check]:
    """Whether a replica's database answers, and lets a run begin; blocks.

    Raises ImportError where its client is not installed.
    """
    from penstock.spark.replica.destination import away
    from penstock.spark.replicate import destination_of

    try:
        destination = destination_of(name, config)
    except PenstockError as error:
        return [Check.failed("destination", error)]
    try:
        destination.standing()
    except PenstockError as error:
        return [Check.failed("destination", error)]
    except destination.errors as error:
        return [
            Check.failed("destination", away(name, destination, error, "A run would wait for it."))
        ]
    finally:
        destination.reset()
    return [Check(name="destination", level=Level.OK, detail="it answers")]
