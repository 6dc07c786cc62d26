"""The part of a model that evaluates given tokens: logits, hidden states, embeddings, text to ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import InvalidRequest
from ggfw.evaluate import evaluate, greedy, normalised, pooled, pooling_kind
from ggfw.execute.batch import Wants
from ggfw.request import token_ids

if TYPE_CHECKING:
    from ggfw.engine import Engine
    from ggfw.model import LoadedModel
    from ggfw.token_search import FoundToken
    from ggfw.tokenizer import Tokenizer

F32 = NDArray[np.float32]


class Evaluations:
    """What :class:`ggfw.Model` can do without drawing a token."""

    loaded: LoadedModel
    engine: Engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self.loaded.tokenizer

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Ids of ``text``; see :meth:`ggfw.tokenizer.Tokenizer.encode`."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ``ids``; the inverse of :meth:`tokenize`."""
        return self.tokenizer.detokenize(token_ids(ids, "ids"), special=special)

    def logits(self, ids: Sequence[int], chunk: int | None = None) -> F32:
        """Logits of every position.

        Args:
            ids: token ids, evaluated from position 0, as they are.
            chunk: positions per step; None = as many as a step may have.

        Returns:
            (n, n_vocab) float32.
        """
        return self.logits_many([ids], chunk=chunk)[0]

    def logits_many(
        self, prompts: Sequence[Sequence[int]], *, together: bool = True, chunk: int | None = None
    ) -> list[F32]:
        """Logits of every position of several independent prompts.

        Args:
            together: in the same steps, as one ragged batch of as many as the cache has room for; else one prompt
                after the other.
            chunk: positions of one prompt per step.
        """
        return self._evaluate(evaluate(self.loaded, prompts, Wants.LOGITS, chunk=chunk, together=together))

    def hidden(self, ids: Sequence[int], chunk: int | None = None) -> F32:
        """Hidden states after the final norm: (n, n_embd) float32."""
        return self._evaluate(evaluate(self.loaded, [ids], Wants.HIDDEN, chunk=chunk))[0]

    def greedy(self, ids: Sequence[int], n: int, *, ignore_eos: bool = True) -> list[int]:
        """The ``n`` tokens after ``ids`` by plain argmax, without any sampler."""
        return self._evaluate(greedy(self.loaded, ids, n, ignore_eos=ignore_eos))

    def embed(self, text: str | Sequence[str]) -> F32:
        """Embedding of a text, or of several.

        The final-normed hidden states are pooled as the file says (``{arch}.pooling_type``; the mean otherwise) and
        scaled to length 1. A reranker gives its scores as they are.

        Returns:
            (n_embd,) float32 for a string, (n_texts, n_embd) for a list.

        Raises:
            ContextLengthExceeded: a text is longer than the context.
        """
        texts = self._embed_texts(text)
        vectors = self._lengths(self._evaluate(self._embed_job(texts)))
        return vectors[0] if isinstance(text, str) else vectors

    async def aembed(self, text: str | Sequence[str]) -> F32:
        """Async twin of :meth:`embed`."""
        import asyncio

        texts = self._embed_texts(text)
        vectors = self._lengths(await asyncio.wrap_future(self.engine.run(self._embed_job(texts))))
        return vectors[0] if isinstance(text, str) else vectors

    def search_tokens(self, text: str, limit: int = 100) -> list[FoundToken]:
        """Tokens that contain ``text``, exact ones first; see :func:`ggfw.token_search.search_tokens`."""
        from ggfw.token_search import search_tokens

        return search_tokens(self.tokenizer, text, limit)

    def nearest_tokens(self, token: int | str, k: int = 10) -> list[FoundToken]:
        """The ``k`` tokens whose embeddings are most similar to a token's (an id or a text), itself excluded.

        See :func:`ggfw.token_search.nearest_tokens`.
        """
        from ggfw.threads import default_threads
        from ggfw.token_search import nearest_tokens

        return nearest_tokens(self.loaded.gguf, self.tokenizer, token, k, threads=default_threads())

    def _embed_texts(self, text: str | Sequence[str]) -> list[str]:
        try:
            texts = [text] if isinstance(text, str) else list(text)
        except TypeError:
            texts = []
        if not texts or not all(isinstance(t, str) for t in texts):
            raise InvalidRequest("embed takes a string or a non-empty list of strings", param="input")
        return texts

    def _embed_job(self, texts: list[str]) -> Any:
        # One after the other: how many fit side by side depends on the cache, and a step is full with one long text.
        return pooled(self.loaded, [self.tokenizer.encode(t) for t in texts], together=False)

    def _lengths(self, vectors: list[F32]) -> F32:
        return np.stack(vectors if pooling_kind(self.loaded) == "rank" else [normalised(v) for v in vectors])

    def _evaluate(self, job: Any) -> Any:
        return self.engine.run(job).result()
