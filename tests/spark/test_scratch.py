"""Temporary folders go with their process, and with no other."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from penstock.spark.scratch import scratch_folder, sweep_scratch

KILLED = """
import os
from penstock.spark.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_only_folders_whose_process_has_ended_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever processes can be seen: another container has numbers of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    left = Path(done.stdout.strip())
    strange = tmp_path / "penstock-batch-another"
    strange.mkdir()
    with scratch_folder() as folder:
        (Path(folder) / "t").touch()
        assert sorted(tmp_path.iterdir()) == sorted([left, strange, Path(folder)])
        sweep_scratch()
        assert sorted(tmp_path.iterdir()) == sorted([strange, Path(folder)])
        assert (Path(folder) / "t").exists()
    assert [*tmp_path.iterdir()] == [strange]
