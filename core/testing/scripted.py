"""A stand-in for a model that says what a test wants: real file, real engine, scripted tokens.

    from ggfw.testing import ScriptedModel

    call = '<tool_call>{"name": "load_skill", "arguments": {"name": "haiku"}}</tool_call>'
    with ScriptedModel.load(path, {"5-7-5": "An old silent pond", "haiku": call}) as model:
        print(model.chat([ggfw.user("Write a haiku")], skills="skills").text)

Everything but the choice of tokens is as ever: the template renders, the prompt is evaluated, the text goes through
decoder, stop strings and dialect, usage is counted. It is a :class:`ggfw.Model` and can stand wherever one is expected:
in the library, under ``ggfw.server.create_app``, behind ``ggfw run``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ggfw.library import Model
from ggfw.model import LoadedModel
from ggfw.testing.tiny import tiny_gguf

if TYPE_CHECKING:
    from ggfw.gguf import GGUF
    from ggfw.handle import Handle
    from ggfw.request import Request
    from ggfw.tokenizer import Tokenizer

#: One answer: its text (control tokens in it are meant), its token ids, or None: what the model itself says.
Answer = str | Sequence[int] | None
#: Answers in the order of the requests; or by a text that stands in the prompt, the first that does; or a function of
#: the prompt's text.
Answers = Sequence[Answer] | Mapping[str, Answer] | Callable[[str], Answer]

#: Context of the file that stands in where none is named.
N_CTX = 4096


class ScriptedModel(Model):
    """See the module.

    Args:
        loaded: a loaded model of any kind that generates.
        answers: what it says. Where there is nothing for a request (the list is at its end, no text stands in the
            prompt, None), the model speaks for itself. A scripted answer stands above any constraint of its request:
            the script says what a model might have written.
        options: those of :class:`ggfw.Model`.

    Attributes:
        prompts: the texts of all prompts so far, control tokens included.
    """

    def __init__(self, loaded: LoadedModel, answers: Answers = (), **options: Any) -> None:
        super().__init__(loaded, **{"spec": "off", **options})
        self.prompts: list[str] = []
        self._answers = answers
        self._n = 0
        self._queue = self.engine.submit_choices
        self.engine.submit_choices = self._submit_choices  # type: ignore[method-assign]

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | bytes | GGUF | None = None,
        answers: Answers = (),
        **options: Any,
    ) -> ScriptedModel:
        """Load a file and let its model say ``answers``.

        Args:
            source: as for :func:`ggfw.load`; None: a tiny random model with one token per byte and ChatML's marks.
            answers: see the class.
            options: those of :meth:`ggfw.model.LoadedModel.load`.
        """
        if source is None:
            source = tiny_gguf(n_ctx=N_CTX)
        return cls(LoadedModel.load(source, **options), answers)

    def _submit_choices(self, requests: Sequence[Request]) -> list[Handle]:
        for request in requests:
            prompt = self.tokenizer.detokenize(request.prompt, special=True)
            self.prompts.append(prompt)
            answer = self._answer(prompt)
            if answer is not None:
                request.constraint = Script(self.tokenizer, answer)
        return self._queue(requests)

    def _answer(self, prompt: str) -> Answer:
        answers = self._answers
        if isinstance(answers, Mapping):
            return next((answer for text, answer in answers.items() if text in prompt), None)
        if not isinstance(answers, Sequence):
            return answers(prompt)
        at, self._n = self._n, self._n + 1
        return answers[at] if at < len(answers) else None


class Script:
    """A :class:`ggfw.sampling.MaskedConstraint` that allows one token after the other.

    Args:
        tokenizer: the vocabulary.
        answer: text or ids; at its end the answer is complete.
    """

    failure = None

    def __init__(self, tokenizer: Tokenizer, answer: str | Sequence[int]) -> None:
        if isinstance(answer, str):
            answer = tokenizer.encode(answer, add_special=False, parse_special=True)
        # An answer without a token ends with the first one, which must be one that ends answers.
        self._ids = list(answer) or sorted(tokenizer.eog_ids)[:1]
        self._tokenizer = tokenizer
        self._at = 0

    @property
    def complete(self) -> bool:
        """Whether everything has been said."""
        return self._at >= len(self._ids)

    def allows(self, token: int) -> bool:
        """Whether ``token`` is the next one."""
        return not self.complete and token == self._ids[self._at]

    def accept(self, token: int) -> None:
        """Go on behind ``token``."""
        self._at += self.allows(token)

    def mask(self) -> NDArray[np.bool_]:
        """(n_vocab,) bool: the next token alone."""
        out = np.zeros(self._tokenizer.n_vocab, np.bool_)
        out[self._ids[self._at : self._at + 1]] = True
        return out

    def bitmask(self) -> NDArray[np.uint32]:
        """The mask as bits: bit i % 32 of word i // 32."""
        padded = np.zeros(-(-self._tokenizer.n_vocab // 32) * 32, np.bool_)
        padded[: self._tokenizer.n_vocab] = self.mask()
        return np.packbits(padded, bitorder="little").view(np.uint32)

    def first_bytes(self) -> NDArray[np.bool_]:
        """(256,) bool: bytes with which the next token may begin; all, for :meth:`allows` decides."""
        return np.ones(256, np.bool_)

    def first_byte(self, token: int) -> int:
        """First byte of ``token``; 0 if it has none."""
        return next(iter(self._tokenizer.piece(token)), 0)

    def prepare(self) -> None:
        """There is nothing to prepare."""
