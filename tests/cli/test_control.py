"""What may be asked of a running capture, and what an unknown or refused request gets back."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.control import Control, request
from penstock.errors import LogError, RequestError
from penstock.log import LmdbLog
from penstock.log.config import LogConfig


async def _echo(asked: dict[str, Any]) -> dict[str, Any]:
    return {"said": asked["word"]}


async def test_a_request_gets_the_answer_of_whoever_registered_its_name(tmp_path: Path) -> None:
    async with LmdbLog(LogConfig(path=tmp_path / "log", free_bytes_min=0)) as log:
        control = Control()
        control.register("echo", _echo)
        log.on_request(control.answer)
        answer = await asyncio.to_thread(request, log.path, "echo", word="water")
        assert answer == {"said": "water"}


async def test_an_unknown_request_is_refused_with_the_names_that_are_near(tmp_path: Path) -> None:
    async with LmdbLog(LogConfig(path=tmp_path / "log", free_bytes_min=0)) as log:
        control = Control()
        control.register("snapshot", _echo)
        log.on_request(control.answer)
        with pytest.raises(RequestError, match="did you mean snapshot"):
            await asyncio.to_thread(request, log.path, "snapshto")


def test_a_name_is_registered_once() -> None:
    control = Control()
    control.register("echo", _echo)
    with pytest.raises(ValueError, match="echo"):
        control.register("echo", _echo)


def test_a_service_that_is_down_is_said(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="nobody answers"):
        request(tmp_path, "status")
