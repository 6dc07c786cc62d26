"""From a conversation to a request: what is rendered, how the answer is read, and what it may look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggfw.chat.reasoning import ReasoningOptions
from ggfw.chat.tools import Tools
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw.chat.template import Prompt
    from ggfw.library import Messages, Model
    from ggfw.request import Request

#: Variables of a template that have an argument of their own.
RESERVED = ("messages", "tools", "self")


def chat_prompt(
    model: Model,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool | None = None,
    template_args: Mapping[str, Any] | None = None,
) -> Prompt:
    """See :meth:`ggfw.Model.chat_prompt`."""
    given = model.dialect.template_arguments(dict(template_args or {}))
    for name in RESERVED:
        if name in given:
            raise InvalidRequest(f"{name!r} cannot be given as a template variable", "chat_template_kwargs")
    add_generation_prompt = bool(given.pop("add_generation_prompt", add_generation_prompt))
    continued = given.pop("continue_final_message", continue_final_message)
    return model.template.render(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continued,
        **given,
    )


def chat_request(
    model: Model,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    template_args: Mapping[str, Any] | None = None,
    continue_final_message: bool | None = None,
    think: bool | None = None,
    reasoning_effort: str | None = None,
    reasoning_budget: int | None = None,
    stop: str | Sequence[str | None] | None = None,
    **more: Any,
) -> Request:
    """See :meth:`ggfw.Model.chat_request`."""
    offered = Tools.of(tools, tool_choice, parallel_tool_calls)
    reasoning = ReasoningOptions(think, reasoning_effort, reasoning_budget)
    prompt = chat_prompt(
        model,
        messages,
        tools=[tool.definition() for tool in offered.callable],
        continue_final_message=continue_final_message,
        template_args=reasoning.template_arguments(model.template, template_args),
    )
    ids = model.tokenizer.encode_parts(prompt.parts)
    dialect = model.dialect
    stops = (*stop_strings(stop), *model.template.stops, *dialect.stops)
    request = model.request(ids, stop=stops, special_tokens=dialect.special_tokens, **more)
    request.parser = dialect.parser(prompt.text)
    block = dialect.reasoning(prompt.text)
    if request.constraint is not None:
        from ggfw.constraints import after_reasoning

        request.constraint = after_reasoning(request.constraint, model.tokenizer, block)
    request.constraint = reasoning.limited(request.constraint, model.tokenizer, block)
    return request


def stop_strings(stop: str | Sequence[str | None] | None) -> tuple[str, ...]:
    """The stop strings of a request; None stands for nothing.

    Raises:
        InvalidRequest: neither a string nor a list of strings.
    """
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(s is None or isinstance(s, str) for s in stops):
        raise InvalidRequest(f"stop is a string or a list of strings, not {stop!r:.80}", "stop")
    return tuple(s for s in stops if s is not None)
