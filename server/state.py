"""What an application serves and how: models, defaults, keys, log, metrics; looked up from a request."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sanic import Request

from ggfw.errors import GgfwError
from ggfw.result import Result
from ggfw.server.metrics import Metrics
from ggfw.server.pool import Pool

if TYPE_CHECKING:
    from ggfw.server.errors import Problem
    from ggfw.server.store import Store

#: Seconds of silence after which a stream shows that it is alive.
HEARTBEAT = 10.0


@dataclass
class State:
    """Everything that handlers need.

    Args:
        pool: the models.
        defaults: request fields that apply where a request has none (``temperature``, ``max_tokens`` …).
        log: called with (event, fields); None = silence.
        log_prompts: whether prompts and answers may be logged.
        isolate_cache: whether requests share evaluated prompts with those of the same API key only.
        heartbeat: seconds of silence after which a stream shows that it is alive.
        store: the folder of models that can be fetched, made and removed, if there is one.
        page: answers browsers at ``/``, if there is a page.
        skills: what conversations may load; as :meth:`ggfw.Model.chat` takes it.
        metrics: counters and histograms.
        evaluating: requests that embed, or score prompts, now, by model.
        under_way: requests that are being answered now.
        ending: whether the server is being stopped.
        started: Unix time.
    """

    pool: Pool
    defaults: Mapping[str, Any] = field(default_factory=dict)
    log: Callable[[str, dict[str, Any]], None] | None = None
    log_prompts: bool = False
    isolate_cache: bool = False
    heartbeat: float = HEARTBEAT
    store: Store | None = None
    page: Callable[[Request], Any] | None = None
    skills: Any = None
    metrics: Metrics = field(default_factory=Metrics)
    evaluating: dict[int, int] = field(default_factory=dict)
    under_way: int = 0
    ending: bool = False
    started: float = field(default_factory=time.time)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request as under way inside: the server's end waits for it."""
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def say(self, event: str, fields: dict[str, Any]) -> None:
        """Write a line to the log, if there is one."""
        if self.log is not None:
            self.log(event, fields)

    def finished(
        self, request: Request, model: str, result: Result, *, streaming: bool, prompt: Callable[[], str]
    ) -> None:
        """One line per answer, and its figures to the metrics.

        Args:
            prompt: gives the prompt's text, for servers that are told to log it.
        """
        t, used = result.timings, result.usage
        self.metrics.answer(model, result)
        if self.log is None:
            return
        self.log(
            "inference",
            {
                "request_id": str(request.id),
                "endpoint": request.path,
                "model": model,
                "streaming": streaming,
                "prompt_tokens": used.prompt_tokens,
                "cached_tokens": used.cached_tokens,
                "completion_tokens": used.completion_tokens,
                "queue_ms": round(t.queue, 2),
                "ttft_ms": round(t.ttft, 2),
                "prefill_ms": round(t.prefill, 2),
                "decode_ms": round(t.decode, 2),
                "total_ms": round(t.total, 2),
                "tokens_per_second": round(t.decode_per_second, 2),
                "finish_reason": result.finish_reason,
                "status": 200,
                **({"prompt": prompt(), "answer": result.text} if self.log_prompts else {}),
            },
        )

    def failed(self, request: Request, model: str, error: BaseException) -> None:
        """An answer that broke off: a line and a count."""
        partial = getattr(error, "partial", None)
        reason = partial.finish_reason if isinstance(partial, Result) else "error"
        self.metrics.broken(model, reason)
        fields: dict[str, Any] = {
            "request_id": str(request.id),
            "endpoint": request.path,
            "model": model,
            "finish_reason": reason,
            "error_type": type(error).__name__,
        }
        if reason == "error":
            fields["error"] = str(error)
        if isinstance(partial, Result):
            fields["prompt_tokens"] = partial.usage.prompt_tokens
            fields["completion_tokens"] = partial.usage.completion_tokens
        self.say("inference_failed", fields)

    def abandoned(self, request: Request, model: str) -> None:
        """An answer nobody waited for: the client has closed its connection."""
        self.metrics.broken(model, "disconnected")
        self.say(
            "inference_abandoned",
            {"request_id": str(request.id), "endpoint": request.path, "model": model, "status": 499},
        )

    @contextmanager
    def waited_for(self, request: Request, model: str) -> Iterator[None]:
        """Report as abandoned what is canceled inside: the client has gone."""
        try:
            yield
        except asyncio.CancelledError:
            self.abandoned(request, model)
            raise

    def embedded(self, request: Request, model: str, n_inputs: int, n_tokens: int, total_ms: float) -> None:
        """One line per request that embeds, and its tokens to the metrics."""
        self.metrics.embedded(model, n_tokens)
        self.say(
            "embedding",
            {
                "request_id": str(request.id),
                "endpoint": request.path,
                "model": model,
                "inputs": n_inputs,
                "prompt_tokens": n_tokens,
                "total_ms": round(total_ms, 2),
                "status": 200,
            },
        )

    def refused(self, request: Request, problem: Problem, error: BaseException) -> None:
        """A request that ended in an error response. What the client did wrong is counted, what we did, logged."""
        self.metrics.refused(problem.code or problem.kind)
        if problem.status == 500:
            fields = {"request_id": str(request.id), "path": request.path, "error_type": type(error).__name__}
            # What is ours says so in a sentence of its own; that of anybody else's error may be a client's text.
            if isinstance(error, GgfwError) or self.log_prompts:
                fields["error"] = str(error)
            self.say("request_failed", {**fields, "where": _where(error)})


def _where(error: BaseException) -> str:
    """The place in the code where an error began: file and line."""
    found = traceback.extract_tb(error.__traceback__)
    return f"{Path(found[-1].filename).name}:{found[-1].lineno}" if found else ""


def served(request: Request) -> State:
    """What the application of ``request`` serves."""
    return request.app.ctx.ggfw  # type: ignore[no-any-return]
