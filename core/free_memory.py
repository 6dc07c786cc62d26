"""How much memory the process may still take before the system refuses it, or ends a process for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggfw.gguf import GGUF

#: Packed weights against the file's: scales are kept wider.
PACKING = 1.08
#: What a step's buffers, the vocabulary and a short prompt take at least, once the libraries are there.
_LEAST = 32 << 20
#: A limit of version 1 from which on there is none: it says "no limit" as a number of pages below 2^63.
_NO_LIMIT = 1 << 60


def available_memory(root: str | Path = "/") -> int | None:
    """Bytes this process may still take: free memory, and what its control groups leave; None if nobody says.

    What groups hold of files counts as free: the kernel gives it up before it ends a process.

    Args:
        root: folder in which ``proc`` and ``sys`` are looked up.
    """
    base = Path(root)
    found: list[int] = []
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(base / "proc/meminfo"), re.MULTILINE)
    if match:
        found.append(int(match[1]) * 1024)
    groups = {
        "": "/",
        "memory": "/",
    }  # version 2 is the empty controller; inside a container the root is ours
    for line in _read(base / "proc/self/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        groups |= dict.fromkeys(set(controllers.split(",")) & groups.keys(), path)
    mount = base / "sys/fs/cgroup"
    for top in (mount, mount / "unified"):
        found += _left(top, groups[""], "memory.max", "memory.current", "")
    found += _left(
        mount / "memory", groups["memory"], "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
    )
    return min(found, default=None)


def has_room(gguf: GGUF) -> bool:
    """Whether a file's weights, packed, find memory; True if nobody says how much there is."""
    free = available_memory()
    return free is None or _needed(gguf) <= free


def _needed(gguf: GGUF) -> int:
    return int(sum(tensor.n_bytes for tensor in gguf.tensors.values()) * PACKING) + _LEAST


def check_room(gguf: GGUF) -> None:
    """Refuse a file whose weights alone find no memory: the kernel would end the process in the middle of loading.

    Raises:
        MemoryShort: they do not fit.
    """
    needed, free = _needed(gguf), available_memory()
    if free is None or needed <= free:
        return
    from ggfw.footprint import MemoryShort, size_text

    raise MemoryShort(
        f"{gguf.source} needs at least {size_text(needed)}, but {size_text(free)} are to be had (what the machine or "
        "its control group has free); choose a smaller model, give it more memory, or leave its weights in the file "
        "(--no-repack, slower)",
        needed,
        free,
    )


def _left(top: Path, group: str, limit_name: str, used_name: str, prefix: str) -> list[int]:
    """Bytes that a group and those above it leave, each that has a limit."""
    found = []
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for n in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:n])
        limit, used = _read(folder / limit_name).strip(), _read(folder / used_name).strip()
        if limit.isdigit() and used.isdigit() and int(limit) < _NO_LIMIT:
            stat = dict(
                line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines() if " " in line
            )
            files = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            found.append(max(0, int(limit) - max(0, int(used) - files)))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
