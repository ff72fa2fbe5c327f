"""docs/how-to/store.md says how a store feeds the log."""

import re
import tomllib
from pathlib import Path

from penstock.sources.store import StoreSourceConfig

PAGE = Path("docs/how-to/store.md").read_text()


def test_every_configuration_on_the_page_is_one() -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        for source in tomllib.loads(example)["sources"].values():
            StoreSourceConfig.model_validate(source)


def test_the_page_names_every_reason_of_a_gap() -> None:
    for reason in ("stream_disabled", "stream_enabled", "on_position_lost", "KEYS_ONLY"):
        assert f"`{reason}`" in PAGE
