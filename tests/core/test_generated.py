"""What is generated and committed is what its source says today."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import _generated

PROTO = Path("proto")
GENERATED = Path(_generated.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("script", ["reference_fields", "reference_configuration"])
def test_reference_docs_are_current(script: str) -> None:
    subprocess.run([sys.executable, f"scripts/{script}.py", "--check"], check=True)


@pytest.mark.parametrize("proto", ["penstock/v1/penstock.proto", "puller.proto"])
def test_generated_code_is_current(proto: str, tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            *("-m", "grpc_tools.protoc", "-I", str(PROTO)),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", proto),
        ],
        check=True,
    )
    stem = proto.removesuffix(".proto")
    for name in (f"{stem}_pb2.py", f"{stem}_pb2.pyi"):
        committed = (GENERATED / name).read_text()
        assert committed == (tmp_path / name).read_text(), "run `make proto` and commit the result"
