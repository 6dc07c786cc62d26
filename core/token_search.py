"""Looking around in a vocabulary: tokens by their text, and tokens whose embeddings point the same way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ggfw import arguments, quants
from ggfw.arguments import integer
from ggfw.errors import InvalidRequest, UnsupportedError, brief
from ggfw.gguf import GGUF
from ggfw.records import dataclass
from ggfw.tokenizer import Tokenizer

#: Elements that one thread turns into floats at a time: what fits its cache, four times as fast as what does not.
_PIECE = 1 << 18

#: Digits of a text that can be the id of a token.
_MOST_DIGITS = 10


@dataclass(frozen=True)
class FoundToken:
    """A token.

    Args:
        id: its number.
        raw: its text as stored in the file.
        text: what it stands for; ill-formed bytes are U+FFFD.
        similarity: cosine of the angle to the token that was asked for; None for a search by text.
    """

    id: int
    raw: str
    text: str
    similarity: float | None = None


def _found(tokenizer: Tokenizer, token: int, similarity: float | None = None) -> FoundToken:
    text = tokenizer.piece(token).decode("utf-8", "replace")
    return FoundToken(token, tokenizer.text(token), text, similarity)


def search_tokens(tokenizer: Tokenizer, text: str, limit: int = 100) -> list[FoundToken]:
    """Tokens that contain ``text``, in their stored or their decoded form, upper and lower case alike.

    Args:
        tokenizer: of the model.
        text: to look for; not empty.
        limit: tokens at most.

    Returns:
        Tokens that are ``text`` exactly first, then those that are it apart from case, then by length and id.

    Raises:
        InvalidRequest: an empty text.
    """
    limit = integer("limit", limit, 0)
    if not arguments.text("text", text):
        raise InvalidRequest("an empty text is in every token; give some text to look for", "text")
    wanted = text.casefold()
    ranked: list[tuple[int, int, int]] = []
    for token, (raw, piece) in enumerate(zip(tokenizer.vocab.tokens, tokenizer.pieces(), strict=True)):
        shown = piece.decode("utf-8", "replace")
        forms = (raw, shown)
        if not any(wanted in form.casefold() for form in forms):
            continue
        same = text in forms
        alike = any(form.casefold() == wanted for form in forms)
        ranked.append((0 if same else 1 if alike else 2, len(shown), token))
    return [_found(tokenizer, token) for _, _, token in sorted(ranked)[:limit]]


def token_of(tokenizer: Tokenizer, token: int | str) -> int:
    """The id that is meant by an id, by its digits, by a stored text, or by a text that is encoded as one token.

    Raises:
        InvalidRequest: there is no such token, or the text has several.
    """
    if isinstance(token, str):
        found = tokenizer.find(token)
        if found is not None:
            return found
        ids = tokenizer.encode(token, add_special=False, parse_special=True)
        if len(ids) == 1:
            return ids[0]
        if not token.isascii() or not token.isdigit() or len(token) > _MOST_DIGITS:
            raise InvalidRequest(
                f"{brief(token)} is {len(ids)} tokens; give one token, or its id (a search by text finds it)",
                "token",
            )
        token = int(token)
    token = integer("token", token, 0)
    tokenizer.piece(token)
    return token


def nearest_tokens(
    gguf: GGUF, tokenizer: Tokenizer, token: int | str, k: int = 10, *, threads: int = 1
) -> list[FoundToken]:
    """The ``k`` tokens whose embeddings are most similar to a token's by cosine, itself excluded, nearest first.

    Args:
        gguf: the open file; its ``token_embd.weight`` is read once.
        tokenizer: of the same file.
        token: id or text, see :func:`token_of`.
        k: tokens at most.
        threads: threads that read.

    Raises:
        InvalidRequest: there is no such token, or ``k`` is below 1.
        UnsupportedError: the file has no token embeddings.
    """
    k = integer("k", k, 1)
    wanted = token_of(tokenizer, token)
    table = gguf.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise UnsupportedError(f"{gguf.source} has no token_embd.weight, so tokens have no neighbours")
    n_rows, n_cols = table.shape
    rows = table.data.reshape(n_rows, -1)
    query = quants.dequantize(table.ggml_type, rows[wanted], (n_cols,))
    query /= max(float(np.linalg.norm(query)), 1e-30)
    similarity = np.empty(n_rows, np.float32)
    step = max(1, _PIECE // n_cols)

    def piece(begin: int) -> None:
        part = rows[begin : begin + step]
        values = quants.dequantize(table.ggml_type, part.reshape(-1), (len(part), n_cols))
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        similarity[begin : begin + step] = values @ query / np.maximum(norms, 1e-30)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(piece, range(0, n_rows, step)))
    similarity[wanted] = -np.inf
    n = min(k, n_rows - 1, len(tokenizer.vocab) - 1)
    best = np.argpartition(-similarity, n - 1)[:n] if n else np.empty(0, np.int64)
    best = best[np.lexsort((best, -similarity[best]))]
    return [_found(tokenizer, int(i), float(similarity[i])) for i in best]
