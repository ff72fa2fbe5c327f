"""docs/how-to/mongodb.md says what the code does."""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from penstock.sources.mongodb import MongoSourceConfig
from penstock.sources.mongodb.deployment import grant_command
from tests.mongodb.support import config

PAGE = Path("docs/how-to/mongodb.md")


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, ()):
        return "–"
    return f"`{TypeAdapter(Any).dump_json(field.default).decode()}`"


def table() -> str:
    """The settings, as the page shows them."""
    rows = ["| setting | default | means |", "|---|---|---|"]
    for name, field in MongoSourceConfig.model_fields.items():
        if name == "type":
            continue
        choices = [f"`{choice}`" for choice in get_args(field.annotation) if type(choice) is str]
        among = f" One of {', '.join(choices)}." if choices else ""
        rows.append(f"| `{name}` | {default_of(field)} | {field.description}{among} |")
    return "\n".join(rows)


def test_the_settings_on_the_page_are_those_of_the_code() -> None:
    found = re.search(
        r"<!-- settings: begin -->\n(.*)\n<!-- settings: end -->", PAGE.read_text(), re.DOTALL
    )
    assert found is not None
    assert found[1] == table(), f"paste this between the two marks:\n{table()}"


def test_every_toml_on_the_page_is_a_configuration() -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        told = example.replace("${MONGO_URI}", "mongodb://localhost")
        for options in tomllib.loads(told)["sources"].values():
            MongoSourceConfig.model_validate(options)


def test_the_grant_on_the_page_is_the_one_that_doctor_prints() -> None:
    """Without line breaks; tests/mongodb/test_doctor.py proves that it is enough."""
    page = "".join(line.strip() for line in PAGE.read_text().splitlines())
    grant = grant_command(config("mongodb://localhost", database="shop"))
    assert grant.replace(" ", "") in page.replace(" ", "")
