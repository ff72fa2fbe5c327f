"""Temporary folders go with their process, and with no other."""

import os
import subprocess
import sys
from pathlib import Path

KILLED = """
import os
from penstock.spark.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""
SWEEPS = """
import os
from pathlib import Path
from penstock.spark.scratch import scratch_folder, sweep_scratch
os.getpid = lambda: 1 << 30
with scratch_folder() as folder:
    Path(folder, "t").touch()
    print(folder, *Path(folder).parent.iterdir(), flush=True)
    sweep_scratch()
    print(folder, *Path(folder).parent.iterdir(), flush=True)
    assert Path(folder, "t").exists()
"""


def run(program: str, folder: Path) -> list[list[Path]]:
    """What a process of its own prints, whose temporary folders are in this one."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )
    return [[Path(one) for one in line.split()] for line in done.stdout.splitlines()]


def test_only_folders_whose_process_has_ended_are_swept(tmp_path: Path) -> None:
    """Whatever processes can be seen: another container has numbers of its own."""
    [[left]] = run(KILLED, tmp_path)
    strange = tmp_path / "penstock-batch-another"
    strange.mkdir()
    (own, *before), (_, *after) = run(SWEEPS, tmp_path)
    assert sorted(before) == sorted([left, strange, own])
    assert sorted(after) == sorted([strange, own])
    assert [*tmp_path.iterdir()] == [strange]
