"""Chat templates: messages in, a prompt out that knows which of its text is the template's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2 import Template
from jinja2 import TemplateError as JinjaError

from ggfw.chat import builtin
from ggfw.chat.limits import LimitExceeded, limited
from ggfw.chat.messages import Message, normalise
from ggfw.chat.sandbox import ChatEnvironment, Refusal
from ggfw.chat.tracked import plain, spans, track
from ggfw.errors import TemplateError

#: Longest template that is compiled, in characters.
MAX_SOURCE = 1 << 20


class _Stopped(TemplateError):
    """The template ran over its limits."""


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Args:
        parts: (text, whether control tokens in it are meant), in order, for ``Tokenizer.encode_parts``.
    """

    parts: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(text for text, _ in self.parts)


class ChatTemplate:
    """A chat template, compiled on first use (a template that cannot be compiled spoils chat, not the model).

    Args:
        source: Jinja.
        bos_token, eos_token: texts of those tokens; empty where there is none.
        name: what messages call it.
        stops: stop strings it needs.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        name: str = "file",
        stops: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.name = name
        self.stops = stops
        self.variables = {"bos_token": bos_token, "eos_token": eos_token}

    @classmethod
    def of(cls, metadata: Mapping[str, Any], tokenizer: Any) -> ChatTemplate:
        """The template of a model file, or the built-in one that fits its vocabulary.

        Args:
            metadata: reads ``tokenizer.chat_template``.
            tokenizer: the file's tokenizer.
        """

        def text(token: int | None) -> str:
            return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")

        bos, eos = text(tokenizer.bos_id), text(tokenizer.eos_id)
        source = metadata.get("tokenizer.chat_template")
        if isinstance(source, str) and source.strip():
            return cls(source, bos_token=bos, eos_token=eos)
        found = builtin.choose(lambda t: tokenizer.find(t) is not None)
        return cls(found.source, name=found.name, stops=found.stops, bos_token=bos, eos_token=eos)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> Prompt:
        """Render a conversation.

        A system message that the template refuses or drops is put in front of the first user message, with an empty
        line between them.

        Args:
            messages: see :func:`ggfw.chat.messages.normalise`.
            tools: tool definitions in OpenAI's form.
            add_generation_prompt: open the assistant's turn.
            variables: more variables of the template (``enable_thinking`` and the like).

        Raises:
            InvalidRequest: the messages are malformed.
            TemplateError: the template refuses them (its own sentence), fails, cannot be compiled, or takes too much
                time or memory.
        """
        given = normalise(messages)
        if given[0]["role"] == "system" and not self.has_system_role:
            given = fold_system(given)
        return self._prompt(given, tools, add_generation_prompt, variables)

    def _prompt(
        self,
        messages: list[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> Prompt:
        if any("tool_calls" in m for m in messages) and not self.has_mapping_arguments:
            messages = [_string_arguments(m) for m in messages]
        if self.has_typed_content:
            messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        shaped = track(messages)
        for message, original in zip(shaped, messages, strict=True):
            message["role"] = original["role"]  # one of four known words
        return Prompt(
            tuple(
                spans(
                    self._render(
                        messages=shaped,
                        tools=track(list(tools)) if tools else None,
                        add_generation_prompt=add_generation_prompt,
                        **{k: track(v) for k, v in variables.items()},
                    )
                )
            )
        )

    @cached_property
    def _compiled(self) -> Template | TemplateError:
        if len(self.source) > MAX_SOURCE:
            return TemplateError(
                f"the chat template has {len(self.source)} characters; at most {MAX_SOURCE} are read"
            )
        try:
            return ChatEnvironment().from_string(self.source)
        except (JinjaError, RecursionError, ValueError, TypeError, MemoryError) as error:
            return TemplateError(f"the chat template cannot be compiled: {error}")

    def _render(self, **variables: Any) -> str:
        template = self._compiled
        if isinstance(template, TemplateError):
            raise TemplateError(str(template))
        try:
            with limited():
                return template.render({**self.variables, **variables})
        except Refusal as error:
            raise TemplateError(error.message or "the chat template refused the messages") from None
        except LimitExceeded as error:
            raise _Stopped(f"the chat template was stopped: {error}") from None
        except Exception as error:
            # Whatever code from a model file runs into is its fault, not the program's.
            what = str(error) or type(error).__name__
            raise TemplateError(f"the chat template failed on these messages: {what}") from error

    # -- what the template can do, found out by trying ------------------------------------------------------------

    def _try(self, messages: list[Message], **variables: Any) -> str | None:
        variables = {"tools": None, "add_generation_prompt": True, **variables}
        try:
            return plain(self._render(messages=messages, **variables))
        except _Stopped:
            raise  # it would run over its limits again: do not try three times
        except TemplateError:
            return None

    @cached_property
    def has_typed_content(self) -> bool:
        """Whether it wants content as a list of parts: a string does not arrive, a list does."""
        word = "ping-7f3a"
        if word in (self._try([{"role": "user", "content": word}]) or ""):
            return False
        parts = [{"type": "text", "text": word}]
        return word in (self._try([{"role": "user", "content": parts}]) or "")

    @cached_property
    def has_system_role(self) -> bool:
        """Whether a system message arrives in the prompt."""
        word = "rule-91bc"
        conversation: list[Message] = [
            {"role": "system", "content": word},
            {"role": "user", "content": "ping"},
        ]
        if self.has_typed_content:
            conversation = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in conversation]
        return word in (self._try(conversation) or "")

    @cached_property
    def has_mapping_arguments(self) -> bool:
        """Whether it writes the arguments of calls properly when they are a mapping (else they go in as JSON text)."""
        call = {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "probe", "arguments": {"key5": "val5"}},
        }
        conversation: list[Message] = [
            {"role": "user", "content": "ping"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        text = self._try(conversation, add_generation_prompt=False)
        return text is not None and "{'key5'" not in text

    @cached_property
    def has_tools(self) -> bool:
        """Whether tool definitions arrive in the prompt."""
        function = {
            "name": "probe_d81",
            "description": "d",
            "parameters": {"type": "object", "properties": {}},
        }
        tools = [{"type": "function", "function": function}]
        return "probe_d81" in (self._try([{"role": "user", "content": "ping"}], tools=tools) or "")


def fold_system(messages: list[Message]) -> list[Message]:
    """Put leading system messages in front of the first user message, an empty line between."""
    n = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    text = "\n\n".join(m["content"] for m in messages[:n])
    rest = [dict(m) for m in messages[n:]]
    first = next((m for m in rest if m["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *rest]
    first["content"] = f"{text}\n\n{first['content']}"
    return rest


def _string_arguments(message: Message) -> Message:
    import json

    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
