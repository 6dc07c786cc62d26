"""OpenAI's completions: ``POST /v1/completions``. The prompt is continued as it is, never templated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field
from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.chat.deltas import TextDelta
from ggfw.errors import ContextLengthExceeded, InvalidRequest
from ggfw.library import Model
from ggfw.request import new_id
from ggfw.result import Result, Usage
from ggfw.sampling import TokenLogprob
from ggfw.server.answers import Answers, answering, leasing
from ggfw.server.constrained import ConstraintFields
from ggfw.server.embedding import evaluating
from ggfw.server.endpoint import endpoint
from ggfw.server.families.openai_chat import PROGRESS, StreamOptions, head
from ggfw.server.fields import Integers as Ids
from ggfw.server.fields import SamplingFields, StreamFields, TextHint, Texts
from ggfw.server.figures import openai_usage, prompt_progress, summed, timings, timings_so_far
from ggfw.server.generation import Generation, first_request
from ggfw.server.infill import infill_prompt
from ggfw.server.logprobs import legacy_logprobs
from ggfw.server.pool import Lease
from ggfw.server.prompts import prompt_logprobs
from ggfw.server.state import State, served
from ggfw.server.streams import COMMENT, DONE, event, send

openai_completions = Blueprint("openai-completions")

#: Prompts one request may have.
MAX_PROMPTS = 128

#: The ``logprobs`` object of a completion.
Noted: TypeAlias = dict[str, list[Any]]


class CompletionBody(ConstraintFields, StreamFields, SamplingFields):
    """Body of ``POST /v1/completions``."""

    renamed: ClassVar[dict[str, str]] = {"messages": "prompt"}

    prompt: str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    model: str | None = None
    suffix: str | None = None
    echo: bool | None = None
    max_tokens: int | None = None
    stop: str | list[str | None] | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    cache_prompt: bool | None = None
    user: TextHint = None

    @property
    def scored(self) -> bool:
        """Whether the prompts come back with the log-probabilities of their tokens."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def only_echo(self) -> bool:
        """Whether nothing is to be generated: programs that measure models ask so for what a text is worth."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[str | Ids]:
        """The prompts, text or token ids.

        Raises:
            InvalidRequest: none, or too many.
        """
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise InvalidRequest("prompt must not be an empty list", "prompt")
        if isinstance(given[0], int):
            return [given]  # type: ignore[list-item]
        if len(given) > MAX_PROMPTS:
            raise InvalidRequest(
                f"prompt has {len(given)} prompts; at most {MAX_PROMPTS} are taken", "prompt"
            )
        return list(given)  # type: ignore[arg-type]

    def generations(self, model: Model) -> list[Generation]:
        """One per prompt.

        Raises:
            InvalidRequest: a field that cannot be honoured.
        """
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequest(
                f"best_of is {self.best_of}, but only as many answers are made as n ({self.n or 1}) asks for; "
                "leave it out",
                "best_of",
            )
        if self.scored and self.suffix:
            raise InvalidRequest(
                "suffix cannot be combined with echo and logprobs; leave one of them out", "suffix"
            )
        options = {
            **self.sampling(),
            "max_tokens": 1 if self.only_echo else self.max_tokens,
            "stop": self.stop,
            "ignore_eos": self.ignore_eos,
            "logprobs": self.logprobs,
            "grammar": self.answer_grammar(),
        }
        made = []
        for prompt in self.prompts():
            if self.suffix:
                if not isinstance(prompt, str):
                    raise InvalidRequest("suffix needs a prompt that is text", "suffix")
                prompt = infill_prompt(model, prompt, self.suffix)
            made.append(
                Generation(
                    prompt=prompt,
                    n=1 if self.n is None else self.n,
                    cache_prompt=self.cache_prompt,
                    options=dict(options),
                )
            )
        return made

    def echoes(self, model: Model) -> list[str]:
        """What stands in front of the answers of each prompt."""
        if not self.echo:
            return [""] * len(self.prompts())
        return [p if isinstance(p, str) else model.detokenize(p, special=True) for p in self.prompts()]


@endpoint(openai_completions, "POST", "/v1/completions", family="openai", body=CompletionBody)
async def completions(request: Request, body: CompletionBody) -> HTTPResponse | None:
    """Continue one or several prompts."""
    id = new_id("cmpl")
    async with leasing(request, body.model, beat=(lambda: COMMENT) if body.stream else None) as lease:
        wanted = body.generations(lease.model)
        if body.only_echo:
            return await _echo(request, body, lease, wanted, id)
        async with answering(
            request, body.model, wanted, id=id, streaming=bool(body.stream), lease=lease
        ) as answers:
            if body.stream:
                stream = _Stream(request, answers, body, id)
                await send(request, stream.frames(), beat=stream.beat, every=stream.every)
                return None
            results = await answers.results()
            scores = await _scores(request, body, answers) if body.scored else []
            return json(_completion(answers, body, results, id, scores))


async def _scores(request: Request, body: CompletionBody, answers: Answers) -> list[Noted]:
    """The ``logprobs`` of each prompt."""
    ids = [one.prompt for one in answers.requests[:: body.n or 1]]
    return await _scored(served(request), answers.model, body, ids)


async def _scored(state: State, model: Model, body: CompletionBody, prompts: list[list[int]]) -> list[Noted]:
    out = []
    with evaluating(state, model):
        for given, ids in zip(body.prompts(), prompts, strict=True):
            entries = await prompt_logprobs(model, ids, body.logprobs or 0)
            if isinstance(given, str) and model.tokenizer.add_bos:
                entries = entries[1:]  # BOS was put there, and is no part of the text
            out.append(legacy_logprobs(model.tokenizer, entries, body.logprobs or 0))
    return out


async def _echo(
    request: Request, body: CompletionBody, lease: Lease, wanted: list[Generation], id: str
) -> HTTPResponse | None:
    """Answer with the prompts alone."""
    model, state = lease.model, served(request)
    made = [await asyncio.to_thread(first_request, model, state, one, id) for one in wanted]
    prompts = [one.prompt for one in made]
    for ids in prompts:
        if len(ids) > model.n_ctx:
            raise ContextLengthExceeded(len(ids), model.n_ctx)
    with state.waited_for(request, lease.id):
        scores = await _scored(state, model, body, prompts) if body.logprobs is not None else []
    n = body.n or 1
    choices = [
        {
            "index": index,
            "text": text,
            "logprobs": scores[index // n] if scores else None,
            "finish_reason": "length",
        }
        for index, text in enumerate(text for text in body.echoes(model) for _ in range(n))
    ]
    top = head(lease, id, "text_completion")
    usage = openai_usage(Usage(sum(map(len, prompts)), 0))
    if not body.stream:
        return json({**top, "choices": choices, "usage": usage})

    async def frames() -> AsyncIterator[str]:
        for choice in choices:
            yield event({**top, "choices": [choice]})
        if body.stream_options and body.stream_options.include_usage:
            yield event({**top, "choices": [], "usage": usage})
        yield DONE

    await send(request, frames())
    return None


def _joined(first: Noted, second: Noted) -> Noted:
    return {name: [*first[name], *second[name]] for name in first}


def _completion(
    answers: Answers, body: CompletionBody, results: list[Result], id: str, scores: list[Noted]
) -> dict[str, Any]:
    n = body.n or 1
    echoes = body.echoes(answers.model)
    choices = []
    for index, result in enumerate(results):
        noted = None
        echo = echoes[index // n]
        if result.logprobs is not None:
            noted = legacy_logprobs(answers.model.tokenizer, result.logprobs, body.logprobs or 0, len(echo))
            noted = _joined(scores[index // n], noted) if scores else noted
        text = echo + result.text
        choices.append(
            {"index": index, "text": text, "logprobs": noted, "finish_reason": result.finish_reason}
        )
    return {
        **head(answers, id, "text_completion"),
        "choices": choices,
        "usage": openai_usage(summed(results, n)),
        "timings": timings(results[0]),
    }


class _Stream:
    """Pieces of text, a chunk with the finish reason per choice, perhaps usage, end mark."""

    def __init__(self, request: Request, answers: Answers, body: CompletionBody, id: str) -> None:
        self.request, self.answers, self.body = request, answers, body
        self.every = PROGRESS if body.return_progress else None
        self.head = head(answers, id, "text_completion")
        self._offset = [0] * answers.n
        self._told = -1

    def chunk(self, index: int, text: str, reason: str | None = None, noted: Any = None, **more: Any) -> str:
        choice = {"index": index, "text": text, "logprobs": noted, "finish_reason": reason}
        return event({**self.head, "choices": [choice], **more})

    def beat(self) -> str | None:
        """Progress of the prompt where it was asked for, else a comment, which clients skip."""
        now = self.answers.progress() if self.body.return_progress else None
        if now is not None and not now.drawn and now.processed != self._told:
            self._told = now.processed
            return self.chunk(0, "", prompt_progress=prompt_progress(now))
        return COMMENT

    async def frames(self) -> AsyncIterator[str]:
        echoes, n = self.body.echoes(self.answers.model), self.body.n or 1
        scores: list[Any] = [None] * len(echoes)
        if self.body.scored:
            yield COMMENT  # from now on the stream shows that it is alive
            scores = await _scores(self.request, self.body, self.answers)
            self._offset = [len(echoes[index // n]) for index in range(self.answers.n)]
        yield "".join(
            self.chunk(index, echoes[index // n], noted=scores[index // n]) for index in range(self.answers.n)
        )
        results: dict[int, Result] = {}
        async for index, item in self.answers.pieces():
            if isinstance(item, Result):
                results[index] = item
                yield self.chunk(index, "", item.finish_reason, timings=timings(item))
            elif isinstance(item, TextDelta):
                more: dict[str, Any] = {}
                if self.body.timings_per_token and (now := self.answers.progress(index)) is not None:
                    more["timings"] = timings_so_far(now)
                yield self.chunk(index, item.text, noted=self._noted(index, item.text, item.logprobs), **more)
        if self.body.stream_options and self.body.stream_options.include_usage:
            ordered = [results[index] for index in range(self.answers.n)]
            yield event({**self.head, "choices": [], "usage": openai_usage(summed(ordered, n))})
        yield DONE

    def _noted(self, index: int, text: str, entries: tuple[TokenLogprob, ...]) -> Any:
        if self.body.logprobs is None:
            return None
        tokenizer = self.answers.model.tokenizer
        noted = legacy_logprobs(tokenizer, entries, self.body.logprobs, self._offset[index])
        self._offset[index] += len(text)
        return noted
