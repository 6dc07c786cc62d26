"""Chat templates: messages in, a prompt out that knows which of its text is the template's own."""

from __future__ import annotations

import json
import time
from collections import ChainMap
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template

from ggfw.chat import builtin
from ggfw.chat.capabilities import Capabilities, typed
from ggfw.chat.limits import MAX_SECONDS, LimitExceeded, limited
from ggfw.chat.messages import REASONING, Message, calls_as_text, normalise
from ggfw.chat.metering import given_size
from ggfw.chat.sandbox import ChatEnvironment, Refusal
from ggfw.chat.tracked import Tracked, join, plain, spans, track
from ggfw.errors import InvalidRequest, TemplateError
from ggfw.records import dataclass

#: Longest template that is compiled, in characters; the longest known one has 16,448.
MAX_SOURCE = 1 << 17
#: Stands behind the text of a message that is to be continued, while it is rendered: no space, which templates trim,
#: and of Unicode's private characters, which no message has any business with.
_MARK = "\ue0b2\ue0c7\ue0b2"


#: Characters of a template's own words, or of those of an error in it, that a message repeats.
_MAX_WORDS = 2000


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
        self._patience = MAX_SECONDS  # for all attempts to find out what it can do

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

    def judged(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """``metadata`` with this template, for the choice of a dialect."""
        return ChainMap({"tokenizer.chat_template": self.source}, metadata)  # type: ignore[arg-type]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | None = False,
        **variables: Any,
    ) -> Prompt:
        """Render a conversation.

        A system message that the template refuses or drops is put in front of the first user message, with an empty
        line between them. Calls and results of tools that the template drops are written as text
        (:func:`ggfw.chat.messages.calls_as_text`).

        Args:
            messages: see :func:`ggfw.chat.messages.normalise`.
            tools: tool definitions in OpenAI's form.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: the last message is an assistant's and is left open, for the model to go on with;
                None: whenever it is one with text and without calls, and ``add_generation_prompt`` is true. Where the
                template cannot do that, its text follows the opened turn.
            variables: more variables of the template (``enable_thinking`` and the like).

        Raises:
            InvalidRequest: the messages are malformed, or the last one cannot be continued.
            TemplateError: the template refuses them (its own sentence), fails, cannot be compiled, or takes too much
                time or memory.
        """
        given = normalise(messages)
        if given[0]["role"] == "system" and not self.capabilities.system_role:
            given = fold_system(given)
        continued = _continues(given[-1], continue_final_message, add_generation_prompt)
        if not continued:
            return Prompt(tuple(spans(self._text(given, tools, add_generation_prompt, variables))))
        return Prompt(tuple(spans(self._continued(given, tools, variables))))

    def _text(
        self,
        messages: list[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt as a string whose foreign characters are marked."""
        if any("tool_calls" in m for m in messages):
            if self._writes_calls_as_text:
                messages = calls_as_text(messages)
            else:
                messages = [self._with_calls(m) for m in messages]
        if self.capabilities.typed_content:
            messages = [typed(m) for m in messages]
        shaped = track(messages)
        for message, original in zip(shaped, messages, strict=True):
            message["role"] = original["role"]  # one of four known words
        given = {k: track(v) for k, v in variables.items()}
        given["tools"] = track([]) if self.capabilities.needs_tools else None
        if self.capabilities.needs_functions:
            given.setdefault(
                "functions", Tracked(json.dumps(list(tools or ()), indent=4, ensure_ascii=False))
            )
            given.setdefault("datetime", datetime.now().strftime("%B %d %Y %H:%M:%S"))
        elif tools:
            given[self.capabilities.tools_variable or "tools"] = track(list(tools))
        return self._render(
            MAX_SECONDS, messages=shaped, add_generation_prompt=add_generation_prompt, **given
        )

    def _continued(
        self,
        messages: list[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt up to the end of the last message's text, where a mark is looked for."""
        last = messages[-1]
        marked = [*messages[:-1], {**last, "content": last["content"] + _MARK}]
        if self.capabilities.prefill:
            text = self._text(marked, tools, False, variables)
            at = plain(text).rfind(_MARK)
            if at >= 0:
                return text[:at]
        return join((self._text(messages[:-1], tools, True, variables), Tracked(last["content"])))

    @cached_property
    def _writes_calls_as_text(self) -> bool:
        """Whether calls and results of earlier turns go in as text: the template would drop them, and it has no form of
        its own that it tells the model about.
        """
        can = self.capabilities
        return not can.tool_calls and (not can.tools or "<tool_call>" in self.source)

    def _with_calls(self, message: Message) -> Message:
        """A message with its calls in the shape that this template reads."""
        if "tool_calls" not in message:
            return message
        if not self.capabilities.mapping_arguments:
            message = _string_arguments(message)
        if (
            message["content"]
            and "thinking" in message
            and isinstance(message["content"], str)
            and not self.capabilities.text_beside_reasoning
        ):
            reasoning = f"{message['thinking']}\n\n{message['content']}"
            message = {**message, "content": "", **dict.fromkeys(REASONING, reasoning)}
        if self.capabilities.null_content and not message["content"]:
            message = {**message, "content": None}
        return message

    @cached_property
    def _compiled(self) -> Template | TemplateError:
        if len(self.source) > MAX_SOURCE:
            return TemplateError(
                f"the chat template has {len(self.source)} characters; at most {MAX_SOURCE} are read"
            )
        try:
            return ChatEnvironment().from_string(self.source)
        except Exception as error:
            # Python's own compiler refuses things that Jinja lets through: a break outside of loops, deep nesting.
            return TemplateError(f"the chat template cannot be compiled: {_short(str(error))}")

    def _render(self, seconds: float, /, **variables: Any) -> str:
        template = self._compiled
        if isinstance(template, TemplateError):
            raise TemplateError(str(template))
        try:
            with limited(given_size(variables), seconds):
                return template.render({**self.variables, **variables})
        except Refusal as error:
            raise TemplateError(_short(error.message or "the chat template refused the messages")) from None
        except LimitExceeded as error:
            raise _Stopped(f"the chat template was stopped: {error}") from None
        except Exception as error:
            # Whatever code from a model file runs into is its fault, not the program's.
            what = str(error) or type(error).__name__
            raise TemplateError(f"the chat template failed on these messages: {_short(what)}") from error

    # -- what the template can do, found out by trying ------------------------------------------------------------

    def _try(self, messages: list[Message], **variables: Any) -> str | None:
        variables = {"tools": None, "add_generation_prompt": True, **variables}
        begun = time.thread_time()
        try:
            return plain(self._render(self._patience, messages=messages, **variables))
        except _Stopped:
            raise  # it would run over its limits again: do not try three times
        except TemplateError:
            return None
        finally:
            self._patience -= time.thread_time() - begun

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template can do."""
        return Capabilities(self._try)


def _continues(last: Message, wanted: bool | None, add_generation_prompt: bool) -> bool:
    """Whether the last message is to be left open.

    Raises:
        InvalidRequest: it shall be, but is no assistant's text.
    """
    can = last["role"] == "assistant" and "tool_calls" not in last
    if wanted is None:
        return can and add_generation_prompt and bool(last["content"].strip())
    if wanted and not can:
        raise InvalidRequest(
            "continue_final_message needs an assistant's message without tool calls at the end", "messages"
        )
    return wanted


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


def _short(words: str) -> str:
    return words if len(words) <= _MAX_WORDS else words[:_MAX_WORDS] + "…"


def _string_arguments(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
