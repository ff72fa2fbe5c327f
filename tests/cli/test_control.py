"""What may be asked of a running capture, and what an unknown or refused request gets back."""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.cli.control import Control, request
from penstock.errors import LogError, RequestError
from penstock.event import Commit
from penstock.log import LmdbLog
from penstock.log.config import LogConfig
from penstock.testing.contracts.entries import changes
from tests.waiting import until


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


async def test_a_request_that_fails_in_the_writer_is_answered_and_logged(tmp_path: Path) -> None:
    """As where its disk is full. Nobody else looks at how it ended."""

    async def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise OSError(28, os.strerror(28))

    async with LmdbLog(LogConfig(path=tmp_path / "log", free_bytes_min=0)) as log:
        control = Control()
        control.register("pause", fail)
        log.on_request(control.answer)
        full = r"failed to answer \(No space left on device\)"
        with capture_logs() as said, pytest.raises(RequestError, match=full):
            await asyncio.to_thread(request, log.path, "pause")
    (line,) = said
    assert (line["log_level"], line["error"]) == ("error", "OSError")
    assert "in fail" in line["where"][-1]
    assert os.strerror(28) not in str(line), "the text of an error may quote a document"


@pytest.mark.slow
async def test_a_writer_that_goes_on_writing_and_never_answers_is_given_up(tmp_path: Path) -> None:
    async def never(_: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with LmdbLog(LogConfig(path=tmp_path / "log", free_bytes_min=0)) as log:
        control = Control()
        control.register("wait", never)
        log.on_request(control.answer)
        asked = asyncio.create_task(
            asyncio.to_thread(request, log.path, "wait", timeout_seconds=0.5)
        )
        numbers = itertools.count(1)

        async def is_given_up() -> bool:
            number = next(numbers)
            events = changes("shop", str(number), 1)
            await log.append([Commit(source="shop", position=str(number), events=events)])
            return asked.done()

        await until(is_given_up)
        with pytest.raises(LogError, match="may still do"):
            await asked


def test_a_name_is_registered_once() -> None:
    control = Control()
    control.register("echo", _echo)
    with pytest.raises(ValueError, match="echo"):
        control.register("echo", _echo)


def test_a_service_that_is_down_is_said(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="nobody answers"):
        request(tmp_path, "status")
