"""`to = "view"`: the result of a query."""

from typing import Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from penstock.spark.config.lake import DeltaPipelineConfig


class ViewPipelineConfig(DeltaPipelineConfig):
    """Keep the result of a SQL aggregate over collections, with Spark."""

    makes: ClassVar[str] = "view"

    to: Literal["view"] = Field(
        description="What is made of the changes: `view` keeps what a query gives of current rows."
    )
    path: str = Field(
        description="Where the view is, a Delta table: a folder or a URL. The current rows that it "
        "is made of are beside it, in the path with `_state` at its end; which of them its query "
        "cannot compute is said in the one with `_apart`.",
        min_length=1,
    )
    collections: tuple[str, ...] = Field(
        (),
        validate_default=True,
        description="The collections of the query, which it names itself; need not be written.",
    )
    query: str = Field(
        description="SELECT ... FROM a collection, JOIN or LEFT JOIN others, WHERE and GROUP BY, "
        "in Spark's SQL, with count, sum, avg, min and max.",
        min_length=1,
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        alias="schema",
        description="By collection: columns that it has from the start, as "
        '`orders = "total BIGINT, status STRING"`. Others have the type of their first value.',
    )

    @property
    def state_path(self) -> str:
        """The folder of the tables of current rows."""
        return f"{self.path.rstrip('/')}_state"

    @property
    def apart_path(self) -> str:
        """The table of the current rows that the query cannot compute."""
        return f"{self.path.rstrip('/')}_apart"

    @model_validator(mode="before")
    @classmethod
    def _of_its_query(cls, written: Any) -> Any:
        """The collections are those of the query."""
        fields = cast("dict[str, Any]", written)
        if not isinstance(written, dict) or not isinstance(fields.get("query"), str):
            return fields
        try:
            from penstock.spark.view.query import check_columns, parse_columns, parse_query
        except ModuleNotFoundError:
            # A service needs no Spark; the pipeline's own process does, and has what reads SQL.
            return fields
        query = parse_query(fields["query"])
        given = cast("list[str]", fields.get("collections") or list(query.collections))
        plain = {str(name).removeprefix(f"{fields.get('source')}/") for name in given}
        if plain != set(query.collections):
            raise ValueError(
                f"collections says {', '.join(sorted(plain))}, and the query reads "
                f"{', '.join(query.collections)}; leave collections out"
            )
        ddl = cast("dict[str, str]", fields.get("schema") or {})
        if isinstance(ddl, dict):
            check_columns(query, {name: parse_columns(name, ddl[name]) for name in ddl})
        return {**fields, "collections": query.collections}
