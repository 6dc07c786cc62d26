"""The source behind ``file:``."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ggfw.errors import ModelNotFound
from ggfw.model_source import Progress

__all__ = ["FileSource"]


class FileSource:
    """Gives the file itself; nothing is copied.

    Args:
        folder: not used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resolve(self, rest: str, progress: Progress | None = None) -> list[Path]:
        """Return the file at ``rest``, a path or the part of a file URL behind ``file:``.

        Raises:
            ModelNotFound: there is no such file.
        """
        if rest.startswith("//"):
            rest = unquote(urlsplit(f"file:{rest}").path)
        path = Path(rest).expanduser()
        if not path.is_file():
            raise ModelNotFound(f"there is no file {path}; give the path of a GGUF file")
        return [path]
