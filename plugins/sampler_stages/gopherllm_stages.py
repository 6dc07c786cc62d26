"""GopherLLM's sampling: penalty per occurrence -> top-k -> temperature -> min-p -> top-p -> its own random numbers.

What differs from the built-in chain: the penalty compounds and at first sees the whole prompt; the temperature comes
before min-p and top-p; min-p compares probabilities; top-p keeps until the sum *exceeds* p; xorshift64 draws.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import InvalidRequest
from ggfw.sampling import Candidates, Params, StageContext
from ggfw.sampling.arithmetic import exp_differences

F32 = NDArray[np.float32]

#: Tokens that the penalty sees after the first one has been drawn.
WINDOW = 64
#: Below this temperature the best token is taken.
COLDEST = 1e-6
#: Without top-k, probabilities below this share of the best one are left out.
NEGLIGIBLE = 1e-5
MASK64 = (1 << 64) - 1
#: State instead of 0, which xorshift cannot leave.
ZERO_STATE = 0xDEADBEEFCAFE1337


class XorShift64:
    """Marsaglia's xorshift with the shifts 13, 7, 17."""

    def __init__(self, seed: int) -> None:
        self.state = (seed & MASK64) or ZERO_STATE

    def next_u64(self) -> int:
        """The next 64 random bits."""
        x = self.state
        x ^= x << 13 & MASK64
        x ^= x >> 7
        x ^= x << 17 & MASK64
        self.state = x
        return x

    def float32(self) -> np.float32:
        """The next number in [0, 1): the high 24 bits over 2^24."""
        return np.float32(self.next_u64() >> 40) / np.float32(1 << 24)


class Repeat:
    """Divide positive, multiply other logits by ``repeat``, once per occurrence.

    The window is the whole prompt for the first token, then the last 64 ids.
    """

    name = "gopherllm_repeat"
    order = 200

    def __init__(self, repeat: float) -> None:
        self._repeat = np.float32(repeat)
        self._recent: list[int] = []
        self._counts: Counter[int] = Counter()

    def seed(self, ids: Iterable[int]) -> None:
        """Take the prompt in."""
        self._recent.extend(ids)
        self._counts = Counter(self._recent)

    def accept(self, token: int) -> None:
        """Take a drawn token in; what is older than the window leaves."""
        self._recent = [*self._recent, token][-WINDOW:]
        self._counts = Counter(self._recent)

    def touched(self) -> Iterable[int]:
        return self._counts

    def only_lowers(self) -> bool:
        return bool(self._repeat >= 1)

    def edit(self, ids: NDArray[np.int64], logits: F32) -> F32:
        out = logits.copy()
        n = np.asarray([self._counts.get(t, 0) for t in ids.tolist()])
        for i in range(n.max(initial=0)):
            again = n > i
            scaled = np.where(out > 0, out / self._repeat, out * self._repeat)
            out = np.where(again, scaled, out)
        return out


class Chain:
    """Everything behind the penalty.

    Probabilities are those of the temperature's softmax over the candidates that top-k left; min-p and top-p do not
    renormalise them.
    """

    name = "gopherllm"
    order = 500

    def __init__(self, temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> None:
        self._greedy = temperature < COLDEST or top_k == 1
        self.limit: int | None = 1 if self._greedy else top_k or None
        self._temperature = np.float32(temperature)
        self._top_p, self._min_p = np.float32(top_p), np.float32(min_p)
        self.rng = XorShift64(seed)

    def apply(self, c: Candidates, context: StageContext) -> Candidates:
        c = c.head(self.limit or c.ids.size)
        if c.ids.size < 2:
            return c
        c = Candidates(c.ids, c.logits / self._temperature)
        if not np.isfinite(c.logits[0]):
            return c.head(1)
        shares = exp_differences(c.logits)[0]  # of the best one's probability
        if self.limit is None:
            shares = shares[: max(1, int(np.count_nonzero(shares >= NEGLIGIBLE)))]
        p = (shares / shares.sum()).astype(np.float32)
        p = p[: max(1, int(np.count_nonzero(p >= self._min_p * p[0])))]
        n = int(np.searchsorted(np.add.accumulate(p), self._top_p, side="right")) + 1
        return c.head(min(n, p.size))

    def select(self, c: Candidates, context: StageContext) -> int:
        cumulated = np.add.accumulate(exp_differences(c.logits)[0].astype(np.float32))
        r = self.rng.float32() * cumulated[-1]
        return min(int(np.searchsorted(cumulated, r, side="right")), c.ids.size - 1)


def make_repeat(p: Params) -> Repeat | None:
    """The penalty, unless it is 1."""
    return None if p.penalty_repeat == 1 else Repeat(p.penalty_repeat)


def make_chain(p: Params) -> Chain:
    """The rest of the chain.

    Raises:
        InvalidRequest: a value that GopherLLM refuses.
    """
    for name, good, wanted in (
        ("temperature", p.temperature >= 0, "at least 0"),
        ("top_k", p.top_k >= 0, "at least 0"),
        ("top_p", 0 < p.top_p <= 1, "above 0 and at most 1"),
        ("min_p", 0 <= p.min_p <= 1, "between 0 and 1"),
    ):
        if not good:
            raise InvalidRequest(
                f"{name} is {getattr(p, name):g}; with the sampling profile gopherllm it must be {wanted}",
                name,
            )
    seed = int.from_bytes(os.urandom(8), "little") if p.seed is None or p.seed == -1 else p.seed
    return Chain(p.temperature, p.top_k, p.top_p, p.min_p, seed)
