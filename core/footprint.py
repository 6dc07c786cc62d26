"""How much memory a model needs, told from its header before anything is loaded, and how much there is."""

from __future__ import annotations

import re
from pathlib import Path

from ggfw.gguf import GGUF
from ggfw.gguf.analysis import kv_elements

#: Bytes per element of the attention cache.
KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}

#: What the interpreter, the libraries, the tokenizer and a step's buffers take besides weights and cache; measured
#: with SmolLM2 and gemma-3, and the same within a few megabytes.
_BASE = 96 << 20

#: Packed weights against the file's: scales are kept wider.
_PACKING = 1.08

#: Contexts that are offered when the wanted one does not fit.
_STEPS = [1 << n for n in range(9, 25)]


def kv_bytes(gguf: GGUF, n_ctx: int, kv_type: str = "f16") -> int | None:
    """Bytes of the attention cache of one sequence; None if the header does not say."""
    elements = kv_elements(gguf, n_ctx)
    return None if elements is None else int(elements * KV_BYTES[kv_type])


def memory_needed(gguf: GGUF, n_ctx: int, *, kv_type: str = "f16", n_parallel: int = 1) -> int:
    """Bytes that the loaded model will take: packed weights, caches of ``n_parallel`` sequences, and the rest.

    Args:
        gguf: an open file.
        n_ctx: positions per sequence.
        kv_type: element type of the cache.
        n_parallel: sequences that may run at once.
    """
    weights = sum(tensor.n_bytes for tensor in gguf.tensors.values())
    cache = (kv_bytes(gguf, n_ctx, kv_type) or 0) * n_parallel
    return int(weights * _PACKING) + cache + _BASE


def largest_context(
    gguf: GGUF, budget: int, *, kv_type: str = "f16", n_parallel: int = 1, most: int | None = None
) -> int | None:
    """The largest power of two, or ``most``, as context for which :func:`memory_needed` is within ``budget`` bytes.

    Returns:
        positions; None when not even 512 fit.
    """
    candidates = [n for n in _STEPS if most is None or n < most] + ([most] if most else [])
    fitting = [
        n for n in candidates if memory_needed(gguf, n, kv_type=kv_type, n_parallel=n_parallel) <= budget
    ]
    return max(fitting, default=None)


def available_memory(root: str | Path = "/") -> int | None:
    """Bytes this process may still take: free memory, and what its control groups leave; None if nobody says.

    Args:
        root: folder in which ``proc`` and ``sys`` are looked up.
    """
    base = Path(root)
    found: list[int] = []
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(base / "proc/meminfo"), re.MULTILINE)
    if match:
        found.append(int(match[1]) * 1024)
    group = next((g[3:] for g in _read(base / "proc/self/cgroup").splitlines() if g.startswith("0::")), "/")
    top = base / "sys/fs/cgroup"
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for n in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:n])
        limit, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
