"""Entry points of the installed distributions, read from the folders that they lie in.

``importlib.metadata`` finds the same, but brings the parsers of e-mail and of archives with it: a fifteenth of the time
that a short run takes to its first token. It is asked where distributions may lie elsewhere than in folders.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_SUFFIXES = (".dist-info", ".egg-info")
_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(?::\s*(?P<attribute>[\w.]+)\s*)?(?:\[.*\]\s*)?$")


class Door:
    """One entry point: the way into a plugin.

    Args:
        name: of the entry point.
        load: imports the plugin and returns it.
        distribution, version: of the package that it comes from; empty where unknown.
    """

    __slots__ = ("distribution", "load", "name", "version")

    def __init__(self, name: str, load: Callable[[], Any], distribution: str = "", version: str = "") -> None:
        self.name, self.load = name, load
        self.distribution, self.version = distribution, version

    @classmethod
    def of(cls, entry_point: EntryPoint) -> Door:
        """The door of one of ``importlib.metadata``'s entry points."""
        if entry_point.dist is None:  # made by hand, as tests do
            return cls(entry_point.name, entry_point.load)
        return cls(entry_point.name, entry_point.load, *_name_and_version(_headers(entry_point.dist)))


def installed(group: str) -> list[Door]:
    """All entry points of ``group``. Of several distributions with one name the first on ``sys.path`` counts."""
    finders = [finder for finder in sys.meta_path if _finds(finder)]
    paths = [
        path or os.curdir for path in sys.path if isinstance(path, str)
    ]  # others are none to Python, too
    if len(finders) != 1 or finders[0] is not PathFinder or any(os.path.isfile(path) for path in paths):
        return _asked(group)  # archives, and finders that others have put in
    doors: list[Door] = []
    seen = set()
    for path in paths:
        for name, folder in _distributions(path):
            if name not in seen:
                seen.add(name)
                doors += _doors(folder, group)
    return doors


def _distributions(path: str) -> Iterator[tuple[str, str]]:
    """(name in one spelling, folder of its metadata) of the distributions in ``path``."""
    try:
        names = sorted(os.listdir(path))
    except (OSError, ValueError):  # no folder, or no path at all
        return
    egg, suffix = os.path.splitext(os.path.basename(os.path.normpath(path)))
    is_egg = suffix.lower() == ".egg"  # a folder on the path that is one distribution
    for name in names:
        stem, suffix = os.path.splitext(name)
        if is_egg and name.lower() == "egg-info":
            stem, suffix = egg, ".egg-info"
        if suffix.lower() in _SUFFIXES:
            yield _spelt(stem.partition("-")[0]), os.path.join(path, name)


def _asked(group: str) -> list[Door]:
    """:func:`installed` by ``importlib.metadata``, which a distribution that is damaged would end for all."""
    doors: list[Door] = []
    seen = set()
    for distribution in _found():
        name = _spelt(_name_and_version(_headers(distribution))[0])
        if name and name in seen:
            continue
        seen.add(name)
        try:
            found = [Door.of(entry) for entry in distribution.entry_points if entry.group == group]
        except KeyboardInterrupt:
            raise
        except BaseException:  # lines that are none, bytes that are no text, files that cannot be read
            continue
        doors += found
    return doors


def _found() -> Iterator[Distribution]:
    """What the finders find, one after the other; one that fails finds nothing more."""
    from importlib.metadata import DistributionFinder

    finders: list[Any] = [finder for finder in sys.meta_path if _finds(finder)]
    for finder in finders:
        try:
            yield from finder.find_distributions(DistributionFinder.Context())
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # somebody else's code, which may even ask to leave
            continue


def _finds(finder: Any) -> bool:
    """Whether a finder looks for distributions, too; one that cannot be asked does not."""
    try:
        return hasattr(finder, "find_distributions")
    except KeyboardInterrupt:
        raise
    except BaseException:
        return False


def _headers(distribution: Distribution) -> str:
    """The text of a distribution's metadata; nothing where it cannot be read."""
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
        return text if isinstance(text, str) else ""
    except KeyboardInterrupt:
        raise
    except BaseException:  # damaged archives and finders of others raise anything
        return ""


def _spelt(name: str) -> str:
    """A distribution's name in the one spelling by which two are compared."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _doors(folder: str, group: str) -> Iterator[Door]:
    text = _read(os.path.join(folder, "entry_points.txt"))
    if group not in text:
        return
    headers = None
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and "=" in line and not line.startswith(("#", ";")):
            if headers is None:
                headers = _read(os.path.join(folder, "METADATA")) or _read(os.path.join(folder, "PKG-INFO"))
            name, _, value = line.partition("=")
            yield Door(name.strip(), partial(_load, value.strip()), *_name_and_version(headers))


def _load(value: str) -> Any:
    """Import what an entry point names: ``module`` or ``module:attribute``."""
    match = _VALUE.match(value)
    if match is None:
        raise ImportError(f"{value!r} names no module; module or module:attribute was expected")
    module, attribute = import_module(match["module"]), match["attribute"]
    return attrgetter(attribute)(module) if attribute else module


def _read(path: str) -> str:
    """The text of a file; nothing where there is none, or none that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeError):
        return ""


def _name_and_version(headers: str) -> tuple[str, str]:
    """A distribution with damaged metadata has its entry points still, but no name."""
    head = headers.partition("\n\n")[0]
    fields = dict(
        line.split(": ", 1) for line in head.splitlines() if line.startswith(("Name: ", "Version: "))
    )
    return fields.get("Name", "").strip(), fields.get("Version", "").strip()
