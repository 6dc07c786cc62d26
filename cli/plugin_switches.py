"""``disable-plugins`` of the configuration file: which plugins are left out, and how ``ggfw plugins`` changes that."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from ggfw.errors import InvalidRequest

__all__ = ["KEY", "VARIABLE", "disabled_in", "write_disabled"]

#: The key of the file, and the variable that wins over it.
KEY, VARIABLE = "disable-plugins", "GGFW_DISABLE_PLUGINS"

#: The key with its array, which may have several lines, and the rest of its last line.
_ASSIGNMENT = re.compile(r"^disable[-_]plugins[ \t]*=[ \t]*\[[^\]]*\][^\n]*\n?", re.MULTILINE)


def disabled_in(config: dict[str, Any], path: Path) -> list[str]:
    """Return the names that a configuration leaves out.

    Args:
        config: what the file says.
        path: of the file, for messages.

    Raises:
        InvalidRequest: the key holds something else than names.
    """
    names = config.get(KEY, config.get(KEY.replace("-", "_"), []))
    if not isinstance(names, list) or not all(isinstance(name, str) and "," not in name for name in names):
        raise InvalidRequest(
            f"{KEY} in the configuration file {path} is {names!r:.80}; a list of names was expected, "
            'like ["llama", "ggfw-arch-toy"]',
            "config",
        )
    return names


def write_disabled(path: Path, names: list[str]) -> None:
    """Write the names into the file; everything else in it, comments too, stays as it is.

    Raises:
        InvalidRequest: it cannot be written, or not without changing something else.
    """
    try:
        before = _text(path)
        line = f"{KEY} = [{', '.join(_quoted(name) for name in names)}]\n" if names else ""
        rest = _ASSIGNMENT.sub("", before, count=1)
        after = line + rest  # at the top, for behind a table's heading it would be that table's
        if {**_parsed(rest), **_parsed(line)} != _parsed(after) or _without(before) != _without(after):
            raise ValueError("its other settings would change")
        _exchange(Path(os.path.realpath(path)), after)
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else exc
        raise InvalidRequest(
            f"{KEY} cannot be written to {path} ({reason}); set it there by hand", "config"
        ) from exc


def _text(path: Path) -> str:
    """What a file says, its line ends as they are and without a byte order mark; nothing where there is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _exchange(path: Path, text: str) -> None:
    """Give a file, no link to one, another text in one go; who may read it, which may have keys in it, stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8", newline="") as file:
            if path.exists():
                shutil.copymode(path, fresh)
            file.write(text)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _quoted(name: str) -> str:
    """A TOML string; names of plugins have no control characters."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parsed(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[import-not-found,no-redef]
    return dict(tomllib.loads(text))


def _without(text: str) -> dict[str, Any]:
    return {key: value for key, value in _parsed(text).items() if key.replace("_", "-") != KEY}
