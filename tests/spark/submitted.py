"""What spark-submit starts to look at the session it gets: submitted.py SETTING..."""

import json
import sys

from penstock.errors import ConfigError
from penstock.spark.session import local_session

CODE = {
    "spark.sql.shuffle.partitions": "7",
    # Of names that Spark itself does not know, and some that it takes once only.
    "spark.sql.catalog.main": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
    "spark.sql.catalog.main.uri": "http://127.0.0.1:1",
    "spark.sql.warehouse.dir": "file:/tmp/warehouse",
    "spark.executor.memory": "700m",
}

if __name__ == "__main__":
    refused: list[str] = []
    decided = {"spark.driver.memory": "9g", "spark.jars.packages": "a:b:1"}
    for master, settings in (("local[7]", {}), (None, decided)):
        try:
            local_session(master=master, settings=settings)
        except ConfigError as error:
            refused.append(str(error))
    session = local_session(settings=CODE)
    try:
        local_session(settings={"spark.executor.memory": "900m"})
    except ConfigError as error:
        refused.append(str(error))
    found = {name: session.conf.get(name, None) for name in (*CODE, *sys.argv[1:])}
    print(json.dumps({"master": session.sparkContext.master, "refused": refused, **found}))
    session.stop()
