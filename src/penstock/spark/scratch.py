"""Folders for what a batch needs on its way, and no longer."""

import fcntl
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.session import on_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCRATCH: Final = "penstock-batch-"
_LOCK: Final = ".lock"


@contextmanager
def shared_scratch(spark: "SparkSession") -> Generator[str | None]:
    """A folder that workers and driver share; None where they are not on one machine."""
    if not on_this_machine(str(spark.sparkContext.master)):
        yield None
        return
    with scratch_folder() as folder:
        # What is mapped when the folder goes stays readable until it is let go.
        yield folder


@contextmanager
def scratch_folder() -> Generator[str]:
    """A folder on this machine for as long as it is in use; `sweep_scratch` knows it.

    A lock on a file in it says so, and ends with this process. Its id would say nothing to a
    process of another container that has the same folder for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, ignore_cleanup_errors=True) as folder:
        lock = Path(folder, _LOCK)
        begun = lock.with_suffix(".new")
        with begun.open("wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Only now it has the name by which it is looked for: it is never seen without a lock.
            begun.rename(lock)
            yield folder


def sweep_scratch() -> None:
    """Remove what drivers that were killed have left in the folder for temporary files."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(OSError), (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
