"""Whether there is memory for one more model, and how far loading it has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ggfw.footprint import Footprint, size_text
from ggfw.free_memory import available_memory


class Takes(Protocol):
    """Something that takes memory."""

    n_bytes: int


class Room:
    """The memory that loaded models may take.

    Args:
        memory: bytes for all of them together; None: no bound but the machine's.
        available: bytes the process may still take; default: what the system and its control groups say.
    """

    def __init__(self, memory: int | None = None, available: Callable[[], int | None] | None = None) -> None:
        self.memory = memory
        self.available = available or available_memory

    def budget(self, loaded: Sequence[Takes], reserved: int = 0) -> tuple[int | None, str]:
        """Bytes that one more model may take beside those that are loaded, and where that comes from.

        Args:
            loaded: the models.
            reserved: bytes for others that are being loaded.
        """
        taken = sum(slot.n_bytes for slot in loaded) + reserved
        machine = self.available()
        found: list[tuple[int, str]] = []
        if self.memory is not None:
            beside = f", of which other models take {size_text(taken)}" if taken else ""
            found.append((max(0, self.memory - taken), f"--memory {size_text(self.memory)}{beside}"))
        if machine is not None:
            found.append((max(0, machine - reserved), "what the machine has free"))
        return min(found, default=(None, ""))

    def fits(self, found: Footprint, loaded: Sequence[Takes], reserved: int = 0) -> bool:
        """Whether a model fits beside others."""
        budget, _ = self.budget(loaded, reserved)
        return budget is None or found.needed() <= budget

    def fit(
        self,
        found: Footprint | None,
        held: Sequence[Takes],
        idle: Sequence[Takes],
        log: Callable[[str, dict[str, Any]], None],
        reserved: int = 0,
    ) -> tuple[int, int | None]:
        """Bytes that a model will take, and the context that it has to make do with (None: its own).

        Only where neither a context nor a bound was asked for, the context is made to fit what the machine has.

        Args:
            found: what it would take.
            held: models that stay.
            idle: models that could go.
            log: hears of a context that was made to fit.

        Raises:
            MemoryShort: it does not fit even when the idle ones go.
        """
        if found is None:
            return 0, None
        budget, why = self.budget(held, reserved)
        if budget is None:
            return found.needed(), None
        if self.memory is None or not why.startswith("--memory"):
            budget += sum(slot.n_bytes for slot in idle)  # the machine gets it back when they are closed
        if found.needed() <= budget:
            return found.needed(), None
        fits = found.largest(budget)
        if fits is not None and not found.asked and self.memory is None:
            fields = {
                "model": found.name,
                "n_ctx": fits,
                "n_ctx_train": found.n_ctx,
                "available_bytes": budget,
            }
            log("context_reduced", fields)
            return found.needed(fits), fits
        later = budget + sum(slot.n_bytes for slot in held) + reserved
        raise found.short(budget, why, passing=bool(held or reserved) and found.needed() <= later)


class LoadWatch:
    """How far loading a model has come, told from the memory that the process takes.

    Args:
        expected: bytes that it will take when it is ready; 0: nobody knows.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.started = time.perf_counter()
        self._before = resident()

    def progress(self) -> dict[str, Any]:
        """``seconds`` since it began, ``bytes`` that came in since then, ``total`` and ``progress`` (0 to 1)."""
        now = resident()
        grown = max(0, now - self._before) if now is not None and self._before is not None else None
        out: dict[str, Any] = {"seconds": round(time.perf_counter() - self.started, 3)}
        if grown is not None and self.expected:
            out |= {
                "bytes": min(grown, self.expected),
                "total": self.expected,
                "progress": round(min(grown / self.expected, 0.99), 3),
            }
        return out


def resident() -> int | None:
    """Bytes of memory that this process holds; None where the system does not say."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    except (OSError, ImportError, ValueError, IndexError):
        return None
