"""`penstock run`: the service."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from msgspec import to_builtins

from penstock.cli import output
from penstock.cli.exit_codes import ENDED_BY_FORCE
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.config import Settings
    from penstock.cli.live import Reloads
    from penstock.cli.serve_process import Addresses


Tell = Callable[[dict[str, Any]], None]

_SAYING_SECONDS_MAX: Final = 1.0


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
    http: Annotated[
        str | None, typer.Option(help="Serve health and metrics here instead; `off` serves none.")
    ] = None,
    dynamodb: Annotated[
        str | None,
        typer.Option(help="Serve DynamoDB Streams here instead; `off` serves none."),
    ] = None,
    role: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service: capture every source into the log, and serve it. Stop with Ctrl-C.

    Capture and serve are two processes; one that dies is started again, and that is said.
    """
    from penstock.cli import logs
    from penstock.cli.config import load
    from penstock.cli.notify import notifying
    from penstock.cli.parent import ChildFailedError, die_with_parent, supervise_processes

    die_with_parent()
    logs.configure(as_json=as_json, process=role or "penstock")
    listen = {"grpc": grpc, "flight": flight, "http": http, "dynamodb": dynamodb}
    settings = load(config, listen=listen)
    logs.set_level(settings.logging.level)
    if role == "capture":
        _run(lambda asked: _capture(settings, asked), child=True)
    elif role == "serve":
        _run(lambda asked: _serve(settings, asked), child=True)
    else:
        tell = notifying(_while_heard(output.emit if as_json else show))
        options = ["--json"] if as_json else []
        try:
            _run(
                lambda asked: (
                    one_process_service(settings, stop=asked.stop, tell=tell, hangup=asked.reload)
                    if one_process
                    else supervise_processes(
                        settings,
                        stop=asked.stop,
                        tell=tell,
                        options=options,
                        hangup=asked.reload,
                        taken_over=asked.taken_over,
                    )
                ),
                child=False,
                alone=one_process,
            )
        except ChildFailedError as error:
            raise typer.Exit(error.returned if error.returned > 0 else 1) from None


class Asked(NamedTuple):
    """What signals ask of a process."""

    stop: asyncio.Event
    """SIGTERM, and SIGINT in the parent. A second one changes nothing: draining goes on."""
    reload: asyncio.Event
    """SIGHUP."""
    taken_over: asyncio.Event
    """SIGUSR1, in the parent: capture says that it has taken over the configuration."""


def _run(
    body: Callable[[Asked], Coroutine[Any, Any, None]], *, child: bool, alone: bool = False
) -> None:
    """Run `body` until it returns; SIGTERM, and SIGINT unless it is a `child`, ask it to.

    One that is `alone` has no parent to kill it when it does not end in time, so it does so itself.

    A terminal's Ctrl-C reaches the whole process group, but a child stops when its parent says so,
    and tells it all the while that it lives. SIGHUP asks for a reload, but what was started on a
    terminal ends with it.
    """

    from penstock.cli.parent import beat

    async def run() -> None:
        asked = Asked(asyncio.Event(), asyncio.Event(), asyncio.Event())
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if alone and not asked.stop.is_set():
                _end_in_time()
            asked.stop.set()

        loop.add_signal_handler(signal.SIGTERM, stop)
        if not child:
            loop.add_signal_handler(signal.SIGINT, stop)
            loop.add_signal_handler(signal.SIGUSR1, asked.taken_over.set)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        closes = not child and sys.stdin is not None and sys.stdin.isatty()
        loop.add_signal_handler(signal.SIGHUP, stop if closes else asked.reload.set)
        beating = asyncio.create_task(beat() if child else asyncio.sleep(0))
        try:
            await body(asked)
        finally:
            beating.cancel()
            # What comes now is too late, and must not end us halfway out.
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    asyncio.run(run())


def _end_in_time() -> None:
    """End this process, draining or not, when both of two processes would have been killed.

    A thread, for what does not end may hold up the loop, or be a thread that the interpreter waits
    for. It dies with a process that ends before. The log needs no clean end. The exit code is
    `ENDED_BY_FORCE`, and that is said, but nobody is waited for who does not read it, nor a thread
    that holds the logger.
    """
    import structlog

    from penstock.cli import parent

    logger = structlog.get_logger(__name__)

    def say() -> None:
        logger.warning("the service did not stop in time; ending it", exit_code=ENDED_BY_FORCE)

    def end() -> None:
        try:
            saying = threading.Thread(target=say, daemon=True)
            saying.start()
            saying.join(_SAYING_SECONDS_MAX)
        finally:
            os._exit(ENDED_BY_FORCE)

    timer = threading.Timer(2 * parent.DRAIN_SECONDS_MAX, end)
    timer.daemon = True
    timer.start()


async def _capture(settings: "Settings", asked: Asked) -> None:
    from penstock.cli.capture_process import SystemClock, capture, relax_collector
    from penstock.cli.publishing import opened_log
    from penstock.telemetry import REGISTRY, count_process

    relax_collector()
    count_process("capture", REGISTRY)
    async with opened_log(settings, clock=SystemClock()) as (log, publisher):
        output.emit({"pid": os.getpid()})
        await capture(settings, log, stop=asked.stop, publisher=publisher, hangup=asked.reload)


async def _take_over(settings: "Settings", hangup: asyncio.Event, reloads: "Reloads") -> None:
    """What the serve process takes over of a changed configuration. Capture says what it was.

    It is asked to only when capture has taken it over: what capture refuses is not read here.
    """
    import structlog

    from penstock.cli import logs
    from penstock.cli.config import load
    from penstock.errors import ConfigError

    logger = structlog.get_logger(__name__)
    while True:
        await hangup.wait()
        hangup.clear()
        try:
            after = load(settings.path, running=True)
        except ConfigError as error:
            # Capture has read another: the reload of the one that is there now meets this too.
            logger.error(  # noqa: TRY400
                "configuration changed again before serve took it over; reload once more",
                reason=str(error),
            )
            continue
        logs.set_level(after.logging.level)
        reloads.take(after)


async def _serve(settings: "Settings", asked: Asked) -> None:
    from penstock.cli.live import Reloads
    from penstock.cli.serve_process import serve
    from penstock.log import LmdbLogReader
    from penstock.telemetry import SERVE_REGISTRY, count_process

    count_process("serve", SERVE_REGISTRY)
    opening = asyncio.ensure_future(
        LmdbLogReader.open(settings.log.path, cache_bytes=settings.log.cache_bytes)
    )
    stopping = asyncio.ensure_future(asked.stop.wait())
    await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not opening.done():  # there is no log yet, and may never be one
        opening.cancel()
        return
    async with await opening as log:
        reloads = Reloads()
        following = asyncio.create_task(_take_over(settings, asked.reload, reloads))
        try:
            await serve(
                settings,
                log,
                stop=asked.stop,
                reloads=reloads,
                ready=lambda addresses: output.emit({"pid": os.getpid(), **to_builtins(addresses)}),
            )
        finally:
            following.cancel()


async def one_process_service(
    settings: "Settings",
    *,
    stop: asyncio.Event,
    tell: Tell,
    hangup: asyncio.Event | None = None,
) -> None:
    """Capture and serve in this process until `stop`; `tell` gets the ready fact. Reload at
    `hangup`."""

    from penstock.cli.capture_process import SystemClock, capture
    from penstock.cli.live import Reloads
    from penstock.cli.parent import ready_fact
    from penstock.cli.publishing import opened_log
    from penstock.cli.serve_process import serve

    async def say(addresses: dict[str, Any]) -> None:
        tell(await ready_fact(settings, addresses, {"run": os.getpid()}))

    try:
        async with (
            opened_log(settings, clock=SystemClock()) as (log, publisher),
            asyncio.TaskGroup() as group,
        ):

            def ready(addresses: "Addresses") -> None:
                group.create_task(say(to_builtins(addresses)))

            reloads = Reloads()
            group.create_task(
                capture(
                    settings, log, stop=stop, publisher=publisher, hangup=hangup, reloads=reloads
                )
            )
            group.create_task(serve(settings, log, stop=stop, ready=ready, reloads=reloads))
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


def _states(states: dict[str, str]) -> str:
    if not states:
        return "no sources"
    return "sources " + ", ".join(f"{name} {state}" for name, state in states.items())


def show(fact: dict[str, Any]) -> None:
    """Tell a fact on the terminal."""
    console = output.stdout()
    event = fact["event"]
    if event == "ready":
        dynamodb = "" if fact["dynamodb"] == "off" else f"DynamoDB Streams {fact['dynamodb']}, "
        console.print("[bold green]ready[/]", end=" ")
        console.print(
            f"gRPC {fact['grpc']}, Flight {fact['flight']}, "
            f"{dynamodb}log {fact['log']}, "
            f"{_states(fact['states'])}. Ctrl-C stops it.",
            markup=False,
            soft_wrap=True,
        )
    elif event == "died":
        console.print(
            f"[bold red]{fact['role']} died[/] (exit code {fact['exitCode']}); restarting"
        )
    elif event == "restarted":
        console.print(f"[bold green]{fact['role']} is back[/] (pid {fact['pid']})")
