"""`to = "table"`: current rows."""

import re
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from penstock.errors import ConfigError
from penstock.spark.config.lake import DeltaPipelineConfig
from penstock.spark.config.names import table_name_of
from penstock.spark.transform.config import ELEMENT

_CATALOG = re.compile(r"\w[\w-]*(\.\w[\w-]*)?", re.ASCII)


class TablePipelineConfig(DeltaPipelineConfig):
    """Keep tables equal to collections, with Spark."""

    makes: ClassVar[str] = "table"

    to: Literal["table"] = Field(
        "table", description="What is made of the changes: `table` keeps current rows in Delta."
    )
    path: str = Field(
        "",
        description="Where the Delta table is, a folder or a URL. With one collection the table "
        "itself; otherwise each collection is a table in the folder of its name below. Not with "
        "`catalog`.",
    )
    catalog: str | None = Field(
        None,
        description="In place of `path`: the schema in which the collections' tables are, as "
        "`main.sales` for one of a catalog, or `sales`. Spark writes them, with Delta's own jars, "
        "by the catalog that its session is set up with. What is kept beside them is there too.",
    )
    nested: Literal["json"] = Field(
        "json", description="How objects and arrays are kept: as Extended JSON text."
    )
    first_load: Literal["off", "source"] = Field(
        "off",
        description="`source`: rows that were there before the log are read from the source "
        "itself, by Spark's tasks, while changes go on being applied. Driver and workers must "
        "reach the source, with the settings of its [sources.NAME].",
    )
    first_load_rows: int = Field(
        20_000, gt=0, description="Rows of a range that one task reads, about; fewer large ones."
    )
    verify_against: Literal["log", "source"] = Field(
        "log",
        description="What `verify_every` compares with. `source`: every row is read there again, "
        "as for a first load, and tables that had one are compared too. Not with `catalog`.",
    )

    def _check_explode(self) -> None:
        self._check_last_explode()
        if self.explodes and self.catalog is not None:
            raise ValueError(
                "explode writes to folders, not by a catalog: set path instead, or leave the step "
                "out and have Spark SQL's explode over from_json make a view of the table"
            )
        if any(step.explode.lower() == ELEMENT for step in self.explodes):
            raise ValueError(
                f"explode makes a column {ELEMENT}, the place in the array, and the array has that "
                f"name too; put a step before it: rename = {{ {ELEMENT} = 'NAME' }}"
            )

    def exploded_field(self, collection: str) -> str:
        """The field of whose elements a collection's rows are; empty for rows of documents."""
        return next((step.explode for step in self.explodes if step.concerns(collection)), "")

    @field_validator("catalog")
    @classmethod
    def _names_a_schema(cls, catalog: str | None) -> str | None:
        if catalog is not None and not _CATALOG.fullmatch(catalog):
            raise ValueError(f"{catalog!r} is no schema; write it as main.sales, or sales")
        return catalog

    @model_validator(mode="after")
    def _in_folders_or_in_a_catalog(self) -> Self:
        if self.catalog is None:
            if not self.path:
                raise ValueError("path is missing: where the tables are; or set catalog")
            return self
        for name in ("path", "standing", "rejects", "storage_options"):
            if name in self.model_fields_set:
                raise ValueError(
                    f"{name} is for tables in folders, and with catalog = {self.catalog!r} all "
                    f"tables are in that schema; leave {name} out"
                )
        if self.first_load != "off":
            raise ValueError(
                "first_load = 'source' writes to folders, not by a catalog: leave it out, and have "
                "the service copy the rows through the log (penstock snapshot)"
            )
        if self.verify_against == "source":
            raise ValueError(
                "verify_against = 'source' compares tables in folders; with catalog leave it out, "
                "and have them compared with the log"
            )
        names: dict[str, str] = {}
        for one in self.collections:
            other = names.setdefault(table_name_of(one).lower(), one)
            if other != one:
                raise ValueError(
                    f"{other} and {one} would be one table, for catalogs do not tell upper case "
                    f"from lower; put one of them into another pipeline, with another schema"
                )
        return self

    @property
    def place_setting(self) -> str:
        """As of any pipeline."""
        return "path" if self.catalog is None else "catalog"

    @property
    def standing_path(self) -> str:
        """As of any pipeline. Raises ConfigError where the tables are in a catalog."""
        self._require_folder()
        return super().standing_path

    @property
    def rejects_path(self) -> str:
        """As of any pipeline. Raises ConfigError where the tables are in a catalog."""
        self._require_folder()
        return super().rejects_path

    def table_path(self, collection: str) -> str:
        """As of any pipeline. Raises ConfigError where the tables are in a catalog."""
        self._require_folder()
        return super().table_path(collection)

    def _require_folder(self) -> None:
        if self.catalog is not None:
            raise ConfigError(
                f"the tables of this pipeline are in the catalog, in {self.catalog}, and this is "
                f"done for tables in folders only. Nothing was changed. Use Spark SQL there."
            )

    @property
    def load_path(self) -> str:
        """The Delta table that says how far the first load has come."""
        return f"{self.standing_path.rstrip('/')}_load"

    @model_validator(mode="after")
    def _loads_documents_as_they_are(self) -> Self:
        if self.first_load == "source" and (self.steps or self.expect):
            raise ValueError(
                "first_load = 'source' brings rows without steps or expectations (apply_as_deletes "
                "is a step): leave them out, or have the service copy the rows through the log "
                "(penstock snapshot)"
            )
        return self

    @model_validator(mode="after")
    def _can_be_verified(self) -> Self:
        if self.verify_every and self.explodes:
            raise ValueError(
                "verify_every compares rows of documents, and explode makes rows of elements; "
                "leave verify_every out"
            )
        if self.verify_every and self.verify_against == "source" and (self.steps or self.expect):
            raise ValueError(
                "verify_every with verify_against = 'source' reads the source without steps and "
                "expectations (apply_as_deletes is a step); leave verify_against out, and tables "
                "are compared with the log, which goes through them"
            )
        if self.verify_every and self.first_load != "off" and self.verify_against == "log":
            raise ValueError(
                "verify_every compares tables with the log, and the log does not tell what a first "
                "load read from the source; set verify_against = 'source', or leave verify_every "
                "out"
            )
        return self
