"""`penstock pipeline run` for spark-submit, which starts files: penstock_pipeline.py NAME ..."""

import sys

from penstock.cli import main

sys.argv[1:1] = ["pipeline", "run"]
main()
