"""What importing the client costs, and that every name is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import client

HEAVY = ("grpc", "lmdb", "structlog", "penstock.client.following")


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import penstock.client", "import penstock.client.flight"])
def test_a_spark_worker_does_not_pay_for_what_follows_a_service(statement: str) -> None:
    assert not loaded_after(statement).intersection(HEAVY)


def test_every_export_is_there_and_none_has_the_name_of_a_module() -> None:
    assert client.__file__ is not None
    modules = {path.stem for path in Path(client.__file__).parent.glob("*.py")}
    assert not modules.intersection(client.__all__)
    for name in client.__all__:
        assert getattr(client, name).__module__.startswith("penstock.")
    with pytest.raises(AttributeError, match="folow"):
        client.folow  # type: ignore[attr-defined]  # noqa: B018
