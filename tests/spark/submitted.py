"""What spark-submit starts to look at the session it gets: submitted.py SETTING..."""

import json
import sys

from penstock.errors import ConfigError
from penstock.spark.session import local_session

if __name__ == "__main__":
    refused = ""
    try:
        local_session(master="local[7]")
    except ConfigError as error:
        refused = str(error)
    session = local_session(settings={"spark.sql.shuffle.partitions": "7"})
    settings = {name: session.conf.get(name, None) for name in sys.argv[1:]}
    print(json.dumps({"master": session.sparkContext.master, "refused": refused, **settings}))
    session.stop()
