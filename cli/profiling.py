"""``--profile FILE``: where the time goes, for a viewer of speedscope's format (https://www.speedscope.app).

The file holds one profile per Python thread, sampled, and one of the native steps with their measured times, summed
over all batches: operation above step. Frames of the native calls are seen from Python's side as the call itself.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ggfw.cli import terminal
from ggfw.cli.settings import setting
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw import Model

__all__ = ["profile_option", "profiling"]

#: Seconds between two samples.
INTERVAL = 0.005

profile_option = setting(
    "--profile",
    metavar="FILE",
    help="Write where the time goes, in Python and in native steps, for speedscope.app and other viewers.",
)

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


@contextmanager
def profiling(path: str | None, model: Model | None) -> Iterator[None]:
    """Profile the block; without a path, do nothing.

    Args:
        path: file to write.
        model: whose steps are timed; None: only Python is sampled.

    Raises:
        InvalidRequest: the file cannot be written; said before the block runs.
    """
    if path is None:
        yield
        return
    try:
        file = open(path, "w", encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be written: {exc.strerror}", "profile") from exc
    executor: Any = model.loaded.executor if model is not None else None
    timed = hasattr(executor, "profile")
    with file:
        sampler = _Sampler()
        if timed:
            executor.profile(True)
        sampler.start()
        try:
            yield
        finally:
            sampler.end()
            steps = executor.timings() if timed else []
            if timed:
                executor.profile(False)
            json.dump(_document(Path(path).name, sampler, steps), file)
    terminal.say(f"ggfw: profile in {path}; open it at https://www.speedscope.app")


class _Sampler:
    """Looks at the stacks of all threads again and again, from a thread of its own."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[tuple[tuple[Any, ...], float]]] = defaultdict(list)
        self.names: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ggfw-profile", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        own, last = threading.get_ident(), time.perf_counter()
        while not self._over.wait(INTERVAL):
            now = time.perf_counter()
            for ident, frame in sys._current_frames().items():
                if ident != own:
                    self.stacks[ident].append((_stack(frame), now - last))
            self.names.update({t.ident: t.name for t in threading.enumerate() if t.ident is not None})
            last = now


def _stack(frame: FrameType | None) -> tuple[tuple[str, str, int], ...]:
    """(function, file, line of its beginning), outermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        found.append((getattr(code, "co_qualname", code.co_name), code.co_filename, code.co_firstlineno))
        frame = frame.f_back
    return tuple(reversed(found))


def _document(name: str, sampler: _Sampler, steps: list[tuple[str, int]]) -> dict[str, Any]:
    """The file's content."""
    frames: list[dict[str, Any]] = []
    index: dict[Any, int] = {}

    def number(key: Any, frame: dict[str, Any]) -> int:
        if key not in index:
            index[key] = len(frames)
            frames.append(frame)
        return index[key]

    profiles = []
    if steps:
        samples, weights = [], []
        for i, (what, nanoseconds) in enumerate(steps):
            operation = what.split()[0]
            samples.append(
                [
                    number(("op", operation), {"name": operation}),
                    number(("step", i), {"name": f"{i}: {what}"}),
                ]
            )
            weights.append(nanoseconds)
        profiles.append(_profile("native steps", "nanoseconds", samples, weights))
    for ident, taken in sampler.stacks.items():
        samples = [
            [number(part, {"name": part[0], "file": part[1], "line": part[2]}) for part in stack]
            for stack, _ in taken
        ]
        title = f"Python: {sampler.names.get(ident, ident)}"
        profiles.append(_profile(title, "seconds", samples, [seconds for _, seconds in taken]))
    return {
        "$schema": _SCHEMA,
        "name": name,
        "exporter": "ggfw",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }


def _profile(name: str, unit: str, samples: list[list[int]], weights: list[Any]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
