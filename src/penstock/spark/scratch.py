"""Folders for what a batch needs on its way, and no longer."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.session import on_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCRATCH: Final = "penstock-batch-"


@contextmanager
def shared_scratch(spark: "SparkSession") -> Generator[str | None]:
    """A folder that workers and driver share; None where they are not on one machine."""
    if not on_this_machine(str(spark.sparkContext.master)):
        yield None
        return
    with scratch_folder() as folder:
        # What is mapped when the folder goes stays readable until it is let go.
        yield folder


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder on this machine for as long as it is in use; `sweep_scratch` knows it."""
    return tempfile.TemporaryDirectory(
        prefix=f"{_SCRATCH}{os.getpid()}-", ignore_cleanup_errors=True
    )


def sweep_scratch() -> None:
    """Remove what drivers that were killed have left in the folder for temporary files."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        pid = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
