"""The examples of docs/how-to/zero.md."""

import re
from pathlib import Path

PAGE = Path("docs/how-to/zero.md").read_text()


def blocks(language: str) -> list[str]:
    """All examples in a language."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"the page has no example in {language}"
    return found


def configuration(database: str, *, zero: bool = True) -> str:
    """The penstock.toml of who followed the page; without `zero`, of who has just begun."""
    every = blocks("toml")
    begun = next(one for one in every if f'type = "{database}"' in one)
    tables = [one for one in every if "[serve.zero" in one] if zero else []
    if database == "mysql":
        # There the tables have the names that Zero gives the columns.
        tables = [
            "\n".join(line for line in one.splitlines() if '"_id.' not in line) for one in tables
        ]
    return "\n".join([begun, *tables])
