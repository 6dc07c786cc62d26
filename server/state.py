"""What an application serves: the model, defaults, log; looked up from a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sanic import Request

from ggfw.errors import ModelNotFound
from ggfw.library import Model
from ggfw.result import Result


@dataclass
class Served:
    """A model and how requests for it are completed.

    Args:
        model: it.
        id: what ``/v1/models`` calls it.
        defaults: request fields that apply where a request has none (``temperature``, ``max_tokens`` …).
        log: called with (event, fields); None = silence.
        created: Unix time in seconds.
    """

    model: Model
    id: str
    defaults: dict[str, Any] = field(default_factory=dict)
    log: Callable[[str, dict[str, Any]], None] | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def names(self) -> set[str]:
        """Everything a request may call this model."""
        path = self.model.gguf.path
        stem = {Path(path).stem, Path(path).name} if path else set()
        return {self.id, self.model.name, *stem}

    def find(self, name: str | None) -> Model:
        """The model of that name; None means the one there is.

        Raises:
            ModelNotFound: there is no such model.
        """
        if name is None or name in self.names:
            return self.model
        raise ModelNotFound(f"there is no model {name!r} here; this server has {self.id!r}")

    def say(self, event: str, fields: dict[str, Any]) -> None:
        """Write a line to the log, if there is one."""
        if self.log is not None:
            self.log(event, fields)


def served(request: Request) -> Served:
    """What the application of ``request`` serves."""
    return request.app.ctx.ggfw  # type: ignore[no-any-return]


def model_id(model: Model) -> str:
    """The default id: the file's stem, else the model's name."""
    path = model.gguf.path
    return Path(path).stem if path else model.name


def log_result(request: Request, state: Served, result: Result, streaming: bool) -> None:
    """One line per inference."""
    t = result.timings
    state.say(
        "inference",
        {
            "request_id": str(request.id),
            "endpoint": request.path,
            "model": state.id,
            "streaming": streaming,
            "prompt_tokens": result.usage.prompt_tokens,
            "cached_tokens": result.usage.cached_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "queue_ms": round(t.queue, 2),
            "ttft_ms": round(t.ttft, 2),
            "prefill_ms": round(t.prefill, 2),
            "decode_ms": round(t.decode, 2),
            "total_ms": round(t.total, 2),
            "tokens_per_second": round(t.decode_per_second, 2),
            "finish_reason": result.finish_reason,
        },
    )
