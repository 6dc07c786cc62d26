"""A program of a user of the library, for ``mypy --strict``; test_typed_program.py also runs it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from pydantic import BaseModel

import ggfw
from ggfw import quants


class Review(BaseModel):
    """What an answer is made into."""

    mood: str
    stars: int


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
]


def main(model: ggfw.Model) -> list[str]:
    """Everything that the documentation shows of the library; gives the texts that came."""
    texts: list[str] = [model.generate("Once", max_tokens=3, temperature=0).text]
    for piece in model.stream("Once", max_tokens=3):
        texts.append(piece.upper())
    with model.chat_stream([ggfw.user("Hi")], max_tokens=3) as stream:
        for piece in stream:
            texts.append(piece.lower())
        whole: ggfw.Result = stream.result()
    texts.append(whole.text)
    for delta in model.chat_stream([ggfw.user("Hi")], max_tokens=3).deltas():
        if isinstance(delta, ggfw.TextDelta | ggfw.ReasoningDelta):
            texts.append(delta.text)
        elif isinstance(delta, ggfw.ToolCallDelta):
            texts.append(delta.name)
    seen: list[str] = []
    texts.append(model.stream("Once", seen.append, max_tokens=3).text)
    answer = model.chat([ggfw.system("Be brief."), ggfw.user("2 + 3?")], tools=TOOLS, max_tokens=3)
    texts += [f"{call.name} {call.arguments}" for call in answer.tool_calls]
    forced = model.chat([ggfw.user("A review.")], schema=Review.model_json_schema(), max_tokens=3)
    if forced.finish_reason == "stop":
        texts.append("*" * Review.model_validate_json(forced.text).stars)
    vectors = model.embed(["a river", "a stream"])
    close: float = ggfw.cosine_similarity(vectors[0], vectors[1])
    texts.append(f"{close:.2f}")
    skills = ggfw.load_skills()
    texts.append(model.chat([ggfw.user("Hi")], skills=skills, max_tokens=3).text)
    packed = quants.quantize("Q8_0", np.ones((2, 32), np.float32))
    texts.append(f"{ggfw.quants.dequantize('Q8_0', packed, (2, 32)).sum():.0f}")
    texts += [f"{token.id} {token.text}" for token in model.nearest_tokens(5, 2)]
    texts += [token.raw for token in model.search_tokens("a", 2)]
    texts += [choice.text for choice in model.generate_choices("Once", 2, max_tokens=2)]
    texts.append(f"{model.hparams.n_layer} layers, {ggfw.Params(temperature=0.5).top_k}")
    asyncio.run(more(model, texts))
    return texts


async def more(model: ggfw.Model, texts: list[str]) -> None:
    """The same in an event loop."""
    texts.append((await model.agenerate("Once", max_tokens=3)).text)
    texts.append((await model.achat([ggfw.user("Hi")], max_tokens=3)).text)
    async for piece in model.astream("Once", max_tokens=3):
        texts.append(piece.upper())
    async for piece in model.achat_stream([ggfw.user("Hi")], max_tokens=3):
        texts.append(piece.upper())
    texts.append(f"{(await model.aembed('a river')).shape[0]} numbers")
    handle = model.submit(model.request("Once", max_tokens=3))
    async for delta in handle:
        texts.append(type(delta).__name__)
    texts.append((await handle).text)
