"""An answer that is read while it comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from ggfw.chat.deltas import TextDelta

if TYPE_CHECKING:
    from ggfw.chat.deltas import Delta
    from ggfw.chat.skill_handle import SkillHandle
    from ggfw.handle import Handle
    from ggfw.result import Result


class Stream:
    """An answer while it comes: ``for`` and ``async for`` give pieces of text; :meth:`result` the whole.

    Leaving it early (``close``, the end of ``with``, or dropping it) cancels the request.
    """

    def __init__(self, handle: Handle | SkillHandle) -> None:
        self.handle = handle

    def __iter__(self) -> Iterator[str]:
        for delta in self.deltas():
            if isinstance(delta, TextDelta):
                yield delta.text

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            async for delta in self.handle:
                if isinstance(delta, TextDelta):
                    yield delta.text
        finally:
            self.handle.cancel()

    def deltas(self) -> Iterator[Delta]:
        """All deltas: text, reasoning, tool calls."""
        try:
            yield from self.handle
        finally:
            self.handle.cancel()

    def result(self) -> Result:
        """Wait for the end; see :meth:`ggfw.handle.Handle.result`."""
        return self.handle.result()

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        self.handle.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is not None:
            handle.cancel()
