"""What pipelines to files have in common: where they are, and how they are looked after."""

import re
from typing import ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator

from penstock.config import Bytes, Seconds
from penstock.spark.config.names import folder_of
from penstock.spark.config.reading import SteppedPipelineConfig

_ESCAPED: Final = re.compile("%[0-9A-Fa-f]{2}")


class LakePipelineConfig(SteppedPipelineConfig):
    """What is kept as files at a path, and looked after."""

    makes: ClassVar[str]
    """`to`, as the row that says how far the pipeline has come has it."""

    path: str = Field(
        description="Where the Delta table is, a folder or a URL. With one collection the table "
        "itself; otherwise each collection is a table in the folder of its name below.",
        min_length=1,
    )
    standing: str | None = Field(
        None,
        description="The Delta table of one row that says how far the pipeline has come. Default: "
        "`_penstock_standing` in the path. It belongs to the tables: a pipeline without it is "
        "new, and starts where `start` says; its tables ignore what they have. With `first_load` "
        "it is refused where the tables of its `collections` are there.",
    )
    rejects: str | None = Field(
        None,
        description="The Delta table of the changes that were rejected. Default: the path with "
        "`_rejects` at its end.",
    )
    on_gap: Literal["halt", "record"] = Field(
        "halt",
        description="What to do where the log says that changes were lost upstream: stop, or write "
        "the gap to the rejects and go on. Where the log's own retention was faster than the "
        "pipeline, it stops whatever this says.",
    )
    history: Seconds = Field(
        3600.0, gt=0, description="How long replaced files of a table are kept for its readers."
    )
    compact_every: int = Field(
        100,
        ge=0,
        description="Commits of a table after which its small files are joined, between two "
        "batches; 0: never. `penstock pipeline tidy` does it by hand.",
    )
    vacuum_every: int = Field(
        100,
        ge=0,
        description="Commits of a table after which replaced files older than `history` are "
        "deleted, between two batches, as they are once a day; 0: never. `penstock pipeline tidy` "
        "does it by hand.",
    )
    verify_every: Seconds = Field(
        0.0,
        description="Compare what is kept with the log so often while the pipeline runs, as 6h; 0: "
        "never. It reads the whole log again, and its archive. What differs is told, and not "
        "repaired: `penstock pipeline verify --repair` does.",
    )
    storage_options: dict[str, SecretStr] = Field(
        default_factory=dict, description="Credentials and settings of the object store."
    )

    @field_validator("path", "standing", "rejects")
    @classmethod
    def _is_no_part_of_a_url(cls, path: str | None) -> str | None:
        """Delta's writer reads what is like an escaped character in a folder's name as that."""
        if path and "://" not in path and (found := _ESCAPED.search(path)):
            raise ValueError(
                f"{path} has {found.group()}, which Delta reads as one character, and then finds "
                f"no such folder; call the folder otherwise"
            )
        return path

    @property
    def place_setting(self) -> str:
        """The setting that says where the tables are: whoever begins anew gives it another."""
        return "path"

    @property
    def standing_path(self) -> str:
        """The Delta table that says how far the pipeline has come."""
        return self.standing or f"{self.path.rstrip('/')}/_penstock_standing"

    @property
    def rejects_path(self) -> str:
        """The Delta table of rejected changes."""
        return self.rejects or f"{self.path.rstrip('/')}_rejects"

    @property
    def verified_path(self) -> str:
        """The Delta table of one row that says when `verify_every` was last done."""
        return f"{self.standing_path.rstrip('/')}_verified"

    @property
    def in_one_table(self) -> bool:
        """Whether all collections are in one table, so that none can be begun anew in it."""
        return False

    def table_path(self, collection: str) -> str:
        """Where the table of a collection is."""
        if len(self.collections) == 1:
            return self.path.rstrip("/")
        return f"{self.path.rstrip('/')}/{folder_of(collection)}"


class DeltaPipelineConfig(LakePipelineConfig):
    """What is kept in Delta tables, whatever it is."""

    max_bytes_per_batch: Bytes = Field(
        2 << 30,
        gt=0,
        description="The driver holds a batch's last change of each row. One that comes to more "
        "bytes than this stops the pipeline, by name, instead of exhausting memory.",
    )
