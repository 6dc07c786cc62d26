"""What a finished request gives back: text, token ids, usage and timings."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.sampling.logprobs import TokenLogprob


@dataclass(frozen=True)
class Usage:
    """Token counts of one request.

    Args:
        prompt_tokens: tokens of the prompt, BOS included.
        completion_tokens: tokens that were drawn, an end-of-generation token included.
        cached_tokens: prompt tokens that were not evaluated because the cache held them.
        reasoning_tokens: of the completion, tokens that belong to a reasoning block.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Wall-clock times of one request, in milliseconds.

    Args:
        load: what loading the model took (the same for all its requests).
        queue: from submission until the first step that held a row of this request was planned.
        ttft: time to first token, from submission.
        prefill: from the end of the queue until the first token.
        decode: from the first to the last token.
        total: from submission to the end.
        prompt_per_second: evaluated prompt tokens per second of prefill; 0 when nothing was measured.
        decode_per_second: tokens after the first one, per second of decode; 0 when there was at most one.
    """

    load: float = 0.0
    queue: float = 0.0
    ttft: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    total: float = 0.0
    prompt_per_second: float = 0.0
    decode_per_second: float = 0.0


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wrote.

    Args:
        id: nine alphanumeric characters (some templates insist on that form).
        name: of the tool.
        arguments: JSON text of an object, as the model wrote it.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Result:
    """A finished, or canceled, generation.

    Args:
        text: the answer without reasoning, tool calls and end markers.
        reasoning: text of the reasoning blocks.
        tool_calls: in the order in which they were written.
        finish_reason: ``stop`` (end token or stop string), ``length`` (``max_tokens`` or the end of the context),
            ``tool_calls``; in the partial result of an error ``canceled``, ``deadline`` or ``error``.
        token_ids: all drawn tokens, an end-of-generation token included.
        usage: token counts.
        timings: milliseconds and speeds.
        stop: the stop string that ended the text, or None.
        seed: the seed that was used: with it, the same request gives the same answer.
        id: of the request.
        logprobs: one per id of ``token_ids``, where the request asked for them, else None.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    token_ids: tuple[int, ...] = ()
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    stop: str | None = None
    seed: int = 0
    id: str = ""
    logprobs: list[TokenLogprob] | None = None

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts and lists, for JSON."""
        from dataclasses import asdict

        out = asdict(self)
        out["tool_calls"] = list(out["tool_calls"])
        out["token_ids"] = list(out["token_ids"])
        return out
