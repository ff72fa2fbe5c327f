"""`penstock config check`: is the configuration right? Nothing is started or connected."""

from typing import TYPE_CHECKING

import typer

from penstock.cli import output

if TYPE_CHECKING:
    from penstock.cli.config import Settings

app = typer.Typer(help="The configuration.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("check")
def check(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Check the configuration, and say what it configures; secrets are not shown.

    Every error of the file is said at once.
    """
    from penstock.cli.config import load
    from penstock.cli.images import remarks

    settings = load(config)
    if as_json:
        output.emit({"ok": True, **summary(settings), "remarks": remarks(settings)})
        return
    console = output.stdout()
    console.print(f"{settings.path} is right.", markup=False)
    for key, value in summary(settings).items():
        console.print(f"  {key}: {value}", markup=False)
    for remark in remarks(settings):
        console.print(remark, markup=False)


def summary(settings: "Settings") -> dict[str, object]:
    """What a configuration says, without a secret."""
    return {
        "log": str(settings.log.path),
        "sources": {name: source.kind for name, source in settings.sources.items()},
        "grpc": settings.serve.grpc,
        "flight": settings.serve.flight,
        "http": settings.serve.http,
        "dynamodb": "off" if settings.serve.dynamodb is None else settings.serve.dynamodb.address,
        "pipelines": {name: pipeline.to for name, pipeline in settings.pipelines.items()},
    }
