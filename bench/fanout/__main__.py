"""`python -m bench.fanout`."""

from bench.fanout.run import main

if __name__ == "__main__":
    main()
