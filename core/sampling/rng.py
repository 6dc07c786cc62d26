"""The random generator: PCG-DXSM with the constants and the seeding of Go's ``math/rand/v2``.

NumPy's ``PCG64DXSM`` is seeded and stepped with other constants, so it gives other numbers; the whole generator is
a dozen lines of integer arithmetic. The native sampler (``kernels_c/src/sampler.c``) holds the same one.
"""

from __future__ import annotations

MASK64 = (1 << 64) - 1
MASK128 = (1 << 128) - 1

MULTIPLIER = 2549297995355413924 << 64 | 4865540595714422341
INCREMENT = 6364136223846793005 << 64 | 1442695040888963407
CHEAP_MULTIPLIER = 0xDA942042E4DD58B5
#: A user's 64-bit seed fills the high word; the low word is the seed xor this (2^64 over the golden ratio).
SEED_MIX = 0x9E3779B97F4A7C15


class Pcg:
    """A 128-bit linear congruential generator with the "double xorshift multiply" output.

    Args:
        hi: high 64 bits of the state.
        lo: low 64 bits of the state.
    """

    __slots__ = ("state",)

    def __init__(self, hi: int, lo: int) -> None:
        self.state = (hi & MASK64) << 64 | (lo & MASK64)

    @classmethod
    def from_seed(cls, seed: int) -> Pcg:
        """The generator of a 64-bit seed (taken modulo 2^64)."""
        return cls(seed, seed ^ SEED_MIX)

    def copy(self) -> Pcg:
        """An independent generator that continues with the same numbers."""
        return Pcg(self.state >> 64, self.state)

    def next_u64(self) -> int:
        """The next 64 random bits, 0 .. 2^64 - 1."""
        self.state = (self.state * MULTIPLIER + INCREMENT) & MASK128
        hi, lo = self.state >> 64, self.state & MASK64
        hi ^= hi >> 32
        hi = hi * CHEAP_MULTIPLIER & MASK64
        hi ^= hi >> 48
        return hi * (lo | 1) & MASK64

    def float64(self) -> float:
        """The next number in [0, 1): the low 53 bits of :meth:`next_u64` over 2^53."""
        return (self.next_u64() & ((1 << 53) - 1)) / (1 << 53)
