"""`python -m bench.coalesce`."""

from bench.coalesce.run import main

if __name__ == "__main__":
    main()
