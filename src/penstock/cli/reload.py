"""Taking over a changed configuration while capture runs.

All or nothing: a file that has an error changes nothing, and everything goes on as it was. What
cannot be changed while the service runs is named, and keeps its old value until a restart.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import structlog
from msgspec import Struct, structs, to_builtins
from pydantic import BaseModel

from penstock.cli.config import Settings, SourceSettings, load
from penstock.cli.live import LIVE
from penstock.cli.named_files import FilesPlan, files_of, plan_files
from penstock.errors import ConfigError, RequestError

logger = structlog.get_logger(__name__)


class Plan(Struct, frozen=True, kw_only=True, rename="camel"):
    """What differs between two configurations."""

    added: list[str]
    """Sources that were not there before."""
    removed: list[str]
    changed: list[str]
    """Sources that are configured otherwise; each is restarted from where it stands."""
    applied: list[str]
    """Settings that are taken over at once, as `log.retention`."""
    needs_restart: list[str]
    """Settings that keep their old value until `penstock run` is started anew, and those whose file
    does."""
    renewed: list[str] = []
    """Settings whose file changed, and is taken over."""
    failed: list[str] = []
    """Why files that changed cannot be used: what was read before is in force. A sentence each."""


def plan(before: Settings, after: Settings) -> Plan:
    """What a reload from `before` to `after` does. Pure; no value is in it, so no secret."""
    applied: list[str] = []
    needs_restart: list[str] = []
    for section in _sections(after):
        live = LIVE.get(section, frozenset())
        for key in _differences(getattr(before, section), getattr(after, section)):
            takes = applied if live is None or key in live else needs_restart
            takes.append(f"{section}.{key}")
    return Plan(
        added=[name for name in after.sources if name not in before.sources],
        removed=[name for name in before.sources if name not in after.sources],
        changed=[
            name
            for name, source in after.sources.items()
            if name in before.sources
            and not (
                _same(before.sources[name], source) and _share(before, name) == _share(after, name)
            )
        ],
        applied=applied,
        needs_restart=needs_restart,
    )


def with_files(found: Plan, files: FilesPlan) -> Plan:
    """A plan with what becomes of files that changed. Sources that read one are begun anew."""
    others = {*found.added, *found.removed, *found.changed}
    return structs.replace(
        found,
        changed=[*found.changed, *sorted(files.sources - others)],
        needs_restart=[*found.needs_restart, *files.needs_restart],
        renewed=files.renewed,
        failed=files.failed,
    )


def _sections(settings: Settings) -> list[str]:
    """The sections that are one table each; sources are compared one by one, and pipelines read
    theirs when they start."""
    fields = Settings.__struct_fields__
    return [name for name in fields if isinstance(getattr(settings, name), BaseModel)]


def _differences(before: BaseModel, after: BaseModel) -> Iterator[str]:
    return (key for key in type(after).model_fields if getattr(before, key) != getattr(after, key))


def _same(before: SourceSettings, after: SourceSettings) -> bool:
    return before.adapter is after.adapter and before.config == after.config


def _share(settings: Settings, name: str) -> tuple[int, float | None] | None:
    """What the quota of a source comes to."""
    quota = settings.capture.quotas.get(name)
    return None if quota is None else (quota, settings.log.retention)


class Reloader:
    """Applies the configuration anew when asked, one at a time."""

    def __init__(self, settings: Settings, apply: Callable[[Settings, Plan], Any]) -> None:
        """`apply` makes a plan true, or raises ConfigError with nothing changed."""
        self._apply = apply
        self._turn = asyncio.Lock()
        # As it is written: the process's own may listen elsewhere, at what its command line said.
        self._current = _as_written(settings)
        self._files = files_of(self._current)

    async def reload(self) -> Plan:
        """Read the file again, apply what differs, and have the other process do so too.

        Raises RequestError if it has an error; nobody is told then.
        """
        async with self._turn:
            try:
                after = load(self._current.path, running=True)
                named = await asyncio.to_thread(plan_files, self._files, after)
                found = with_files(plan(self._current, after), named)
                await self._apply(after, found)
            except ConfigError as error:
                reason = str(error).replace("Nothing was started.", "").strip()
                raise RequestError(
                    f"the configuration was not taken over, and everything goes on as it was: "
                    f"{reason}"
                ) from None
            self._current = keeping(self._current, after)
            self._files = named.files
            logger.info("configuration taken over", **to_builtins(found))
            for sentence in found.failed:
                logger.error("a changed file is not used", reason=sentence)
            if found.needs_restart:
                logger.warning(
                    "settings keep their old values until a restart", settings=found.needs_restart
                )
            tell_parent()
            return found

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """The request `reload`: what was done."""
        return dict(to_builtins(await self.reload()))

    async def on_hangup(self, hangup: asyncio.Event) -> None:
        """Reload whenever SIGHUP came, for as long as capture runs; an error changes nothing."""
        while True:
            await hangup.wait()
            hangup.clear()
            try:
                await self.reload()
            except RequestError as error:
                logger.error("configuration not taken over", reason=str(error))  # noqa: TRY400


def _as_written(settings: Settings) -> Settings:
    try:
        return load(settings.path)
    except ConfigError:  # changed since we started: the next reload will say so
        return settings


def keeping(before: Settings, after: Settings) -> Settings:
    """`after`, but with the old values of what needs a restart: the next reload names it again."""
    kept: dict[str, Any] = {}
    for section in _sections(after):
        live = LIVE.get(section, frozenset())
        if live is None:
            continue
        old, new = getattr(before, section), getattr(after, section)
        kept[section] = old.model_copy(update={key: getattr(new, key) for key in live})
    return structs.replace(after, **kept)


def tell_parent() -> None:
    """Where `penstock run` started this process: have it tell serve that the file was taken over.

    By SIGUSR1: SIGHUP asks capture itself, and ends a service that was started on a terminal.
    """
    from penstock.cli.parent import PARENT_VARIABLE

    parent = os.environ.get(PARENT_VARIABLE)
    if parent is not None and os.getppid() == int(parent):
        os.kill(int(parent), signal.SIGUSR1)
