"""JSON schemas that no finite text satisfies: what they require leads back to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def is_endless(schema: Mapping[str, Any], target: Callable[[Any], Any]) -> bool:
    """Whether every text that satisfies ``schema`` goes on for ever.

    A subschema is finite when what it demands is: the targets of its references, all parts of ``allOf``, one of
    ``anyOf`` and of ``oneOf``, its required properties, as many items as ``minItems`` says. Finiteness spreads from
    subschemas that demand nothing to those that demand only such; what it does not reach is endless. Demands that are
    put together from several subschemas are not seen, so that False is no promise.

    Args:
        schema: whose size and nesting have been checked.
        target: of a reference, None where there is none.
    """
    found: dict[int, Mapping[str, Any]] = {id(schema): schema}
    stack = [schema]
    left: dict[
        int, set[int]
    ] = {}  # per subschema: numbers of its groups of which no member is known to be finite
    users: dict[int, list[tuple[int, int]]] = {}  # in which groups of whom a subschema is a member
    while stack:
        subschema = stack.pop()
        own = left[id(subschema)] = set()
        for number, group in enumerate(_demands(subschema, target)):
            if not all(isinstance(member, Mapping) for member in group):
                continue  # true, false or malformed: demands nothing here
            own.add(number)
            for member in group:
                users.setdefault(id(member), []).append((id(subschema), number))
                if id(member) not in found:
                    found[id(member)] = member
                    stack.append(member)
    ready = [one for one, numbers in left.items() if not numbers]
    finite = set(ready)
    while ready:
        for user, number in users.get(ready.pop(), ()):
            left[user].discard(number)
            if not left[user] and user not in finite:
                finite.add(user)
                ready.append(user)
    return id(schema) not in finite


def _demands(schema: Mapping[str, Any], target: Callable[[Any], Any]) -> list[list[Any]]:
    """Groups of subschemas: whatever satisfies ``schema`` holds, or is, something that satisfies one of each group."""
    if "const" in schema or "enum" in schema:
        return []
    groups: list[list[Any]] = []
    if isinstance(schema.get("$ref"), str):
        groups.append([target(schema["$ref"])])
    groups += [[part] for part in _list(schema.get("allOf"))]
    groups += [parts for key in ("anyOf", "oneOf") if (parts := _list(schema.get(key)))]
    kind = schema.get("type")
    if kind in ("object", ["object"]):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            required = (name for name in _list(schema.get("required")) if isinstance(name, str))
            groups += [[properties[name]] for name in required if name in properties]
    if kind in ("array", ["array"]):
        least, items = schema.get("minItems"), schema.get("items")
        if isinstance(least, int | float) and least > 0:
            first = _list(schema.get("prefixItems")) or _list(items)
            rest = schema.get("additionalItems") if isinstance(items, list | tuple) else items
            groups += [[item] for item in first[: int(least)]]
            groups += [[rest]] if least > len(first) else []
    return groups


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
