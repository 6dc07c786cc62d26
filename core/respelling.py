"""Prompts in the tokens that were drawn: so that a conversation finds its own answers in the cache.

A model may spell a text in other tokens than the tokenizer does (``" f" "ue" "ro"`` for ``" fu" "ero"``). A client
sends the text back, it is encoded anew, and from that place on nothing of what was evaluated fits any more, although it
is the same text. So the tokens of the latest conversations are remembered, and a prompt that begins with the text of
one is written in its tokens, up to the last place where both end a token. Bytes that are no text have come to the
client as U+FFFD, and that is how they are compared.

The text stays the same, but which tokens spell it then depends on what was said before. Where results are promised to
depend on the request alone (``LoadedModel.exact``: files in float32, and ``deterministic``) nothing is respelled.
"""

from __future__ import annotations

import codecs
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import count

import numpy as np

_Utf8 = codecs.getincrementaldecoder("utf-8")

#: Conversations that are remembered, and tokens of them all.
MOST_CONVERSATIONS = 64
MOST_TOKENS = 1 << 20


class Respelling:
    """See the module. Any thread may call.

    Args:
        piece: the bytes of a token.
        is_mark: whether a token is no ordinary text (control tokens, marks of a dialect); it is like itself only.
        most_tokens: that are remembered, four bytes each; the conversations used least recently are forgotten.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        is_mark: Callable[[int], bool],
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._piece = piece
        self._is_mark = is_mark
        self._most_tokens = most_tokens
        self._lock = threading.Lock()
        self._numbers = count()
        self._known: OrderedDict[int, tuple[Hashable, np.ndarray]] = OrderedDict()  # latest last
        self._n_tokens = 0

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, key: Hashable, ids: Sequence[int]) -> None:
        """Take in a conversation: a prompt and what was drawn behind it.

        Args:
            key: only prompts with the same key are written in its tokens.
        """
        new = np.frombuffer(array("i", ids), np.int32)
        if not new.size:
            return
        with self._lock:
            for number, (other, old) in list(self._known.items()):
                n = old.size  # the conversation as it stood before
                if other == key and n <= new.size and old[-1] == new[n - 1] and np.array_equal(old, new[:n]):
                    self._forget(number)
            self._known[next(self._numbers)] = key, new
            self._n_tokens += new.size
            while len(self._known) > MOST_CONVERSATIONS or self._n_tokens > self._most_tokens:
                self._forget(next(iter(self._known)))

    def _forget(self, number: int) -> None:
        self._n_tokens -= self._known.pop(number)[1].size

    def respell(self, key: Hashable, ids: list[int]) -> list[int]:
        """The tokens of the same text, of which as many as possible are those of a conversation.

        Args:
            key: see :meth:`remember`.
            ids: as the tokenizer gives them; this very list is returned where nothing is to be changed.
        """
        with self._lock:
            known = [(number, old) for number, (other, old) in self._known.items() if other == key]
        if not known or not ids:
            return ids
        new = np.frombuffer(array("i", ids), np.int32)
        best, reach, used, found = 0, 0, None, None
        for number, old in reversed(known):
            i, j = self._common(old, new)
            if j > reach:
                best, reach, used, found = i, j, number, old
        if used is None or found is None:
            return ids
        with self._lock:
            if used in self._known:
                self._known.move_to_end(used)
        own = found[:best].tolist()
        return ids if own == ids[:reach] else [*own, *ids[reach:]]

    def _common(self, old: np.ndarray, new: np.ndarray) -> tuple[int, int]:
        """How many tokens of each spell the longest common text that both end with a token."""
        one, other = _Reader(self._piece, self._is_mark), _Reader(self._piece, self._is_mark)
        i = j = 0
        end = i, j
        while True:
            if not one.text and not other.text and one.pending == other.pending:
                n = _n_same(old[i:], new[j:])
                for token in old[i + max(0, n - _LONGEST_CHARACTER) : i + n].tolist():
                    one.read(token)
                    other.read(token)
                one.text = other.text = ""
                i, j = i + n, j + n
                end = i, j
            # Whoever is behind reads on.
            if one.extent <= other.extent:
                if i == old.size:
                    return end
                one.read(int(old[i]))
                i += 1
            else:
                if j == new.size:
                    return end
                other.read(int(new[j]))
                j += 1
            n = min(len(one.text), len(other.text))
            if one.text[:n] != other.text[:n]:
                return end
            one.text, other.text = one.text[n:], other.text[n:]


def _n_same(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two rows of them have in common at their beginnings."""
    n = min(one.size, other.size)
    if not n or one[0] != other[0]:
        return 0
    differ = one[:n] != other[:n]
    return int(differ.argmax()) if differ.any() else n


#: Bytes of the longest character.
_LONGEST_CHARACTER = 4


class _Reader:
    """What is shown of tokens: their text, with U+FFFD for what is no text; a mark is itself.

    Attributes:
        text: that was shown, and not taken away.
    """

    def __init__(self, piece: Callable[[int], bytes], is_mark: Callable[[int], bool]) -> None:
        self._piece, self._is_mark = piece, is_mark
        self._decoder = _Utf8("replace")
        self.text = ""

    def read(self, token: int) -> None:
        """Read on by a token."""
        if self._is_mark(token):
            # Surrogates are in no text that was decoded.
            self.text += self._decoder.decode(b"", final=True) + f"\ud800{token}\udfff"
        else:
            self.text += self._decoder.decode(self._piece(token))

    @property
    def pending(self) -> bytes:
        """The beginning of a character whose end has not come."""
        return self._decoder.getstate()[0]

    @property
    def extent(self) -> tuple[int, int]:
        """How far it is, for comparing."""
        return len(self.text), len(self.pending)
