"""A bounds-checked read position in a GGUF header; every failure names the field and the byte."""

from __future__ import annotations

import struct
from typing import NoReturn

from ggfw.errors import GGUFError


class Cursor:
    """Reads little-endian fields from a buffer.

    Args:
        buffer: the whole file (a read-only byte view; nothing is copied).
        source: how messages call the file.
        position: byte to start at.

    Nothing is sliced or allocated before the length was compared with what is left of the file.
    """

    __slots__ = ("buffer", "size", "source", "position")

    def __init__(self, buffer: memoryview, source: str, position: int = 0) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.source = source
        self.position = position

    def fail(self, field: str, problem: str, at: int | None = None) -> NoReturn:
        """Raise GGUFError for ``field``, at byte ``at`` (default: the current position)."""
        where = self.position if at is None else at
        raise GGUFError(f"{self.source}: {field} at byte {where}: {problem}")

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.size - self.position

    def need(self, n_bytes: int, field: str) -> None:
        """Check that ``n_bytes`` more bytes exist."""
        if n_bytes > self.size - self.position:
            self.fail(
                field, f"needs {n_bytes} bytes, but the file has {self.remaining} left (truncated or damaged)"
            )

    def scalar(self, layout: struct.Struct, field: str) -> int | float | bool:
        """One fixed-size value."""
        self.need(layout.size, field)
        (value,) = layout.unpack_from(self.buffer, self.position)
        self.position += layout.size
        return value

    def u32(self, field: str) -> int:
        """An unsigned 32-bit integer."""
        return int(self.scalar(_U32, field))

    def u64(self, field: str) -> int:
        """An unsigned 64-bit integer."""
        return int(self.scalar(_U64, field))

    def raw_string(self, field: str) -> bytes:
        """A u64 length and that many bytes."""
        at = self.position
        length = self.u64(field + " length")
        if length > self.remaining:
            self.fail(field + " length", f"says {length} bytes, but the file has {self.remaining} left", at)
        start = self.position
        self.position = start + length
        return bytes(self.buffer[start : self.position])

    def name(self, field: str) -> str:
        """A string that must be valid UTF-8 (keys and tensor names)."""
        at = self.position
        raw = self.raw_string(field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, f"is not valid UTF-8: {raw[:40]!r}", at)


_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
