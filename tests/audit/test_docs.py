"""docs/how-to/audit.md says what a trail is and what the commands do."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.audit.records import record_of
from penstock.cli.config import load
from tests.audit.support import row, text

PAGE = Path("docs/how-to/audit.md").read_text()


def test_the_first_configuration_on_the_page_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHOP_PASSWORD", "AUDIT_SEAL_KEY"):
        monkeypatch.setenv(name, "a secret of twenty characters")
    monkeypatch.setenv("AUDIT_MONGO_URI", "mongodb://127.0.0.1:27017")
    example = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
    file = tmp_path / "penstock.toml"
    file.write_text(example)
    assert load(file).audit_pipelines["trail"].source == "shop"


def test_the_record_on_the_page_has_the_fields_of_a_record_in_their_order() -> None:
    shown = msgspec.json.decode(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0].encode())
    origin = text({"file": "b", "offset": 1, "statement": "x"})
    before, after = {"id": 3, "status": "open"}, {"id": 3, "status": "paid"}
    made = record_of(row(1, before=before, after=after, origin=origin), tz="Asia/Kolkata")
    assert made is not None
    assert fields({**made, "at": 1}) == fields(shown)


def fields(record: dict[str, Any]) -> list[Any]:
    return [
        (name, list(value)) if name in {"meta", "txn", "src"} else name
        for name, value in record.items()
    ]


def test_every_alert_of_the_rules_is_on_the_page() -> None:
    """A22: whoever is woken finds what to do."""
    rules = Path("deploy/prometheus-rules.yml").read_text()
    for alert in re.findall(r"- alert: (\w+)", rules):
        short = re.sub(r"(FarBehind|Critical|Stopped|ManyPendingParts)$", "", alert)
        assert short in PAGE, alert
