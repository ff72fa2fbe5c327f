"""`penstock doctor`: what would keep the service from running well, each with its fix."""

import asyncio
import importlib
import importlib.util
import os
import shutil
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from msgspec import to_builtins

from penstock.checks import Check, Level
from penstock.cli import output
from penstock.cli.status import ask_capture
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.config import Settings, SourceSettings
    from penstock.spark.config import PipelineConfig


class Finding(Check, frozen=True, kw_only=True):
    """One thing that was looked at, and where it belongs."""

    about: str
    """`sources.shop`, `log`, `serve.grpc`: where in the configuration it belongs."""

    @classmethod
    def of(cls, about: str, check: Check) -> "Finding":
        """What a doctor of its own said."""
        return cls(
            about=about, name=check.name, level=check.level, detail=check.detail, fix=check.fix
        )


_FOUND: Final = "lost+found"
"""What a file system has at its root, for root alone."""
_MARKS: Final = {
    Level.OK: "[green]ok     [/]",
    Level.WARNING: "[yellow]warning[/]",
    Level.ERROR: "[bold red]error  [/]",
}


def command(
    config: output.ConfigOption = output.DEFAULT_CONFIG, as_json: output.JsonOption = False
) -> None:
    """Check the configuration and every database it needs, with fixes.

    Changes nothing. A warning works, and somebody should decide whether it may stay so. Exit code
    1 if there is an error.
    """
    from penstock.cli.config import load

    findings = asyncio.run(examine(load(config)))
    for finding in findings:
        if as_json:
            output.emit(to_builtins(finding))
        else:
            _print(finding)
    if any(finding.level is Level.ERROR for finding in findings):
        raise typer.Exit(1)


async def examine(settings: "Settings") -> list[Finding]:
    """Every finding: the log's place, the ports, and what each source says of itself."""
    running = ask_capture(settings) is not None
    log = _log(settings)
    findings = [
        *log,
        *_place("archive", "path", _local(settings.archive.path)),
        *_place("access", "log", settings.access.log and settings.access.log.parent),
        *_tokens(settings),
        _port("serve.grpc", settings.serve.grpc, running=running),
        _port("serve.flight", settings.serve.flight, running=running),
        *(
            [_port("serve.http", settings.serve.http, running=running)]
            if settings.serve.http != "off"
            else []
        ),
    ]
    positions: dict[str, str] = {}
    if all(finding.name != "path" for finding in log):
        try:
            positions = await _positions(settings)
        except PenstockError as error:
            findings.append(Finding.of("log", Check.failed("log", error)))
    for source in settings.sources.values():
        findings += await _source(source, positions.get(source.name))
    findings += await _published(settings)
    for name, pipeline in settings.pipelines.items():
        findings += await asyncio.to_thread(_destination, name, pipeline)
    if not settings.sources:
        findings.append(
            Finding(
                about="sources",
                name="configured",
                level=Level.ERROR,
                detail="there is no source to capture",
                fix="add a [sources.NAME] with a type",
            )
        )
    return findings


def _log(settings: "Settings") -> list[Finding]:
    from penstock.disks import refuse_network_filesystem

    path = settings.log.path
    folder = _nearest(path)
    why = _unwritable(folder) or _unwritable_file(path)
    if why is not None:
        fix = "set [log] path to a folder that this user may write to, or may make"
        return [Finding(about="log", name="path", level=Level.ERROR, detail=why, fix=fix)]
    found: list[Finding] = []
    try:
        refuse_network_filesystem(folder)
    except PenstockError as error:
        found.append(
            Finding(
                about="log",
                name="filesystem",
                level=Level.ERROR,
                detail=str(error),
                fix="put [log] path on a local disk",
            )
        )
    else:
        found.append(
            Finding(
                about="log",
                name="filesystem",
                level=Level.OK,
                detail=f"{folder} is on a local disk",
            )
        )
    free = shutil.disk_usage(folder).free
    wanted = (settings.log.retention_bytes or 0) + settings.log.free_bytes_min
    used = _used(path)
    level = Level.OK if free + used >= wanted else Level.WARNING
    if free <= settings.log.free_bytes_min:
        level = Level.ERROR
    found.append(
        Finding(
            about="log",
            name="space",
            level=level,
            detail=f"{output.size(free)} free, {output.size(used)} used by the log, which may "
            f"grow to {output.size(settings.log.retention_bytes)}"
            if settings.log.retention_bytes
            else f"{output.size(free)} free, and no limit to what the log takes",
            fix=""
            if level is Level.OK
            else "free space, or lower [log] retention_bytes: a full disk stops "
            "capture until there is space again",
        )
    )
    return found


def _place(section: str, setting: str, folder: Path | None) -> list[Finding]:
    """Where the service writes besides its log, if it cannot write there."""
    why = None if folder is None else _unwritable(_nearest(folder))
    if why is None:
        return []
    fix = f"set [{section}] {setting} to a place that this user may write to"
    return [Finding(about=section, name=setting, level=Level.ERROR, detail=why, fix=fix)]


def _local(url: str | None) -> Path | None:
    """The folder of this machine that a setting names; of a URL, whoever uses it asks."""
    return None if url is None or "://" in url else Path(url)


def _tokens(settings: "Settings") -> list[Finding]:
    from penstock.serve.access.book import load

    path = settings.access.tokens
    if path is None:
        return []
    try:
        load(path)
    except PenstockError as error:
        fix = "set [access] tokens to the file that `penstock access` writes"
        return [
            Finding(about="access", name="tokens", level=Level.ERROR, detail=str(error), fix=fix)
        ]
    return []


def _nearest(path: Path) -> Path:
    """What does not exist yet will be created inside the nearest folder that does."""
    return next(place for place in (path, *path.parents) if place.exists())


def _unwritable(folder: Path) -> str | None:
    """Why nothing can be made in `folder`; None where something can."""
    if not folder.is_dir():
        return f"{folder} is no folder"
    system = os.statvfs(folder)
    if system.f_flag & os.ST_RDONLY:
        return f"{folder} is on a file system that is mounted read-only"
    if not system.f_blocks:
        return f"{folder} is on a file system that has no room for any file, as /proc and /sys"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user may not write to {folder}"
    return None


def _unwritable_file(log: Path) -> str | None:
    """Which part of a log that is there this user may not write to; None where there is none."""
    for place in log.rglob("*"):
        kept = place.suffix in {".mdb", ".lock"} or (place.is_dir() and place.name != _FOUND)
        if kept and place.exists() and not os.access(place, os.W_OK):
            return f"this user may not write to {place}, or it is mounted read-only"
    return None


def _used(path: Path) -> int:
    try:
        return (path / "data.mdb").stat().st_blocks * 512
    except OSError:
        return 0


def _port(about: str, address: str, *, running: bool) -> Finding:
    """Whether an address can be listened on; while the service runs, whether somebody does."""
    host, _, port = address.rpartition(":")
    target = (host.strip("[]"), int(port))
    if running:
        return Finding(
            about=about, name="port", level=Level.OK, detail=f"{address}; the service runs"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError as error:
            return Finding(
                about=about,
                name="port",
                level=Level.ERROR,
                detail=f"{address} cannot be listened on: {error.strerror}",
                fix=f"stop what uses it, or set {about.partition('.')[2]} under [serve]",
            )
    return Finding(about=about, name="port", level=Level.OK, detail=f"{address} is free")


async def _positions(settings: "Settings") -> dict[str, str]:
    from penstock.kv import exists
    from penstock.log import LmdbLogReader

    if not exists(settings.log.path):
        return {}
    async with LmdbLogReader(settings.log.path) as reader:
        return {state.source: state.position for state in await reader.sources()}


async def _source(source: "SourceSettings", position: str | None) -> list[Finding]:
    """What the source's own `doctor` says; a source without one has nothing that can be wrong."""
    about = f"sources.{source.name}"
    doctor = _doctor_of(source)
    if doctor is None:
        return [
            Finding(
                about=about, name="source", level=Level.OK, detail=f"{source.kind} needs nothing"
            )
        ]
    checks = await doctor(source.name, source.config, position=position)
    return [Finding.of(about, check) for check in checks]


async def _published(settings: "Settings") -> list[Finding]:
    """Whether the store of published copies answers."""
    from penstock.cli.publishing import instance_of, store_of

    try:
        store = store_of(settings)
        if store is None:
            return []
        instance = instance_of(settings)
        try:
            kept = await store.read(instance)
        finally:
            await store.close()
    except PenstockError as error:
        return [Finding.of("checkpoint", Check.failed("store", error))]
    published = "nothing yet" if kept is None else f"sequence {kept.checkpoint.sequence:,}"
    detail = f"the store answers; published as {instance}: {published}"
    return [Finding(about="checkpoint", name="store", level=Level.OK, detail=detail)]


def _destination(name: str, config: "PipelineConfig") -> list[Finding]:
    """What the doctor of a pipeline's destination says, where it has one."""
    from penstock.cli.config import missing_extra
    from penstock.spark.destinations import destination_named, function

    destination, about = destination_named(config.to), f"pipelines.{name}"
    if not destination.doctor:
        return []
    try:
        checks: Sequence[Check] = function(destination.doctor)(name, config)
    except ImportError as error:
        wrong = missing_extra(f"pipeline {name}", destination.extras(config), error)
        return [Finding.of(about, Check.failed("destination", wrong))]
    except PenstockError as error:
        return [Finding.of(about, Check.failed("destination", error))]
    return [Finding.of(about, check) for check in checks]


def _doctor_of(
    source: "SourceSettings",
) -> Callable[..., Coroutine[Any, Any, Sequence[Check]]] | None:
    """`doctor(name, config, position=...)` of the module `doctor` beside the source's class."""
    package = source.adapter.__module__.rpartition(".")[0]
    if not package or importlib.util.find_spec(f"{package}.doctor") is None:
        return None
    found: Callable[..., Coroutine[Any, Any, Sequence[Check]]] = importlib.import_module(
        f"{package}.doctor"
    ).doctor
    return found


def _print(finding: Finding) -> None:
    console = output.stdout()
    console.print(_MARKS[finding.level], end=" ")
    console.print(
        f"{finding.about}: {finding.name}: {finding.detail}", markup=False, soft_wrap=True
    )
    if finding.fix:
        console.print(f"    fix: {finding.fix}", markup=False, soft_wrap=True, style="yellow")
