"""What all families are translated into, and its one way into the engine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ggfw.asking import submit_chat
from ggfw.errors import ContextLengthExceeded, InvalidRequest
from ggfw.handle import Handle
from ggfw.library import Model
from ggfw.request import Request, with_seed
from ggfw.sampling.params import choice_seed
from ggfw.server.errors import renamed
from ggfw.server.state import State

if TYPE_CHECKING:
    from ggfw.chat.skill_handle import SkillHandle

#: Choices one request may ask for.
MAX_CHOICES = 128

_PLACE = re.compile(r"messages\[(\d+)\]")


@dataclass
class Generation:
    """A conversation to answer, or a raw prompt to continue; None = not said.

    Args:
        messages: in OpenAI's form; see :func:`ggfw.chat.messages.normalise`.
        places: what the client calls each of them, for errors; empty: ``messages[0]`` and so on.
        prompt: text or token ids instead of messages; never templated. Control tokens in the text are recognised: who
            sends a raw prompt writes the markup.
        n: answers wanted.
        tools, tool_choice, parallel_tool_calls: in OpenAI's form.
        thinking, effort, budget: of reasoning.
        template_args: more variables of the template.
        options: of :meth:`ggfw.Model.request`, sampling parameters among them.
        num_ctx: positions this request may use of the context.
        cache_prompt: whether the prefix cache may be used.
        cache_key: only requests with the same one share the prefix cache.
        context: token ids of an earlier exchange that stand in front of the prompt.
    """

    messages: Sequence[Any] | None = None
    places: Sequence[str] = ()
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
    cache_prompt: bool | None = None
    cache_key: bytes | None = None
    context: Sequence[int] = ()

    @property
    def form(self) -> str | None:
        """The client's name of the field that says what the answer must look like."""
        grammar = self.options.get("grammar")
        if grammar is not None:
            return str(getattr(grammar, "param", None) or "grammar")
        if not self.tools:
            return None
        return "tools" if self.tool_choice in (None, "auto") else "tool_choice"


@dataclass(frozen=True)
class Choice:
    """One answer that has been asked for.

    Args:
        request: the engine's; of several rounds the first.
        handle: on the answer.
    """

    request: Request
    handle: Handle | SkillHandle


def with_system(messages: Sequence[Any], system: str | None) -> Sequence[Any]:
    """``messages`` with a system prompt in front of them; none at all stay none, which is refused later."""
    return [{"role": "system", "content": system}, *messages] if system and messages else messages


def own_places(messages: Sequence[Any] | None, *before: str) -> list[str]:
    """The places of a client's messages, behind what stands in fields of its own."""
    return [*before, *(f"messages[{n}]" for n in range(len(messages or ())))]


def with_preset(wanted: Generation, preset: Mapping[str, Any]) -> Generation:
    """What is asked of a derived model: its own system prompt, messages and options stand behind the request's."""
    if not preset:
        return wanted
    messages, places = wanted.messages, wanted.places
    if messages:
        first = messages[0].get("role") if isinstance(messages[0], dict) else None
        messages = [*preset.get("messages", ()), *messages]
        if first not in ("system", "developer"):
            messages = with_system(messages, preset.get("system"))
        asked = wanted.messages or ()
        own = [f"messages[{n}] of the model itself" for n in range(len(messages) - len(asked))]
        places = [*own, *(places or own_places(asked))]
    given = {name: value for name, value in wanted.options.items() if value is not None}
    num_ctx = wanted.num_ctx if wanted.num_ctx is not None else preset.get("num_ctx")
    options = {**preset.get("options", {}), **given}
    return replace(wanted, messages=messages, places=places, options=options, num_ctx=num_ctx)


@contextlib.contextmanager
def _placed(places: Sequence[str]) -> Iterator[None]:
    """Errors about messages name them as the client does."""
    try:
        yield
    except InvalidRequest as error:
        found = _PLACE.match(error.param or "")
        if found is not None and int(found[1]) < len(places):
            renamed(error, found[0], places[int(found[1])])
        raise


def submit(model: Model, state: State, wanted: Generation, id: str) -> list[Choice]:
    """Queue a generation, one request per choice. Renders and encodes, which takes a while: call it in a thread.

    Choices beyond the first have seeds of their own, derived from the request's: the first one is what a request for
    one choice would give, and the same seed gives the same choices again.

    Raises:
        InvalidRequest: a value is not acceptable.
        QueueFull: too many requests wait; none of these has been queued.
    """
    if not 1 <= wanted.n <= MAX_CHOICES:
        raise InvalidRequest(f"n must be between 1 and {MAX_CHOICES}, but is {wanted.n}", "n")
    check_room(model, wanted.n, "n")
    check_num_ctx(model, wanted.num_ctx)
    options = _options(model, state, wanted)
    if wanted.n > 1:
        # Definite, so that the choices' seeds can be derived from it.
        seed = with_seed(model.request([0], seed=options.get("seed")).params).seed or 0
        options["seed"] = seed
    with _placed(wanted.places):
        if wanted.messages is not None and state.skills:
            return _submit_with_skills(model, state, wanted, options, id)
        # Parsers and constraints remember what they have seen: each choice needs its own.
        made = [_request(model, wanted, _of_choice(options, n), _id(id, n)) for n in range(wanted.n)]
    handles = model.engine.submit_choices(made)
    return [Choice(request, handle) for request, handle in zip(made, handles, strict=True)]


def first_request(model: Model, state: State, wanted: Generation, id: str) -> Request:
    """The engine's request, or that of the first round, without queueing it."""
    check_num_ctx(model, wanted.num_ctx)
    options = _options(model, state, wanted)
    if wanted.messages is not None and state.skills:
        from ggfw.chat.rounds import Rounds, skills_apply
        from ggfw.chat.skills import Skills

        offered = Skills.of(state.skills)
        if skills_apply(offered, wanted.tools, wanted.tool_choice):
            chat = _chat_options(wanted, options, id)
            with _placed(wanted.places):
                return Rounds(_maker(model, wanted, []), wanted.messages, offered, chat).next()
    with _placed(wanted.places):
        return _request(model, wanted, options, id)


def _submit_with_skills(
    model: Model, state: State, wanted: Generation, options: dict[str, Any], id: str
) -> list[Choice]:
    choices: list[Choice] = []
    try:
        for n in range(wanted.n):
            made: list[Request] = []
            handle = submit_chat(
                model,
                list(wanted.messages or ()),
                skills=state.skills,
                make=_maker(model, wanted, made),
                **_chat_options(wanted, _of_choice(options, n), _id(id, n)),
            )
            choices.append(Choice(made[0], handle))
    except BaseException:
        for choice in choices:
            choice.handle.cancel()
        raise
    return choices


def _maker(model: Model, wanted: Generation, made: list[Request]) -> Any:
    """Makes the request of each round."""

    def make(messages: Sequence[Any], **options: Any) -> Request:
        request = _adapted(model, model.chat_request(messages, **options), wanted)
        made.append(request)
        return request

    return make


def _request(model: Model, wanted: Generation, options: dict[str, Any], id: str) -> Request:
    if wanted.messages is not None:
        chat = _chat_options(wanted, options, id)
        return _adapted(model, model.chat_request(wanted.messages, **chat), wanted)
    assert wanted.prompt is not None
    return _adapted(model, model.request(wanted.prompt, parse_special=True, id=id, **options), wanted)


def _has_bos(model: Model, prompt: Sequence[int]) -> bool:
    """Whether a prompt begins with BOS: with the mark of a turn instead where a vocabulary has one token for both."""
    if not prompt or prompt[0] != model.tokenizer.bos_id:
        return False
    return model.tokenizer.add_bos or "bos_token" in model.template.source


def _adapted(model: Model, request: Request, wanted: Generation) -> Request:
    if wanted.context:
        request.of_text = False  # the client's own ids, perhaps none of the vocabulary, are taken as they are
        # The earlier exchange has its own BOS.
        twice = _has_bos(model, request.prompt) and request.prompt[0] == wanted.context[0]
        request.prompt = [*wanted.context, *request.prompt[1 if twice else 0 :]]
    if wanted.cache_prompt is not None:
        request.cache_prompt = wanted.cache_prompt
    request.cache_key = wanted.cache_key
    if wanted.num_ctx is not None:
        room = wanted.num_ctx - len(request.prompt)
        if room < 1:
            short = ContextLengthExceeded(len(request.prompt), wanted.num_ctx)
            renamed(short, "raise the context size (--ctx)", "ask for a larger num_ctx")
            raise short
        limit = request.max_tokens
        request.max_tokens = room if limit is None or limit == -1 else min(limit, room)
    return request


def _options(model: Model, state: State, wanted: Generation) -> dict[str, Any]:
    given = {name: value for name, value in wanted.options.items() if value is not None}
    options = {**state.defaults, **given}
    if options.get("logit_bias"):
        options["logit_bias"] = _biases(model, options["logit_bias"])
    return options


def _biases(model: Model, given: Mapping[int | str, float]) -> dict[int, float]:
    """Biases by token id. As in llama-server, one of a text is of each of its tokens, and those of one token add up."""
    out: dict[int, float] = {}
    for token, bias in given.items():
        ids = [token] if isinstance(token, int) else model.tokenizer.encode(token, add_special=False)
        for id in ids:
            out[id] = out.get(id, 0.0) + bias
    return out


def _chat_options(wanted: Generation, options: dict[str, Any], id: str) -> dict[str, Any]:
    more: dict[str, Any] = {
        "tools": wanted.tools,
        "tool_choice": wanted.tool_choice,
        "parallel_tool_calls": wanted.parallel_tool_calls,
        "think": wanted.thinking,
        "reasoning_effort": wanted.effort,
        "reasoning_budget": wanted.budget,
    }
    given = {name: value for name, value in more.items() if value is not None}
    return {**options, **given, "template_args": dict(wanted.template_args), "id": id}


def _of_choice(options: dict[str, Any], n: int) -> dict[str, Any]:
    return {**options, "seed": choice_seed(options["seed"], n)} if n else options


def _id(id: str, n: int) -> str:
    return f"{id}-{n}" if n else id


def check_room(model: Model, n: int, param: str) -> None:
    """Check that so many answers at once can fit at all, in an empty queue.

    Raises:
        InvalidRequest: they never can; trying again later would not help.
    """
    running, queue = model.engine.scheduler.n_parallel, model.engine.max_queue
    if n > running + queue:
        raise InvalidRequest(
            f"{param} asks for {n} answers at once, but this server runs {running} and lets {queue} wait, "
            f"{running + queue} in all; ask for fewer",
            param,
        )


def check_num_ctx(model: Model, num_ctx: int | None) -> None:
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
