"""Anthropic's messages: bodies, and their way into a generation. Answers are written by ``anthropic``."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ggfw.chat.messages import part_text
from ggfw.constraints import Grammar
from ggfw.errors import InvalidRequest
from ggfw.server.calls import function_tool
from ggfw.server.constrained import ConstraintFields, one_of
from ggfw.server.fields import Body, Messages, ObjectHint, SamplingFields, TemplateArgs, TextHint, refuse
from ggfw.server.generation import Generation

#: A first system block that changes with every request of one client, and would spoil every cached prefix.
BILLING = "x-anthropic-billing-header"


class Thinking(Body):
    """``thinking``."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class ToolChoice(Body):
    """``tool_choice``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Body):
    """``output_config``."""

    format: dict[str, Any] | None = None
    effort: str | None = None


class MessagesBody(ConstraintFields, SamplingFields):
    """Body of ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

    renamed: ClassVar[dict[str, str]] = {
        "stop": "stop_sequences",
        "reasoning_effort": "output_config",
        "reasoning_budget": "thinking",
    }

    messages: Messages
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: TemplateArgs | None = None
    cache_prompt: bool | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None
    cache_control: ObjectHint = None
    diagnostics: ObjectHint = None
    inference_geo: TextHint = None
    metadata: ObjectHint = None
    service_tier: TextHint = None
    speed: TextHint = None
    user_profile_id: TextHint = None
    workspace_id: TextHint = None

    def generation(self) -> Generation:
        """What is asked for, in the engine's words.

        Raises:
            InvalidRequest: a block or a tool that cannot be honoured.
        """
        refuse(
            self,
            container="it runs no programs",
            mcp_servers="call the servers yourself, and give their tools as tools",
        )
        choice, parallel = _choice(self.tool_choice)
        thinking, budget = None, None
        if self.thinking is not None and self.thinking.type != "adaptive":
            thinking = self.thinking.type == "enabled"
            budget = self.thinking.budget_tokens if thinking else None
        system, (messages, places) = _system(self.system), _messages(self.messages)
        return Generation(
            messages=[*system, *messages] if messages else messages,
            places=["system"] * len(system) + places,
            tools=[_tool(tool, n) for n, tool in enumerate(self.tools or ())] or None,
            tool_choice=choice,
            parallel_tool_calls=parallel,
            thinking=thinking,
            budget=budget,
            effort=self.output_config.effort if self.output_config else None,
            template_args=dict(self.chat_template_kwargs or {}),
            cache_prompt=self.cache_prompt,
            options={
                **self.sampling(),
                "max_tokens": self.max_tokens,
                "stop": self.stop_sequences,
                "grammar": self._grammar(),
            },
        )

    def _grammar(self) -> Grammar | None:
        return one_of(self._own_grammar(), self.answer_grammar())

    def _own_grammar(self) -> Grammar | None:
        form = self.output_format or (self.output_config.format if self.output_config else None)
        if form is None:
            return None
        param = "output_format" if self.output_format else "output_config"
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise InvalidRequest(f"{param} must have the type json_schema and a schema", param)
        return Grammar.json_schema(form["schema"], param)


def _system(given: str | list[Any] | None) -> list[dict[str, Any]]:
    if given is None or isinstance(given, str):
        return [{"role": "system", "content": given}] if given else []
    for n, block in enumerate(given):
        if not isinstance(block, dict) or not isinstance(block.get("text"), str):
            raise InvalidRequest(f"system[{n}] must be a block of type text with a text", f"system[{n}]")
    blocks = [block for block in given if not block["text"].startswith(BILLING)]
    return [{"role": "system", "content": blocks}] if blocks else []


def _messages(given: list[Any]) -> tuple[list[Any], list[str]]:
    """Messages in OpenAI's form, of which one of the client's may make several, and the client's place of each."""
    out: list[Any] = []
    places: list[str] = []
    for n, message in enumerate(given):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            out.append(message)  # what is malformed is refused where all messages are checked
        elif message.get("role") == "assistant":
            out.append(_assistant(content, f"messages[{n}]"))
        else:
            out += _user(message, content, f"messages[{n}]")
        places += [f"messages[{n}]"] * (len(out) - len(places))
    return out, places


def _assistant(content: list[Any], where: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for n, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        place = f"{where}.content[{n}]"
        if kind == "thinking":
            thoughts.append(_text(block, "thinking", place))
        elif kind == "tool_use":
            given = {} if block.get("input") is None else block["input"]
            if not isinstance(given, dict):
                raise InvalidRequest(f"{place}.input must be an object, not {given!r:.80}", f"{place}.input")
            function = {"name": _text(block, "name", place), "arguments": given}
            calls.append({"id": _text(block, "id", place), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            texts.append(part_text(block, place))
    out: dict[str, Any] = {"role": "assistant", "content": texts}
    if thoughts:
        out["reasoning_content"] = "\n".join(thoughts)
    if calls:
        out["tool_calls"] = calls
    return out


def _text(block: dict[str, Any], key: str, where: str) -> str:
    """What a block has to have, as text."""
    value = block.get(key)
    if not isinstance(value, str):
        what = "is missing" if value is None else f"must be a text, not {value!r:.80}"
        raise InvalidRequest(f"{where}.{key} {what}", f"{where}.{key}")
    return value


def _user(message: dict[str, Any], content: list[Any], where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, in front of what the user says."""
    results: list[dict[str, Any]] = []
    rest: list[Any] = []
    for n, block in enumerate(content):
        place = f"{where}.content[{n}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            text = block.get("content")
            if isinstance(text, list):
                text = [_readable(part, f"{place}.content[{m}]") for m, part in enumerate(text)]
            elif text is not None and not isinstance(text, str):
                raise InvalidRequest(
                    f"{place}.content must be a text or a list of blocks, not {text!r:.80}",
                    f"{place}.content",
                )
            if block.get("is_error") and not text:
                text = "error"
            id = _text(block, "tool_use_id", place)
            results.append({"role": "tool", "tool_call_id": id, "content": text or ""})
        else:
            rest.append(_readable(block, place))
    return [*results, {**message, "content": rest}] if rest or not results else results


def _readable(block: Any, where: str) -> str:
    """The text of a block, also of a document that is text."""
    source = block.get("source") if isinstance(block, dict) and block.get("type") == "document" else None
    if isinstance(source, dict) and source.get("type") == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    return part_text(block, where)


def _tool(tool: Any, n: int) -> dict[str, Any]:
    where = f"tools[{n}]"
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{where} must be an object", where)
    if tool.get("type") not in (None, "custom") and "input_schema" not in tool:
        raise InvalidRequest(
            f"{where} is of type {tool['type']!r}, which runs on Anthropic's servers; define a tool of your own",
            where,
        )
    return function_tool(
        tool.get("name"), tool.get("description"), tool.get("input_schema"), tool.get("strict")
    )


def _choice(given: ToolChoice | None) -> tuple[Any, bool | None]:
    if given is None:
        return None, None
    parallel = False if given.disable_parallel_tool_use else None
    if given.type == "tool":
        if not given.name:
            raise InvalidRequest("tool_choice of type tool needs a name", "tool_choice")
        return {"type": "function", "function": {"name": given.name}}, parallel
    return {"auto": "auto", "any": "required", "none": "none"}[given.type], parallel
