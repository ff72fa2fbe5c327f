"""composed.py FOLDER: the program in FOLDER/program.py in a Spark that has Delta's own jars. After
each line that comes in, it tells the rows of the table `orders` when the query has all there is."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.spark.catalogs import delta_session

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    program: dict[str, Any] = {"spark": delta_session(folder)}
    exec((folder / "program.py").read_text(), program)
    for _ in sys.stdin:
        program["query"].processAllAvailable()
        rows = program["spark"].table("orders").collect()
        print(json.dumps([row.asDict() for row in rows]), flush=True)
    program["query"].stop()
    program["spark"].stop()
