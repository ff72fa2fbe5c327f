"""The shim by which Spark finds `format("penstock")`.

Spark imports every top-level package whose name begins with `pyspark_`, and takes its
`DefaultSource` (pyspark/sql/worker/lookup_data_sources.py).
"""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
