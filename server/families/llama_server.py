"""llama-server's endpoints: ``/completion``, ``/infill``. Its tools beside them are in ``llama_tools``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Annotated, Any, ClassVar

from pydantic import Field
from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

from ggfw.chat.deltas import TextDelta
from ggfw.errors import InvalidRequest
from ggfw.library import Model
from ggfw.request import new_id
from ggfw.result import Result
from ggfw.server.answers import Answers, answering, leasing
from ggfw.server.constrained import ConstraintFields
from ggfw.server.endpoint import endpoint
from ggfw.server.families.openai_chat import PROGRESS
from ggfw.server.fields import NumberHint, SamplingFields, StreamFields, refuse
from ggfw.server.figures import prompt_progress, timings, timings_so_far
from ggfw.server.generation import Generation
from ggfw.server.infill import infill_prompt
from ggfw.server.logprobs import numbered_logprobs
from ggfw.server.streams import COMMENT, event, send

llama_server = Blueprint("llama-server")


class RawBody(ConstraintFields, StreamFields, SamplingFields):
    """What ``/completion`` and ``/infill`` have in common."""

    renamed: ClassVar[dict[str, str]] = {"max_tokens": "n_predict", "messages": "prompt"}

    model: str | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    stop: str | list[str | None] | None = None
    ignore_eos: bool | None = None
    n_probs: Annotated[int, Field(ge=0, le=100)] | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    t_max_predict_ms: float | None = None
    post_sampling_probs: bool | None = None
    lora: list[Any] | None = None
    image_data: list[Any] | None = None
    response_fields: list[str] | None = None
    n_indent: int | None = None
    grammar_lazy: bool | None = None
    grammar_triggers: list[Any] | None = None
    preserved_tokens: list[Any] | None = None
    n_cmpl: int | None = None
    id_slot: NumberHint = None
    n_keep: NumberHint = None
    n_discard: NumberHint = None
    n_cache_reuse: NumberHint = None

    def generation(self, prompt: str | list[int]) -> Generation:
        """What is asked for, in the engine's words.

        Raises:
            InvalidRequest: a field that cannot be honoured.
        """
        refuse(
            self,
            post_sampling_probs="log-probabilities are of the model's own distribution",
            lora="adapters are not supported",
            image_data="this model takes text only",
            response_fields="pick the fields from the answer",
            n_indent="ask for it with a grammar",
            grammar_lazy="the grammar holds from the beginning",
            grammar_triggers="the grammar holds from the beginning",
            preserved_tokens="send the text of these tokens",
        )
        if self.n_cmpl not in (None, 1):
            refuse(self, n_cmpl="send as many requests; /v1/completions takes n")
        if self.t_max_predict_ms is not None and self.t_max_predict_ms > 0:
            refuse(self, t_max_predict_ms="limit the answer with n_predict")
        limit = self.n_predict if self.n_predict is not None else self.max_tokens
        return Generation(
            prompt=prompt,
            cache_prompt=self.cache_prompt,
            options={
                **self.sampling(),
                # -1: without end; -2: until the context is full. The context is the end of both.
                "max_tokens": None if limit in (-1, -2) else limit,
                "stop": self.stop,
                "ignore_eos": self.ignore_eos,
                "logprobs": self.n_probs or None,
                "grammar": self.answer_grammar(),
            },
        )


class CompletionBody(RawBody):
    """Body of ``POST /completion``."""

    prompt: str | list[Any]


class InfillBody(RawBody):
    """Body of ``POST /infill``."""

    renamed: ClassVar[dict[str, str]] = {**RawBody.renamed, "suffix": "input_suffix"}

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Any] | None = None
    prompt: str = ""


@endpoint(llama_server, "POST", "/completion", family="openai", body=CompletionBody)
async def completion(request: Request, body: CompletionBody) -> HTTPResponse | None:
    """Continue a raw prompt: text, token ids, or a list with both."""
    async with leasing(request, body.model, beat=(lambda: COMMENT) if body.stream else None) as lease:
        return await _answer(request, body, _prompt(lease.model, body.prompt), lease)


@endpoint(llama_server, "POST", "/infill", family="openai", body=InfillBody)
async def infill(request: Request, body: InfillBody) -> HTTPResponse | None:
    """Fill the gap between a prefix and a suffix."""
    async with leasing(request, body.model, beat=(lambda: COMMENT) if body.stream else None) as lease:
        prompt = infill_prompt(
            lease.model,
            body.input_prefix,
            body.input_suffix,
            prompt=body.prompt,
            extra=body.input_extra or (),
        )
        return await _answer(request, body, prompt, lease)


def _prompt(model: Model, given: str | list[Any]) -> str | list[int]:
    if isinstance(given, str):
        return given
    if given and all(isinstance(part, str) for part in given) and len(given) > 1:
        raise InvalidRequest("one prompt at a time; /v1/completions takes several", "prompt")
    ids: list[int] = []
    for n, part in enumerate(given):
        if isinstance(part, str):
            ids += model.tokenizer.encode(part, add_special=n == 0, parse_special=True)
        elif type(part) is int:
            ids.append(part)
        else:
            raise InvalidRequest(f"prompt[{n}] must be text or a token id", f"prompt[{n}]")
    return ids


async def _answer(
    request: Request, body: RawBody, prompt: str | list[int], lease: Any
) -> HTTPResponse | None:
    async with answering(
        request,
        body.model,
        body.generation(prompt),
        id=new_id("cmpl"),
        streaming=bool(body.stream),
        lease=lease,
    ) as answers:
        if body.stream:
            stream = _Stream(answers, body)
            every = PROGRESS if body.return_progress else None
            await send(request, stream.frames(), beat=stream.beat, every=every)
            return None
        (result,) = await answers.results()
        return json(_whole(answers, body, result, result.text))


class _Stream:
    """Pieces with ``stop: false``, and a last object with ``stop: true``. There is no end mark."""

    def __init__(self, answers: Answers, body: RawBody) -> None:
        self.answers, self.body = answers, body
        self._told = -1

    def piece(self, text: str, **more: Any) -> str:
        head = {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": -1}
        return event({**head, **more})

    def beat(self) -> str:
        """Progress of the prompt where it was asked for, else a comment."""
        now = self.answers.progress() if self.body.return_progress else None
        if now is not None and not now.drawn and now.processed != self._told:
            self._told = now.processed
            return self.piece("", prompt_progress=prompt_progress(now))
        return COMMENT

    async def frames(self) -> AsyncIterator[str]:
        yield self.piece("", tokens_predicted=0, tokens_evaluated=len(self.answers.requests[0].prompt))
        async for _, item in self.answers.pieces():
            if isinstance(item, Result):
                yield event(_whole(self.answers, self.body, item, ""))
            elif isinstance(item, TextDelta):
                more: dict[str, Any] = {}
                if self.body.n_probs:
                    tokenizer = self.answers.model.tokenizer
                    more["completion_probabilities"] = numbered_logprobs(tokenizer, item.logprobs)
                if self.body.timings_per_token and (now := self.answers.progress()) is not None:
                    more["timings"] = timings_so_far(now)
                yield self.piece(item.text, **more)


def _whole(answers: Answers, body: RawBody, result: Result, text: str) -> dict[str, Any]:
    request, used = answers.requests[0], result.usage
    stop_type = "limit" if result.finish_reason == "length" else "word" if result.stop else "eos"
    out: dict[str, Any] = {
        "index": 0,
        "content": text,
        "tokens": list(result.token_ids) if body.return_tokens else [],
        "id_slot": -1,
        "stop": True,
        "model": answers.id,
        "tokens_predicted": used.completion_tokens,
        "tokens_evaluated": used.prompt_tokens,
        "tokens_cached": used.cached_tokens,
        "generation_settings": settings(request.params, request.max_tokens, answers.model.n_ctx),
        "prompt": answers.model.tokenizer.detokenize(request.prompt, special=True),
        "has_new_line": "\n" in result.text,
        "truncated": False,
        "stop_type": stop_type,
        "stopping_word": result.stop or "",
        "timings": timings(result),
    }
    if result.logprobs is not None:
        out["completion_probabilities"] = numbered_logprobs(answers.model.tokenizer, result.logprobs)
    return out


#: Our names of parameters -> llama-server's.
NAMES = {
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
    "penalty_freq": "frequency_penalty",
    "penalty_present": "presence_penalty",
}


def settings(params: Any, max_tokens: int | None, n_ctx: int) -> dict[str, Any]:
    """llama-server's ``generation_settings``."""
    given = {one.name: getattr(params, one.name) for one in fields(params)}
    given.pop("extra", None)
    biases = given.pop("logit_bias", None) or {}
    out = {NAMES.get(name, name): list(v) if isinstance(v, tuple) else v for name, v in given.items()}
    out["logit_bias"] = [[token, bias if bias - bias == 0 else False] for token, bias in biases.items()]
    limit = -1 if max_tokens is None else max_tokens
    return {**out, "n_predict": limit, "max_tokens": limit, "n_ctx": n_ctx}
