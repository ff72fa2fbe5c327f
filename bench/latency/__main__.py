"""`python -m bench.latency`."""

from bench.latency.run import main

if __name__ == "__main__":
    main()
