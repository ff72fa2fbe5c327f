"""`penstock run`: the service."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.cli.serve_process import Addresses

Tell = Callable[[dict[str, Any]], None]


def command(
    config: output.ConfigOption = output.DEFAULT_CONFIG,
    as_json: output.JsonOption = False,
    one_process: Annotated[
        bool,
        typer.Option("--one-process", help="Capture and serve in one process: small machines."),
    ] = False,
    grpc: Annotated[
        str | None, typer.Option(help="Serve gRPC here instead; port 0 takes a free one.")
    ] = None,
    flight: Annotated[
        str | None, typer.Option(help="Serve Flight here instead; port 0 takes a free one.")
    ] = None,
    role: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service: capture every source into the log, and serve it. Stop with Ctrl-C.

    Capture and serve are two processes; one that dies is started again, and that is said.
    """
    from penstock.cli import logs
    from penstock.cli.config import load
    from penstock.cli.parent import ChildFailedError, die_with_parent, supervise_processes

    die_with_parent()
    logs.configure(as_json=as_json, process=role or "penstock")
    settings = load(config, listen={"grpc": grpc, "flight": flight})
    if role == "capture":
        _run(lambda stop: _capture(settings, stop), interruptible=False)
    elif role == "serve":
        _run(lambda stop: _serve(settings, stop), interruptible=False)
    else:
        tell = _while_heard(output.emit if as_json else _say)
        options = ["--json"] if as_json else []
        try:
            _run(
                lambda stop: (
                    one_process_service(settings, stop=stop, tell=tell)
                    if one_process
                    else supervise_processes(settings, stop=stop, tell=tell, options=options)
                ),
                interruptible=True,
            )
        except ChildFailedError as error:
            raise typer.Exit(error.returned if error.returned > 0 else 1) from None


def _run(
    body: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, interruptible: bool
) -> None:
    """Run `body` until it returns; SIGTERM, and SIGINT if `interruptible`, ask it to.

    A terminal's Ctrl-C reaches the whole process group, but a child stops when its parent says so.
    """

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        if interruptible:
            loop.add_signal_handler(signal.SIGINT, stop.set)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        await body(stop)

    asyncio.run(run())


async def _capture(settings: "Settings", stop: asyncio.Event) -> None:
    from penstock.cli.capture_process import capture, relax_collector
    from penstock.log import LmdbLog

    relax_collector()
    async with LmdbLog(settings.log) as log:
        output.emit({"pid": os.getpid()})
        await capture(settings, log, stop=stop)


async def _serve(settings: "Settings", stop: asyncio.Event) -> None:
    from penstock.cli.serve_process import serve
    from penstock.log import LmdbLogReader

    async with await LmdbLogReader.open(
        settings.log.path, cache_bytes=settings.log.cache_bytes
    ) as log:
        await serve(
            settings,
            log,
            stop=stop,
            ready=lambda addresses: output.emit({"pid": os.getpid(), **to_builtins(addresses)}),
        )


async def one_process_service(settings: "Settings", *, stop: asyncio.Event, tell: Tell) -> None:
    """Capture and serve in this process until `stop`; `tell` gets the ready fact."""

    from penstock.cli.capture_process import capture
    from penstock.cli.parent import ready_fact
    from penstock.cli.serve_process import serve
    from penstock.log import LmdbLog

    def ready(addresses: "Addresses") -> None:
        tell(ready_fact(settings, to_builtins(addresses), {"run": os.getpid()}))

    try:
        async with LmdbLog(settings.log) as log, asyncio.TaskGroup() as group:
            group.create_task(capture(settings, log, stop=stop))
            group.create_task(serve(settings, log, stop=stop, ready=ready))
    except* PenstockError as errors:
        raise errors.exceptions[0] from None


def _while_heard(tell: Tell) -> Tell:
    """`tell`, until nobody reads our output any more: the service does not end for that."""

    def tell_or_go_on(fact: dict[str, Any]) -> None:
        try:
            tell(fact)
        except BrokenPipeError:
            output.silence()

    return tell_or_go_on


def _say(fact: dict[str, Any]) -> None:
    console = output.stdout()
    event = fact["event"]
    if event == "ready":
        console.print("[bold green]ready[/]", end=" ")
        console.print(
            f"gRPC {fact['grpc']}, Flight {fact['flight']}, log {fact['log']}, "
            f"{len(fact['sources'])} source(s). Ctrl-C stops it.",
            markup=False,
            soft_wrap=True,
        )
    elif event == "died":
        console.print(
            f"[bold red]{fact['role']} died[/] (exit code {fact['exitCode']}); restarting"
        )
    elif event == "restarted":
        console.print(f"[bold green]{fact['role']} is back[/] (pid {fact['pid']})")
