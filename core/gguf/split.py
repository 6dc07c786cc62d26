"""Split models: ``<prefix>-NNNNN-of-MMMMM.gguf``, every shard mapped on its own, nothing merged.

``split.no`` counts from 0, the number in the file name from 1. A set must agree with itself before any weight is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ggfw.errors import GGUFError, brief
from ggfw.gguf.shard import Shard, open_shard

_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_MAX_SHARDS = 99999  # five digits


def split_name(name: str) -> tuple[str, int, int] | None:
    """Take a shard's file name apart.

    Returns:
        (prefix, 1-based number, count), or None if the name does not follow the pattern.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return match["prefix"], int(match["number"]), int(match["count"])


def shard_file_name(prefix: str, number: int, count: int) -> str:
    """File name of the shard with the 1-based ``number``."""
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"


def split_count(shard: Shard) -> int:
    """The number of shards that a file says it belongs to; 1 for a plain file."""
    value = shard.metadata.get("split.count", 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_SHARDS:
        raise GGUFError(
            f"{shard.source}: metadata key 'split.count' is {brief(value)}; 0 to 99999 was expected"
        )
    return max(value, 1)


def complete_set(first: Shard) -> list[Shard]:
    """Given any shard, find its siblings by name and return the whole set in order.

    Raises:
        GGUFError: the file is misnamed, a sibling is missing, or the set does not agree with itself.
    """
    count = split_count(first)
    if count == 1:
        return [first]
    if first.path is None:
        raise GGUFError(
            f"{first.source}: this is one shard of {count}; pass all shards, or the path of one of them"
        )
    parts = split_name(first.path.name)
    if parts is None:
        raise GGUFError(
            f"{first.source}: metadata says this is one of {count} shards, but the name is not "
            f"<prefix>-NNNNN-of-{count:05d}.gguf, so the others cannot be found; rename it"
        )
    prefix, number, named_count = parts
    if named_count != count:
        raise GGUFError(
            f"{first.source}: the name says {named_count} shards, metadata key 'split.count' says {count}"
        )
    shards = []
    try:
        for n in range(1, count + 1):
            if n == number:
                shards.append(first)
                continue
            path = _sibling(first.path, prefix, n, count)
            if path is None:
                raise GGUFError(
                    f"{first.path.parent / shard_file_name(prefix, n, count)}: shard {n} of {count} is missing; "
                    "put all shards into one folder"
                )
            shards.append(open_shard(path))
        return check_set(shards)
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def _sibling(known: Path, prefix: str, number: int, count: int) -> Path | None:
    path = known.with_name(shard_file_name(prefix, number, count))
    if path.exists():
        return path
    same_case = path.with_suffix(known.suffix)  # .GGUF
    return same_case if same_case.exists() else None


def check_set(shards: Sequence[Shard]) -> list[Shard]:
    """Order the shards of one model and check that they belong together.

    Args:
        shards: all of them, in any order.

    Returns:
        The shards by ``split.no``.

    Raises:
        GGUFError: naming the shard that does not fit.
    """
    count = len(shards)
    ordered: dict[int, Shard] = {}
    for shard in shards:
        said = split_count(shard)
        if said != count:
            raise GGUFError(
                f"{shard.source}: metadata key 'split.count' is {said}, but the set has {count} shards"
            )
        number = _number(shard)
        if not 0 <= number < count:
            raise GGUFError(
                f"{shard.source}: metadata key 'split.no' is {number}; 0 to {count - 1} was expected"
            )
        if number in ordered:
            raise GGUFError(
                f"{shard.source}: metadata key 'split.no' is {number}, as in {ordered[number].source}"
            )
        named = split_name(shard.path.name) if shard.path is not None else None
        if named is not None and named[1] != number + 1:
            raise GGUFError(
                f"{shard.source}: metadata key 'split.no' is {number}, the file name says {named[1] - 1}"
            )
        ordered[number] = shard
    result = [ordered[n] for n in range(count)]
    total = sum(len(shard.records) for shard in result)
    for shard in result:
        said = shard.metadata.get("split.tensors.count", total)
        if said != total:
            raise GGUFError(
                f"{shard.source}: metadata key 'split.tensors.count' is {brief(said)}, "
                f"but the {count} shards hold {total} tensors"
            )
    return result


def _number(shard: Shard) -> int:
    value = shard.metadata.get("split.no")
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    named = split_name(shard.path.name) if shard.path is not None else None
    if value is None and named is not None:
        return named[1] - 1
    raise GGUFError(
        f"{shard.source}: metadata key 'split.no' is {brief(value)}; a number from 0 was expected"
    )
