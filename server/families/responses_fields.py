"""The body of OpenAI's responses, and its way into a generation. Answers are written by ``openai_responses``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ggfw.chat.messages import text_of
from ggfw.constraints import Grammar
from ggfw.errors import InvalidRequest
from ggfw.server.calls import function_tool
from ggfw.server.constrained import ConstraintFields, one_of
from ggfw.server.fields import (
    Body,
    FlagHint,
    NumberHint,
    ObjectHint,
    SamplingFields,
    TemplateArgs,
    TextHint,
    refuse,
)
from ggfw.server.generation import Generation
from ggfw.server.tool_choice import allowed_tools

LOGPROBS = "message.output_text.logprobs"


class ReasoningField(Body):
    """``reasoning``."""

    effort: str | None = None
    summary: TextHint = None
    generate_summary: TextHint = None
    encrypted_content: TextHint = None


class TextField(Body):
    """``text``."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(ConstraintFields, SamplingFields):
    """Body of ``POST /v1/responses`` and ``/v1/responses/input_tokens``."""

    renamed: ClassVar[dict[str, str]] = {
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "reasoning_effort": "reasoning",
    }

    input: str | list[Any] | None = None
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, Any] | None = None
    stream: bool | None = None
    store: FlagHint = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: TemplateArgs | None = None
    cache_prompt: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    image: Any = None
    background_options: Any = None
    access_programs: Any = None
    max_tool_calls: NumberHint = None
    stream_options: ObjectHint = None
    prompt_cache_key: TextHint = None
    prompt_cache_options: ObjectHint = None
    prompt_cache_retention: TextHint = None
    safety_identifier: TextHint = None
    service_tier: TextHint = None
    user: TextHint = None

    def generation(self) -> Generation:
        """What is asked for, in the engine's words.

        Raises:
            InvalidRequest: a field or an item that cannot be honoured.
        """
        refuse(
            self,
            previous_response_id="nothing is stored here; send the whole conversation as input",
            conversation="nothing is stored here; send the whole conversation as input",
            background="wait for the answer, or stream it",
            prompt="nothing is stored here; send instructions and input",
            context_management="send the conversation as it is to be read",
            moderation="leave it out",
            image="it writes text only",
            background_options="wait for the answer, or stream it",
            access_programs="leave it out",
        )
        if self.truncation == "auto":
            refuse(self, truncation="nothing is cut silently; send a shorter conversation")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise InvalidRequest(
                "text.verbosity is not supported by this server; ask for it in instructions", "text"
            )
        if self.input is None:
            raise InvalidRequest("input is missing", "input")
        messages: list[Any] = [{"role": "user", "content": self.input}]
        places = ["input"]
        if not isinstance(self.input, str):
            messages, places = _items(self.input)
        if self.instructions and messages:
            messages = [{"role": "system", "content": self.instructions}, *messages]
            places = ["instructions", *places]
        tools, choice = _tools(self.tools or [], self.tool_choice)
        return Generation(
            messages=messages,
            places=places,
            tools=tools or None,
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            effort=self.reasoning.effort if self.reasoning else None,
            template_args=dict(self.chat_template_kwargs or {}),
            cache_prompt=self.cache_prompt,
            options={
                **self.sampling(),
                "max_tokens": self.max_output_tokens,
                "logprobs": (self.top_logprobs or 0) if self.wants_logprobs else None,
                "grammar": self._grammar(),
            },
        )

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text comes with log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def _grammar(self) -> Grammar | None:
        return one_of(self._own_grammar(), self.answer_grammar())

    def _own_grammar(self) -> Grammar | None:
        form = self.text.format if self.text else None
        kind = (form or {}).get("type", "text")
        if form is None or kind == "text":
            return None
        if kind == "json_object":
            return Grammar.json_object("text")
        if kind != "json_schema":
            raise InvalidRequest(f"text.format of type {kind!r} is not supported; use json_schema", "text")
        if not isinstance(form.get("schema"), dict):
            raise InvalidRequest("text.format of type json_schema has no schema", "text")
        return Grammar.json_schema(form["schema"], "text")


def _items(items: list[Any]) -> tuple[list[Any], list[str]]:
    """Messages from items, and their places: what the assistant thought, said and called in a row is one message."""
    out: list[Any] = []
    places: list[str] = []
    open_turn: dict[str, Any] | None = None
    for n, item in enumerate(items):
        where = f"input[{n}]"
        if not isinstance(item, dict):
            raise InvalidRequest(f"{where} must be an object", where)
        kind = "message" if item.get("type") is None else item["type"]
        if kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else text_of(output, f"{where}.output")
            id = _call_id(item, where)
            out.append({"role": "tool", "tool_call_id": id, "content": text})
            places.append(where)
            open_turn = None
            continue
        if kind == "message" and item.get("role") != "assistant":
            out.append({"role": item.get("role"), "content": item.get("content")})
            places.append(where)
            open_turn = None
            continue
        if kind == "item_reference":
            raise InvalidRequest(
                f"{where} refers to an item, but nothing is stored here; send the item itself", where
            )
        if kind not in ("message", "reasoning", "function_call"):
            raise InvalidRequest(f"{where} is of type {kind!r}, which is not supported", where)
        # A second text, or thoughts after an answer, begin a turn of their own.
        if open_turn is None or (
            kind != "function_call" and (open_turn["content"] or "tool_calls" in open_turn)
        ):
            open_turn = {"role": "assistant", "content": ""}
            out.append(open_turn)
            places.append(where)
        if kind == "message":
            open_turn["content"] = text_of(item.get("content"), f"{where}.content")
        elif kind == "reasoning":
            if thoughts := _thoughts(item, where):
                open_turn["reasoning_content"] = thoughts
        else:
            open_turn.setdefault("tool_calls", []).append(_call(item, where))
    return out, places


def _thoughts(item: dict[str, Any], where: str) -> str:
    """The text of an item of reasoning: all of it, or its summary where that is not given."""
    key = "content" if item.get("content") else "summary"
    parts = [] if item.get(key) is None else item[key]
    if not isinstance(parts, list):
        raise InvalidRequest(f"{where}.{key} must be a list of parts, not {parts!r:.80}", f"{where}.{key}")
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return "\n".join(_text(text, f"{where}.{key}[{n}].text") for n, text in enumerate(texts))


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    """A call in OpenAI's older form; its arguments may be an object, too."""
    arguments = "{}" if item.get("arguments") is None else item["arguments"]
    if not isinstance(arguments, dict):
        arguments = _text(arguments, f"{where}.arguments")
    function = {"name": _text(item.get("name") or None, f"{where}.name"), "arguments": arguments}
    return {"id": _call_id(item, where), "type": "function", "function": function}


def _call_id(item: dict[str, Any], where: str) -> str:
    """Empty where none is given, or null."""
    id = item.get("call_id")
    return "" if id is None else _text(id, f"{where}.call_id")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where} must be a text, not {value!r:.80}", where)
    return value


def _tools(tools: list[Any], choice: str | dict[str, Any] | None) -> tuple[list[Any], Any]:
    """Functions; tools that only OpenAI's servers run are left out, since clients send them without being asked."""
    found = []
    for n, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"tools[{n}] must be an object", f"tools[{n}]")
        if tool.get("type") == "function":
            inner = tool.get("function")
            given = inner if isinstance(inner, dict) else tool
            found.append(
                function_tool(
                    given.get("name"), given.get("description"), given.get("parameters"), given.get("strict")
                )
            )
    if not isinstance(choice, dict):
        return found, choice
    kind = choice.get("type")
    if kind == "function":
        return found, {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools":
        left, mode = allowed_tools(found, choice)
        return list(left or ()), mode
    raise InvalidRequest(f"tool_choice of type {kind!r} is not supported", "tool_choice")
