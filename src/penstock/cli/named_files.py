"""The files that settings name, and what a reload makes of those that changed.

Certificates are taken over where a protocol can, keys and tokens by themselves, and a source whose
file changed is begun anew. A file that cannot be used leaves what was read before in force.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from pydantic import BaseModel

from penstock.cli.config import Settings
from penstock.errors import ConfigError

_BYTES_MAX: Final = 1 << 20
"""A larger file is no certificate, but data."""
_WRITTEN_BY_US: Final = frozenset({"access.log"})
_CERTIFICATE: Final = ("serve.tls.certificate", "serve.tls.key")

Files = Mapping[str, str]
"""By setting, a digest of what the file holds; empty for one that cannot be read."""


class FilesPlan(Struct, frozen=True, kw_only=True):
    """What became of files that changed."""

    renewed: list[str]
    needs_restart: list[str]
    failed: list[str]
    """A sentence each."""
    sources: frozenset[str]
    """To be begun anew."""
    files: Files
    """To compare with at the next reload, which names again what failed, and what waits."""


def files_of(settings: Settings, before: Files | None = None) -> Files:
    """The files that settings name, as they are now; also those that are gone since `before`."""
    known = before or {}
    found: dict[str, str] = {}
    for name in Settings.__struct_fields__:
        section = getattr(settings, name)
        if isinstance(section, BaseModel):
            found |= _files(section, name, known)
    for name, source in settings.sources.items():
        found |= _files(source.config, f"sources.{name}", known)
    return found


def plan_files(before: Files, settings: Settings) -> FilesPlan:
    """What a reload does with the files of `settings` that are not as `before`."""
    now = dict(files_of(settings, before))
    changed = [name for name in now if name in before and now[name] != before[name]]
    renewed: list[str] = []
    failed: list[str] = []
    needs_restart: list[str] = []
    sources: set[str] = set()
    waits = set[str]()
    if set(changed) & set(_CERTIFICATE):
        ours = [name for name in changed if name in _CERTIFICATE]
        if _usable(lambda: _try_certificate(settings), failed):
            renewed += ours
            needs_restart += [f"{name} (Flight)" for name in ours]
        else:
            waits |= set(ours)
    for name in changed:
        if name in _CERTIFICATE:
            continue
        if not now[name]:
            failed.append(f"{name}: the file cannot be read")
            waits.add(name)
        elif name.startswith("sources."):
            sources.add(name.split(".")[1])
            renewed.append(name)
        elif name in _TRIED:
            tried = _TRIED[name]
            if _usable(lambda tried=tried: tried(settings), failed):  # type: ignore[misc]
                renewed.append(name)
            else:
                waits.add(name)
        else:
            needs_restart.append(name)
            waits.add(name)
    for name in waits:
        now[name] = before[name]
    return FilesPlan(
        renewed=renewed,
        needs_restart=needs_restart,
        failed=failed,
        sources=frozenset(sources),
        files=now,
    )


def _files(model: BaseModel, prefix: str, known: Files) -> dict[str, str]:
    return {
        name: _digest(path)
        for name, path in _paths(model, prefix)
        if name not in _WRITTEN_BY_US and (path.is_file() or (name in known and not path.exists()))
    }


def _paths(model: BaseModel, prefix: str) -> Iterator[tuple[str, Path]]:
    for field in type(model).model_fields:
        value, name = getattr(model, field), f"{prefix}.{field}"
        if isinstance(value, BaseModel):
            yield from _paths(value, name)
        elif isinstance(value, Path):
            yield name, value


def _digest(path: Path) -> str:
    try:
        if path.stat().st_size > _BYTES_MAX:
            return "large"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _usable(attempt: Callable[[], object], failed: list[str]) -> bool:
    try:
        attempt()
    except ConfigError as error:
        failed.append(str(error).replace("Nothing was started. ", ""))
        return False
    return True


def _try_certificate(settings: Settings) -> None:
    from penstock.serve.access.tls import http_context

    assert settings.serve.tls is not None
    http_context(settings.serve.tls)


def _try_keys(settings: Settings) -> None:
    from penstock.serve.access import jwt

    assert settings.access.jwks is not None
    jwt.read_keys(settings.access.jwks)


def _try_tokens(settings: Settings) -> None:
    from penstock.serve.access import book

    assert settings.access.tokens is not None
    book.load(settings.access.tokens)


_TRIED: Final[Mapping[str, Callable[[Settings], None]]] = {
    "access.jwks": _try_keys,
    "access.tokens": _try_tokens,
}
