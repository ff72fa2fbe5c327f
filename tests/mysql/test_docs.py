"""docs/how-to/mysql.md says how MySQL and MariaDB are captured."""

import re
import tomllib
from pathlib import Path

from penstock.sources.mysql import MysqlSourceConfig
from penstock.sources.mysql.charsets import CODECS
from penstock.sources.mysql.failures import GRANTS

PAGE = Path("docs/how-to/mysql.md").read_text()


def test_every_configuration_on_the_page_is_one() -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for example in examples:
        for source in tomllib.loads(example)["sources"].values():
            MysqlSourceConfig.model_validate(source)


def test_the_page_names_what_is_granted_and_which_text_is_read() -> None:
    assert GRANTS in PAGE
    for charset in CODECS.keys() - {"utf8"}:
        assert charset in PAGE
