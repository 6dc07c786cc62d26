"""What all families are translated into, and its one way into the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ggfw.errors import ContextLengthExceeded, InvalidRequest
from ggfw.library import Model
from ggfw.request import Request, with_seed
from ggfw.server.state import State

#: Choices one request may ask for.
MAX_CHOICES = 128


@dataclass
class Generation:
    """A conversation to answer, or a raw prompt to continue; None = not said.

    Args:
        messages: in OpenAI's form; see :func:`ggfw.chat.messages.normalise`.
        prompt: text or token ids instead of messages; never templated. Control tokens in the text are recognised: who
            sends a raw prompt writes the markup.
        n: answers wanted.
        tools, tool_choice, parallel_tool_calls: in OpenAI's form.
        thinking, effort, budget: of reasoning.
        template_args: more variables of the template.
        options: of :meth:`ggfw.Model.request`, sampling parameters among them.
        num_ctx: positions this request may use of the context.
        skills: whether the server's skills may be loaded in this conversation.
        cache_prompt: whether the prefix cache may be used.
    """

    messages: Sequence[Any] | None = None
    prompt: str | Sequence[int] | None = None
    n: int = 1
    tools: Sequence[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    thinking: bool | None = None
    effort: str | None = None
    budget: int | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    num_ctx: int | None = None
    skills: bool = True
    cache_prompt: bool | None = None


def with_system(messages: Sequence[Any], system: str | None) -> Sequence[Any]:
    """``messages`` with a system prompt in front of them."""
    return [{"role": "system", "content": system}, *messages] if system else messages


def requests_of(model: Model, state: State, wanted: Generation, id: str) -> list[Request]:
    """The engine's requests, one per choice. Renders and encodes, which takes a while: call it in a thread.

    Choices beyond the first have seeds of their own, derived from the request's: the first one is what a request for
    one choice would give, and the same seed gives the same choices again.

    Raises:
        InvalidRequest: a value is not acceptable.
    """
    if not 1 <= wanted.n <= MAX_CHOICES:
        raise InvalidRequest(f"n must be between 1 and {MAX_CHOICES}, but is {wanted.n}", "n")
    given = {name: value for name, value in wanted.options.items() if value is not None}
    options = {**state.defaults, **given}
    limit_context(model, wanted.num_ctx)
    first = _request(model, state, wanted, options, id)
    if wanted.num_ctx is not None:
        _shorten(first, wanted.num_ctx)
    if wanted.n == 1:
        return [first]
    first.params = with_seed(first.params)
    seed = first.params.seed or 0
    made = [first]
    for choice in range(1, wanted.n):
        # Parsers and constraints remember what they have seen: each choice needs its own.
        other = _request(model, state, wanted, options, f"{id}-{choice}")
        other.params = replace(other.params, seed=(seed + choice) % 2**63)
        other.max_tokens = first.max_tokens
        made.append(other)
    return made


def limit_context(model: Model, num_ctx: int | None) -> None:
    """Check a request's own limit of the context.

    Raises:
        InvalidRequest: the model was loaded with less.
    """
    if num_ctx is None:
        return
    if num_ctx < 1:
        raise InvalidRequest(f"num_ctx must be at least 1, but is {num_ctx}", "num_ctx")
    if num_ctx > model.n_ctx:
        raise InvalidRequest(
            f"num_ctx is {num_ctx}, but the model was loaded with a context of {model.n_ctx}; "
            "ask for less, or serve it with a larger --ctx",
            "num_ctx",
        )


def _shorten(request: Request, num_ctx: int) -> None:
    room = num_ctx - len(request.prompt)
    if room < 1:
        raise ContextLengthExceeded(len(request.prompt), num_ctx)
    wanted = request.max_tokens
    request.max_tokens = room if wanted is None or wanted == -1 else min(wanted, room)


def _request(model: Model, state: State, wanted: Generation, options: dict[str, Any], id: str) -> Request:
    if wanted.messages is None:
        assert wanted.prompt is not None
        return model.request(wanted.prompt, parse_special=True, id=id, **options)
    more: dict[str, Any] = {}
    if wanted.tools:
        more["tools"] = wanted.tools
        if wanted.tool_choice is not None:
            more["tool_choice"] = wanted.tool_choice
        if wanted.parallel_tool_calls is not None:
            more["parallel_tool_calls"] = wanted.parallel_tool_calls
    elif wanted.tool_choice not in (None, "auto", "none"):
        raise InvalidRequest("tool_choice needs tools", "tool_choice")
    for name, value in (
        ("think", wanted.thinking),
        ("reasoning_effort", wanted.effort),
        ("reasoning_budget", wanted.budget),
    ):
        if value is not None:
            more[name] = value
    return model.chat_request(
        wanted.messages, template_args=dict(wanted.template_args), id=id, **more, **options
    )
