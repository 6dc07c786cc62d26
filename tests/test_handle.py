"""A handle read in an event loop: the first delta at once, later ones together, the end without delay."""

from __future__ import annotations

import asyncio
import time

import pytest

import ggfw.handle
from ggfw.chat.deltas import TextDelta
from ggfw.errors import GenerationCanceled
from ggfw.handle import Handle


def _handle() -> Handle:
    return Handle("one", lambda: None)


def _reader() -> tuple[Handle, list[str], asyncio.Future[None]]:
    """A handle, the pieces read from it so far, and the task that reads them."""
    handle, got = _handle(), list[str]()
    return handle, got, asyncio.ensure_future(_read(handle, got))


async def _read(handle: Handle, got: list[str]) -> None:
    async for delta in handle:
        assert isinstance(delta, TextDelta)
        got.append(delta.text)


def test_the_first_delta_comes_at_once_and_later_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggfw.handle, "PAUSE", 0.2)

    async def main() -> None:
        handle, got, reading = _reader()
        handle._push([TextDelta("a")])
        await asyncio.sleep(0.02)
        assert got == ["a"]
        for text in "bcd":
            handle._push([TextDelta(text)])
            await asyncio.sleep(0.01)
        assert got == ["a"]
        await asyncio.sleep(0.25)
        assert got == ["a", "bcd"]
        await asyncio.sleep(0.25)  # rested: what comes now comes at once
        handle._push([TextDelta("e")])
        await asyncio.sleep(0.02)
        assert got == ["a", "bcd", "e"]
        handle._finish(None, GenerationCanceled("enough"))
        with pytest.raises(GenerationCanceled):
            await reading

    asyncio.run(main())


def test_the_end_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggfw.handle, "PAUSE", 60.0)

    async def main() -> None:
        handle, got, reading = _reader()
        handle._push([TextDelta("a")])
        await asyncio.sleep(0.02)
        handle._push([TextDelta("b")])
        begin = time.monotonic()
        handle._finish(None, GenerationCanceled("enough"))
        with pytest.raises(GenerationCanceled):
            await reading
        assert time.monotonic() - begin < 10
        assert got == ["a", "b"]
        assert not handle._async_enders

    asyncio.run(main())


def test_a_reader_that_goes_away_while_it_rests_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ggfw.handle, "PAUSE", 60.0)

    async def main() -> None:
        handle, got, reading = _reader()
        handle._push([TextDelta("a")])
        await asyncio.sleep(0.02)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not handle._async_enders
        assert not handle._async_readers

    asyncio.run(main())


def test_those_who_wait_for_the_end_no_longer_leave_nothing_behind() -> None:
    async def main() -> None:
        handle = _handle()

        async def result() -> None:
            await handle

        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(result(), 0.001)
        assert not handle._async_enders

    asyncio.run(main())
