"""DRY ("don't repeat yourself"): a penalty on tokens that would continue a verbatim repetition.

Source: the method of p-e-w (text-generation-webui) in llama.cpp's form. With the reversed history r, the length of
the repetition that token r[k - 1] would continue is the longest common prefix of r and r[k:] (the Z-function of r),
cut at the last sequence breaker.
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from ggfw.records import dataclass
from ggfw.sampling.arithmetic import F32, Ids

#: ln of the largest float32: the exponent is capped so that base^exponent stays below it.
LOG_F32_MAX = 88.7228391
#: Tokens of a breaker after its first one that are looked at.
MAX_TAIL = 20
#: Sequence breakers that a request may have, and bytes of each that are looked at.
MAX_BREAKERS, MAX_BYTES = 64, 160


class _Tokenizer(Protocol):
    n_vocab: int

    def piece(self, token: int) -> bytes: ...

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]: ...


class _Pieces:
    """The bytes of all tokens, so that those that contain or end with something are found without a walk over them."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        pieces = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]
        self._text = b"".join(pieces)
        self._ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
        backwards = sorted((piece[::-1], token) for token, piece in enumerate(pieces) if piece)
        self._backwards = [text for text, _ in backwards]
        self._tokens = [token for _, token in backwards]

    @classmethod
    def of(cls, tokenizer: _Tokenizer) -> _Pieces:
        """The pieces of a tokenizer, kept as long as it is."""
        found = _known.get(tokenizer)
        if found is None:
            found = _known[tokenizer] = cls(tokenizer)
        return found

    def containing(self, part: bytes) -> set[int]:
        """The tokens whose bytes contain ``part``."""
        places, at = [], self._text.find(part)
        while at >= 0:
            places.append(at)
            at = self._text.find(part, at + 1)
        begins = np.asarray(places, np.int64)
        tokens = np.searchsorted(self._ends, begins, "right")
        return set(tokens[begins + len(part) <= self._ends[tokens]].tolist()) if places else set()

    def ending(self, part: bytes) -> set[int]:
        """The tokens whose bytes end with ``part``."""
        turned = part[::-1]
        first = bisect_left(self._backwards, turned)
        # No UTF-8 has the byte FF, but a token may be that byte: hence a run of them.
        last = bisect_left(self._backwards, turned + b"\xff" * 64, first)
        return set(self._tokens[first:last])


_known: weakref.WeakKeyDictionary[Any, _Pieces] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Breakers:
    """Sequence breakers as tokens.

    Args:
        single: ids whose text contains a breaker.
        longer: first id -> what must follow it, for breakers that begin inside a token and go on after it.
    """

    single: frozenset[int] = frozenset()
    longer: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> Breakers:
        return self  # never changes, and may be large

    @classmethod
    def from_tokenizer(cls, tokenizer: _Tokenizer, texts: Iterable[str]) -> Breakers:
        """Look every token of the vocabulary up for ``texts``."""
        pieces = _Pieces.of(tokenizer)
        single: set[int] = set()
        longer: dict[int, set[tuple[int, ...]]] = {}
        for text in dict.fromkeys(texts):
            breaker = text.encode("utf-8", "replace")[:MAX_BYTES]
            inside = pieces.containing(breaker)
            single |= inside
            for n in range(1, len(breaker)):
                found = pieces.ending(breaker[:n]) - inside
                if found:
                    rest = breaker[n:].decode("utf-8", "replace")
                    tail = tuple(tokenizer.encode(rest, add_special=False)[:MAX_TAIL])
                    for token in found:
                        longer.setdefault(token, set()).add(tail)
        return cls(frozenset(single), {token: tuple(sorted(found)) for token, found in longer.items()})

    def flat(self) -> list[int]:
        """:attr:`longer` as numbers: id, number of tokens that follow, those tokens; and so on, ids rising."""
        return [
            number
            for token in sorted(self.longer)
            for tail in self.longer[token]
            for number in (token, len(tail), *tail)
        ]

    def limit(self, recent: Sequence[int]) -> int:
        """How many of the last tokens a repetition may have.

        Args:
            recent: the history, the newest token first.
        """
        for i, token in enumerate(recent):
            longest = 0 if token in self.single else -1
            for tail in self.longer.get(token, ()):
                n = len(tail)
                if longest < n <= i and all(tail[j] == recent[i - 1 - j] for j in range(n)):
                    longest = n
            if longest >= 0:
                return i - longest
        return len(recent)


def common_prefixes(sequence: Sequence[int]) -> list[int]:
    """For every position k the length of the longest common prefix of ``sequence`` and ``sequence[k:]``; 0 for k = 0.

    The Z-algorithm: linear time.
    """
    n = len(sequence)
    out = [0] * n
    left = right = 0  # the match [left, right) that reaches furthest
    for k in range(1, n):
        length = min(out[k - left], right - k) if k < right else 0
        while k + length < n and sequence[length] == sequence[k + length]:
            length += 1
        out[k] = length
        if k + length > right:
            left, right = k, k + length
    return out


class Dry:
    """Subtract ``multiplier * base^(length - allowed_length)`` from tokens that would continue a repetition.

    Args:
        multiplier: > 0.
        base: >= 1.
        allowed_length: repetitions shorter than this cost nothing.
        last_n: tokens that are looked back, prompt included; < 0: all.
        breakers: no repetition reaches over them, and tokens that contain one are never penalised.
    """

    name = "dry"
    order = 300

    def __init__(
        self, multiplier: float, base: float, allowed_length: int, last_n: int, breakers: Breakers
    ) -> None:
        self._multiplier, self._base = float(np.float32(multiplier)), float(np.float32(base))
        self._allowed = allowed_length
        self._breakers = breakers
        self._history: deque[int] = deque(maxlen=last_n if last_n >= 0 else None)
        self._penalties: dict[int, np.float32] | None = None

    def seed(self, ids: Iterable[int]) -> None:
        """Take the prompt in."""
        self._history.extend(ids)
        self._penalties = None

    def accept(self, token: int) -> None:
        """Take a drawn token in."""
        self._history.append(token)
        self._penalties = None

    def touched(self) -> Iterable[int]:
        return self.penalties()

    def only_lowers(self) -> bool:
        return True

    def edit(self, ids: Ids, logits: F32) -> F32:
        penalties = self.penalties()
        if not penalties:
            return logits
        subtract = np.asarray([penalties.get(t, 0.0) for t in ids.tolist()], dtype=np.float32)
        return logits - subtract

    def penalties(self) -> Mapping[int, np.float32]:
        """What is subtracted from which logits now."""
        if self._penalties is None:
            with np.errstate(over="ignore"):
                self._penalties = {t: self._penalty(n) for t, n in self._lengths().items()}
        return self._penalties

    def _lengths(self) -> dict[int, int]:
        """Per token the longest repetition that it would continue, where that is long enough."""
        if len(self._history) <= self._allowed:
            return {}
        recent = list(self._history)[::-1]
        limit = self._breakers.limit(recent)
        if limit < self._allowed:
            return {}
        longest: dict[int, int] = {}
        for k, length in enumerate(common_prefixes(recent)):
            length = min(length, limit)
            token = recent[k - 1]
            if k and length >= self._allowed and token not in self._breakers.single:
                longest[token] = max(length, longest.get(token, 0))
        return longest

    def _penalty(self, length: int) -> np.float32:
        exponent = length - self._allowed
        if self._base > 1.000001:
            exponent = min(exponent, int(LOG_F32_MAX / math.log(self._base)))
        return np.float32(self._multiplier * math.pow(self._base, exponent))
