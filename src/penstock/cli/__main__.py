"""`python -m penstock.cli`: how `penstock run` starts its processes, whatever is on PATH."""

from penstock.cli.app import main

main()
