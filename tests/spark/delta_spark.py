"""Spark with Delta's own jars: delta_spark.py TABLE JARS reads the table, and merges into it."""

import json
import sys

from penstock.spark.session import local_session

if __name__ == "__main__":
    table, jars = sys.argv[1:]
    spark = local_session(
        master="local[1]",
        settings={
            "spark.driver.memory": "700m",
            "spark.jars": jars,
            "spark.log.level": "ERROR",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    )
    rows = spark.read.format("delta").load(table).drop("_source", "_database").orderBy("_key")
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    print(
        json.dumps(
            {"types": types, "rows": [json.loads(str(row)) for row in rows.toJSON().collect()]}
        )
    )
    spark.sql(  # pyright: ignore[reportUnknownMemberType]
        f"MERGE INTO delta.`{table}` AS own USING (SELECT '{{\"_id\":1}}' AS k) AS other "
        f"ON own._key = other.k WHEN MATCHED THEN UPDATE SET name = 'merged'"
    )
    spark.stop()
