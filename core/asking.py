"""From a conversation to a request: what is rendered, how the answer is read, and what it may look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ggfw.arguments import flag
from ggfw.chat.messages import calls_as_text, normalise, with_instructions, with_turns_of_calls
from ggfw.chat.reasoning import ReasoningOptions
from ggfw.chat.tools import Tools
from ggfw.errors import ContextLengthExceeded, InvalidRequest, brief

if TYPE_CHECKING:
    from ggfw.chat.skill_handle import SkillHandle
    from ggfw.chat.template import Prompt
    from ggfw.constraints import Grammar
    from ggfw.handle import Handle
    from ggfw.library import Messages, Model
    from ggfw.request import Request
    from ggfw.sampling import Constraint

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
    given = model.dialect.template_arguments(_template_args(template_args))
    for name in RESERVED:
        if name in given:
            raise InvalidRequest(f"{name!r} cannot be given as a template variable", "chat_template_kwargs")
    add_generation_prompt = flag(
        "add_generation_prompt", given.pop("add_generation_prompt", add_generation_prompt)
    )
    continued = given.pop("continue_final_message", continue_final_message)
    if continued is not None:
        continued = flag("continue_final_message", continued)
    can = model.template.capabilities
    if not can.tools:
        if not can.tool_calls:
            messages = calls_as_text(normalise(messages), model.dialect.call_text, model.dialect.result_text)
        if tools:
            messages = with_instructions(messages, model.dialect.tool_prompt(Tools.of(tools)))
    elif not can.tool_calls:
        messages = with_turns_of_calls(normalise(messages), model.dialect.turn_of_calls)
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
    dialect, tokenizer = model.dialect, model.tokenizer
    prompt = chat_prompt(
        model,
        messages,
        tools=[tool.definition() for tool in offered.callable],
        continue_final_message=continue_final_message,
        template_args=reasoning.template_arguments(model.template, _template_args(template_args)),
    )
    check_length(model, prompt.text)
    ids = tokenizer.encode_parts(prompt.parts)
    stops = (*stop_strings(stop), *model.template.stops, *dialect.stops)
    request = model.request(ids, stop=stops, special_tokens=dialect.special_tokens, **more)
    request.of_text = True
    schema = _answer_schema(more)
    calls = _call_constraint(model, offered, request.constraint, schema)
    request.parser = dialect.parser(prompt.text, offered, assured=calls is not None)
    before = dialect.reasoning if calls is None else dialect.reasoning_before_calls
    constraint = request.constraint if calls is None else calls
    if calls is None and constraint is not None and schema is not None and offered:
        constraint = _answer_or_calls(model, offered, constraint, schema, prompt.text)
    if constraint is not None:
        from ggfw.constraints import after_reasoning

        constraint = after_reasoning(constraint, tokenizer, before(prompt.text))
    if reasoning.limit is not None:
        block = dialect.reasoning_budget(prompt.text, calls=calls is not None)
        constraint = reasoning.limited(constraint, tokenizer, block)
    request.constraint = constraint
    return request


def _answer_schema(options: Mapping[str, Any]) -> Grammar | None:
    """The JSON schema of the answer among the options of a request.

    It says what the last answer of a conversation looks like; programs send it with each request on the way there. Any
    other grammar (GBNF, a regular expression, a choice) means all that is written.
    """
    from ggfw.constraints import grammar_option

    names = ("schema", "grammar", "regex", "json", "choice")
    answer = grammar_option(**{name: options[name] for name in names if options.get(name) is not None})
    return answer if answer is not None and answer.kind == "json_schema" else None


def _call_constraint(
    model: Model, tools: Tools, given: Constraint | None, schema: Grammar | None
) -> Constraint | None:
    """The grammar of the calls, where the request forces one, or a tool's arguments are strict; else None.

    Args:
        given: what the answer must look like.
        schema: the JSON schema that ``given`` was made of, if it was.

    Raises:
        InvalidRequest: a call is forced although the request says what all that is written must look like.
    """
    if not tools or not (tools.required or tools.strict):
        return None
    if given is not None and not tools.required:
        return None  # see _answer_or_calls
    if given is not None and schema is None:
        raise InvalidRequest(
            "tool_choice asks for a call, which the answer's own grammar rules out", "tool_choice"
        )
    return model.compiler.compile(_call_grammar(model, tools, required=tools.required))


def _call_grammar(model: Model, tools: Tools, *, required: bool) -> Grammar:
    tokenizer = model.tokenizer

    def control(text: str) -> int | None:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 and tokenizer.is_mark(ids[0]) else None

    return model.dialect.call_grammar(
        tools, required=required, parallel=not tools.single, strict=False, control=control
    )


def _answer_or_calls(
    model: Model, tools: Tools, given: Constraint, schema: Grammar, prompt: str
) -> Constraint:
    """The constraint on an answer that is to be JSON where tools are offered, too: it may be calls instead.

    Args:
        given: what the answer must look like.
        schema: what ``given`` was made of.
        prompt: the rendered prompt.
    """
    from ggfw.chat.call_grammar import answer_or_calls, enforceable

    dialect = model.dialect
    if not dialect.format.calls:
        return given
    if dialect.reasoning(prompt) != dialect.reasoning_before_calls(prompt):
        return given  # calls stand in front of where the constraint begins
    try:
        calls = _call_grammar(model, tools, required=True)
    except InvalidRequest:  # nobody asked for calls that fit their schemas, but for strict tools
        calls = _call_grammar(model, enforceable(tools), required=True)
    return model.compiler.compile(answer_or_calls(schema, calls))


def submit_chat(
    model: Model,
    messages: Messages,
    *,
    skills: Any = None,
    make: Callable[..., Request] | None = None,
    **options: Any,
) -> Handle | SkillHandle:
    """See :meth:`ggfw.Model.submit_chat`.

    Args:
        make: ``(messages, **options) -> Request``, for callers that adapt the request of each round; else
            :meth:`ggfw.Model.chat_request`.
    """
    make = make or model.chat_request
    if _wanted(skills):
        from ggfw.chat.rounds import Rounds, skills_apply
        from ggfw.chat.skills import Skills

        offered = Skills.of(skills)
        if skills_apply(offered, options.get("tools"), options.get("tool_choice")):
            from ggfw.chat.skill_handle import SkillHandle

            return SkillHandle(model.submit, Rounds(make, messages, offered, options))
    return model.submit(make(messages, **options))


def _template_args(given: Any) -> dict[str, Any]:
    """More variables of a template, by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidRequest(
            f"template_args is {brief(given)}; a mapping from names to values was expected", "template_args"
        )
    return dict(given)


def _wanted(skills: Any) -> bool:
    """Whether there are skills at all."""
    try:
        return bool(skills)
    except Exception:  # an array says that it cannot be asked
        raise InvalidRequest(f"skills must be a folder or a list, not {brief(skills)}", "skills") from None


def check_length(model: Model, text: str) -> None:
    """Refuse a text that is far too long for the context before all of it is encoded.

    Raises:
        ContextLengthExceeded: it certainly does not fit.
    """
    n = model.tokenizer.counted(text, model.n_ctx)
    if n is not None:
        raise ContextLengthExceeded(n, model.n_ctx, more=True)


def stop_strings(stop: str | Sequence[str | None] | None) -> tuple[str, ...]:
    """The stop strings of a request; None stands for nothing.

    Raises:
        InvalidRequest: neither a string nor a list of strings.
    """
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(s is None or isinstance(s, str) for s in stops):
        raise InvalidRequest(f"stop is a string or a list of strings, not {brief(stop)}", "stop")
    return tuple(s for s in stops if s is not None)
