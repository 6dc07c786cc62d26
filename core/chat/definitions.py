"""Shared definitions of a tool's schema: which of them one of its arguments needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Where schemas keep what ``$ref`` point at.
PLACES = ("$defs", "definitions")
_PERCENT = re.compile(r"%([0-7][0-9A-Fa-f])")


def shared(root: Mapping[str, Any]) -> dict[str, Any]:
    """All definitions of ``root``, under the names of their places."""
    return {key: root[key] for key in PLACES if key in root}


def needed(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The definitions of ``root`` that ``schema`` leads to, each also through others.

    Args:
        schema: any part of a schema, also a list.
        root: holds the definitions; may be malformed.

    Returns:
        As :func:`shared`, without places of which nothing is needed. All of them where a reference names no place
        (``#anchor``), or a place is no object.
    """
    if not all(isinstance(part, Mapping) for part in shared(root).values()):
        return shared(root)
    found: dict[str, dict[str, Any]] = {}
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += value
        if not isinstance(value, Mapping):
            continue
        waiting += value.values()
        reference = value.get("$ref")
        if not isinstance(reference, str):
            continue
        fragment = _PERCENT.sub(lambda m: chr(int(m[1], 16)), reference.partition("#")[2])
        if fragment and not fragment.startswith("/"):
            return shared(root)
        place, _, name = fragment[1:].partition("/")
        name = name.partition("/")[0].replace("~1", "/").replace("~0", "~")
        if place in PLACES and name in root.get(place, {}) and name not in found.get(place, {}):
            found.setdefault(place, {})[name] = root[place][name]
            waiting.append(root[place][name])
    return {
        place: {k: v for k, v in root[place].items() if k in found[place]}
        for place in PLACES
        if place in found
    }
