"""MySQL's upsert goes by any unique index: a table with a second one is refused."""

from typing import Any

import pytest

from penstock.spark.config import ReplicatePipelineConfig
from penstock.spark.replica.mysql import MysqlDialect


class Cursor:
    def __init__(self, *indexes: tuple[str, str, int]) -> None:
        self.answers: list[Any] = [[("BASE TABLE", "InnoDB")], [], list(indexes)]

    def execute(self, *_: Any) -> None:
        self.answer = self.answers.pop(0)

    def fetchone(self) -> Any:
        return self.answer[0]

    def fetchall(self) -> Any:
        return self.answer


@pytest.mark.parametrize("name", ["a_email", "z_email"])
@pytest.mark.parametrize("whole", [0, 1])
def test_a_second_unique_index_is_a_problem_wherever_it_is_listed(name: str, whole: int) -> None:
    uri = "mysql://there/shop"
    config = ReplicatePipelineConfig.model_validate({"to": "replicate", "source": "s", "uri": uri})
    indexes = sorted(
        [(name, b"email".hex(), whole), ("PRIMARY", b"id".hex(), 1)], key=lambda one: one[0].lower()
    )
    found = MysqlDialect("p", config).describe(Cursor(*indexes), "rows")
    assert found is not None
    assert any("second unique index" in one for one in found.problems)
