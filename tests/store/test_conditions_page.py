"""docs/reference/store-conditions.md says what the code does."""

import re
from pathlib import Path
from typing import Any

from penstock.store.documents import from_json
from penstock.store.filters import condition_from_json

PAGE = Path(__file__).parents[2] / "docs/reference/store-conditions.md"


def test_the_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 2
    namespace = dict[str, Any]()
    for example in examples:
        exec(example, namespace)


def test_the_json_is_a_condition() -> None:
    (document,) = re.findall(r'^`(\{"And".*\})`$', PAGE.read_text(), re.MULTILINE)
    condition_from_json(from_json(document))
