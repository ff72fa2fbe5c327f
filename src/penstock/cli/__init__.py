"""The command line: `penstock`."""


def main() -> None:
    """Run the command line; never returns."""
    # Here, so that `penstock.cli.config` can be used without loading every command.
    from penstock.cli.app import main as app_main

    app_main()
