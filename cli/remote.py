"""A model of a running server in the shape of a loaded one, as far as ``ggfw run`` and ``ggfw chat`` need it."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import click

from ggfw.catalogue import DEFAULT
from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.cli.client import Server, ServerError
from ggfw.cli.loading import loading_given
from ggfw.errors import GenerationCanceled, GenerationError, InvalidRequest, ModelNotFound
from ggfw.request import new_id
from ggfw.result import Result, Timings, ToolCall, Usage

__all__ = ["RemoteHandle", "RemoteModel", "remote_model"]

#: Options of conversations under the names that the server knows.
_NAMES = {
    "think": "enable_thinking",
    "reasoning_effort": "reasoning_effort",
    "reasoning_budget": "reasoning_budget",
    "tools": "tools",
    "tool_choice": "tool_choice",
}


def remote_model(name: str | None, context: click.Context, server: Server | None) -> RemoteModel | None:
    """Return the model of a server that a verb is to use; None: load it here.

    A server that was found by itself is used for models that it knows, unless options say how to load the model.

    Args:
        name: MODEL as the user wrote it, or None.
        context: of the verb.
        server: what :func:`ggfw.cli.client.find_server` gave.

    Raises:
        ModelNotFound: the server that the user named has no such model.
        click.UsageError: it was named, and so were options of loading.
    """
    if server is None:
        return None
    given = loading_given(context)
    if given and not server.named:
        return None
    if given:
        raise click.UsageError(
            f"{given} says how a model is loaded, which the server has done; use --local to load it here"
        )
    if name is not None:
        own = server.knows(name)
    elif server.named:
        own = next((str(row["name"]).removesuffix(":latest") for row in server.models()), None)
    else:
        own = server.knows(DEFAULT.name) or server.knows(DEFAULT.file.removesuffix(".gguf"))
    if own is None and server.named:
        names = ", ".join(str(row["name"]).removesuffix(":latest") for row in server.models()) or "none"
        raise ModelNotFound(
            f"the server at {server.url} has no model {name or 'at all'!r} (it has: {names}); --local looks here"
        )
    return None if own is None else RemoteModel(server, own)


class RemoteModel:
    """A model of a server.

    Args:
        server: where it is.
        name: the server's name of it.
    """

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the server says of the model."""
        found = self.server.ask("POST", "/api/show", {"model": self.name})
        return {"name": self.name, "server": self.server.url, **found.get("details", {})}

    @cached_property
    def n_ctx(self) -> int:
        """Positions of context; 0 where the server does not say."""
        rows = self.server.ask("GET", "/api/ps").get("models") or []
        own = [row for row in rows if str(row["name"]).removesuffix(":latest") == self.name]
        return int(own[0].get("context_length") or 0) if own else 0

    def submit_chat(
        self, messages: Sequence[Mapping[str, Any]], *, skills: Any = None, **options: Any
    ) -> RemoteHandle:
        """Ask for the answer to a conversation.

        Raises:
            InvalidRequest: ``skills`` of this machine, which the server does not have.
        """
        if skills is not None:
            raise InvalidRequest(
                "a server uses its own skills (ggfw serve --skills); with --local those of here", "skills"
            )
        body = {"messages": list(messages), **self._body(options)}
        return RemoteHandle(self.server, "/v1/chat/completions", body)

    def submit_raw(self, prompt: str, **options: Any) -> RemoteHandle:
        """Ask for the continuation of a raw prompt."""
        return RemoteHandle(self.server, "/v1/completions", {"prompt": prompt, **self._body(options)})

    def _body(self, options: dict[str, Any]) -> dict[str, Any]:
        if options.pop("logprobs", None) is not None:
            raise InvalidRequest("--logprobs works with --local only", "logprobs")
        if options.get("timeout") is not None:
            raise InvalidRequest("--timeout works with --local only; a server has its own", "timeout")
        body = {_NAMES.get(key, key): value for key, value in options.items()}
        schema, grammar = body.pop("schema", None), body.pop("grammar", None)
        if schema is not None:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema},
            }
        if grammar is not None:
            body["grammar"] = str(getattr(grammar, "text", grammar))
        if "dynatemp_exp" in body:
            body["dynatemp_exponent"] = body.pop("dynatemp_exp")
        if "logit_bias" in body:
            body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"].items()}
        return {"model": self.name, "stream": True, "stream_options": {"include_usage": True}, **body}


class RemoteHandle:
    """An answer of a server while it comes; used as :class:`ggfw.Handle` is, by one reader."""

    def __init__(self, server: Server, path: str, body: dict[str, Any]) -> None:
        self.id = new_id()
        self._server, self._path, self._body = server, path, body
        self._begun = time.perf_counter()
        self._first = 0.0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._canceled = self._ended = False
        self._deltas = self._read()

    def cancel(self) -> None:
        """Close the connection, which makes the server stop; no effect at the end."""
        if not self._ended:
            self._canceled = self._ended = True
            self._deltas.close()

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas

    def result(self, timeout: float | None = None) -> Result:
        """Read to the end and return the result.

        Raises:
            GenerationError: the server gave up, or it was canceled (``partial`` holds what had come).
        """
        for _ in self._deltas:
            pass
        if self._canceled:
            raise GenerationCanceled("the answer was stopped", partial=self._so_far("canceled"))
        if self._reason is None:
            raise GenerationError("the server ended the answer early", partial=self._so_far("error"))
        return self._so_far(self._reason)

    def _read(self) -> Generator[Any, None, None]:
        # A pause may be as long as the server needs for the prompt: it sends comments meanwhile.
        with self._server.open("POST", self._path, self._body) as answer:
            for raw in answer:
                line = raw.decode("utf-8", "replace").strip()
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    break
                chunk = json.loads(data)
                if "error" in chunk:
                    raise ServerError(f"{self._server.url}: {chunk['error'].get('message', chunk['error'])}")
                self._usage = chunk.get("usage") or self._usage
                self._timings = chunk.get("timings") or self._timings
                for choice in chunk.get("choices") or ():
                    yield from self._take(choice)
        self._ended = True

    def _take(self, choice: dict[str, Any]) -> Iterator[Delta]:
        delta = choice.get("delta") or {"content": choice.get("text")}
        self._reason = choice.get("finish_reason") or self._reason
        if delta.get("reasoning_content"):
            self._mark()
            self._reasoning.append(delta["reasoning_content"])
            yield ReasoningDelta(delta["reasoning_content"])
        if delta.get("content"):
            self._mark()
            self._text.append(delta["content"])
            yield TextDelta(delta["content"])
        for call in delta.get("tool_calls") or ():
            self._mark()
            known = self._calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
            function = call.get("function") or {}
            known["id"] = call.get("id") or known["id"]
            known["name"] = function.get("name") or known["name"]
            known["arguments"] += function.get("arguments") or ""
            yield ToolCallDelta(
                call["index"],
                call.get("id") or "",
                function.get("name") or "",
                function.get("arguments") or "",
            )

        for index in delta.get("withdrawn_tool_calls") or ():
            self._calls.pop(index, None)
            yield ToolCallDelta(index, withdrawn=True)

    def _mark(self) -> None:
        self._first = self._first or time.perf_counter()

    def _so_far(self, reason: str) -> Result:
        usage, told = self._usage, self._timings
        prompt_details = usage.get("prompt_tokens_details") or {}
        details = usage.get("completion_tokens_details") or {}
        now = time.perf_counter()
        return Result(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ToolCall(**call) for call in self._calls.values()),
            finish_reason=reason,
            usage=Usage(
                usage.get("prompt_tokens", 0),
                usage.get("completion_tokens", 0),
                prompt_details.get("cached_tokens", 0),
                details.get("reasoning_tokens", 0),
            ),
            timings=Timings(
                ttft=((self._first or now) - self._begun) * 1e3,
                prefill=told.get("prompt_ms", 0.0),
                decode=told.get("predicted_ms", 0.0),
                total=(now - self._begun) * 1e3,
                prompt_per_second=told.get("prompt_per_second", 0.0),
                decode_per_second=told.get("predicted_per_second", 0.0),
            ),
            id=self.id,
        )
