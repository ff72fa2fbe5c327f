"""The settings of every Spark session that tests share: their queries have few rows, and run once.

Drivers that tests start in processes of their own (driver.py and others) have what users have.
"""

from typing import Final

FEW_ROWS: Final = {
    # What is asked once is done sooner than code for it is made.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # No error has to say in which line of Python a column was made, of which each is told the JVM.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Nobody looks at plans in Spark's UI, which is off: they are written the cheapest way.
    "spark.sql.ui.explainMode": "simple",
    # Each task that sorts or aggregates fills a page, of 16 MiB otherwise, and each stage is told
    # to its tasks in a block of 4 MiB: a third of all that the JVM allocated.
    "spark.buffer.pageSize": "1m",
    "spark.broadcast.blockSize": "64k",
}
