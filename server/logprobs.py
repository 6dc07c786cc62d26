"""Log-probabilities in OpenAI's shape."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from typing import Any

from ggfw.sampling import TokenLogprob
from ggfw.tokenizer import Tokenizer

#: OpenAI's stand-in for a token without any probability; JSON has no infinity.
LOWEST = -9999.0


def content_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
    """The ``logprobs`` object of a choice: what its tokens of the visible text were, and how likely.

    Args:
        tokenizer: gives the tokens' bytes.
        entries: of the answer or of one piece of it; those of reasoning, tool calls and end tokens are left out.
    """
    content = []
    for entry in entries:
        if entry.part == "text":
            top = [_token(tokenizer, other.id, other.logprob) for other in entry.top]
            content.append({**_token(tokenizer, entry.id, entry.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    piece = tokenizer.piece(token)
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": max(logprob, LOWEST),
        "bytes": list(piece),  # a token may be a part of a character
    }


def legacy_logprobs(
    tokenizer: Tokenizer, entries: Iterable[TokenLogprob], n_top: int, offset: int = 0
) -> dict[str, Any]:
    """The ``logprobs`` object of a completion: parallel lists.

    Args:
        entries: of the answer, of one piece of it, or of a prompt, whose first token has nan: it follows nothing.
        n_top: alternatives per token.
        offset: characters in front of it.
    """
    out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    for entry in entries:
        if entry.part != "text":
            continue
        first = math.isnan(entry.logprob)
        top = {_text(tokenizer, o.id): max(o.logprob, LOWEST) for o in entry.top[:n_top]}
        out["tokens"].append(_text(tokenizer, entry.id))
        out["token_logprobs"].append(None if first else max(entry.logprob, LOWEST))
        out["top_logprobs"].append(None if first else top)
        out["text_offset"].append(offset)
        offset += len(decoder.decode(tokenizer.piece(entry.id)))
    return out


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token).decode("utf-8", "replace")


def numbered_logprobs(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """llama-server's ``completion_probabilities``: like OpenAI's, with the tokens' ids."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        return {"id": token, **_token(tokenizer, token, logprob)}

    return [
        {**one(entry.id, entry.logprob), "top_logprobs": [one(o.id, o.logprob) for o in entry.top]}
        for entry in entries
        if entry.part == "text"
    ]
