"""Files that users name: what is no file, a pipe or a device say, is neither waited for nor replaced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ggfw.errors import InvalidRequest


def open_without_waiting(path: str, flags: int) -> int:
    """An ``opener`` for :func:`open`: a pipe that nobody writes to does not hold it up."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_regular(descriptor: int) -> bool:
    """Whether an open file is one, no pipe, device or folder: it has an end."""
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse to put a file in the place of something else: written beside it and renamed, it would be gone.

    Raises:
        InvalidRequest: there is a folder, a pipe or a device.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise InvalidRequest(
            f"{path} is a folder, a pipe or a device; the name of a file was expected", "path"
        )
