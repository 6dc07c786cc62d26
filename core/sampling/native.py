"""The native sampler behind the same names as :class:`ggfw.sampling.Sampler`.

The library is handed in (``ffi`` with the declarations of ``ggfw_sampler.h``, ``lib`` opened by it), because the
core does not look for libraries itself. The executor takes :attr:`NativeSampler.pointer` into its batch and runs the
chain inside the step; Python then only reads the token. A constrained row cannot be sampled there: use
:meth:`NativeSampler.to_python`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ggfw.errors import GgfwError, InvalidRequest, NonFiniteLogits
from ggfw.sampling.arithmetic import F32, Ids
from ggfw.sampling.chain import Sampler
from ggfw.sampling.params import Params
from ggfw.sampling.rng import MASK64, Pcg

STATUS_NONFINITE, STATUS_MEMORY = -1, -2


def check_status(status: int) -> int:
    """Pass a token id on, turn a negative status of the native sampler into its error.

    Raises:
        NonFiniteLogits: no logit was above -inf.
        MemoryError: no memory for the work arrays.
    """
    if status >= 0:
        return status
    if status == STATUS_NONFINITE:
        raise NonFiniteLogits(
            "all logits are NaN or -inf, so no token can be chosen; check the model file (ggfw verify)"
        )
    if status == STATUS_MEMORY:
        raise MemoryError("no memory for the sampler's work arrays")
    raise GgfwError(f"the native sampler was called wrongly (status {status})")


class NativeSampler:
    """One sequence's sampler in C; the same tokens as :class:`ggfw.sampling.Sampler` of the same parameters.

    Args:
        ffi: a cffi ``FFI`` that knows ``ggfw_sampler.h``.
        lib: the library with its functions.
        params: the parameters; default :func:`ggfw.sampling.defaults`.
    """

    def __init__(self, ffi: Any, lib: Any, params: Params | None = None) -> None:
        self.params = params if params is not None else Params()
        seed = self.params.seed
        #: The seed in use, 0 .. 2^64 - 1, also when the parameters left it open.
        self.rng_seed: int = secrets.randbits(64) if seed is None or seed == -1 else seed & MASK64
        p = self.params
        bias_ids = ffi.new("int32_t[]", list(p.logit_bias))
        bias_values = ffi.new("float[]", list(p.logit_bias.values()))
        native = ffi.new(
            "ggfw_sampler_params *",
            {
                "seed": self.rng_seed,
                "temperature": p.temperature,
                "top_k": p.top_k,
                "top_p": p.top_p,
                "min_p": p.min_p,
                "typical_p": p.typical_p,
                "penalty_last_n": p.penalty_last_n,
                "penalty_repeat": p.penalty_repeat,
                "penalty_freq": p.penalty_freq,
                "penalty_present": p.penalty_present,
                "n_bias": len(p.logit_bias),
                "bias_ids": bias_ids,
                "bias_values": bias_values,
            },
        )
        self._ffi, self._lib = ffi, lib
        self._own(lib.ggfw_sampler_new(native))
        #: All ids that went into the penalty window, kept for :meth:`to_python`.
        self._history: list[int] = []

    def _own(self, pointer: Any) -> None:
        if pointer == self._ffi.NULL:
            raise MemoryError("no memory for a sampler")
        #: ``ggfw_sampler *``, valid as long as this object.
        self.pointer = self._ffi.gc(pointer, self._lib.ggfw_sampler_free)

    def copy(self) -> NativeSampler:
        """An independent sampler that goes on exactly like this one."""
        out = NativeSampler.__new__(NativeSampler)
        out.params, out.rng_seed, out._ffi, out._lib = self.params, self.rng_seed, self._ffi, self._lib
        out._own(self._lib.ggfw_sampler_clone(self.pointer))
        out._history = list(self._history)
        return out

    def to_python(self) -> Sampler:
        """A Python sampler in the same state, e.g. to go on under a constraint."""
        out = Sampler(self.params)
        state = self._ffi.new("uint64_t[2]")
        self._lib.ggfw_sampler_rng_get(self.pointer, state)
        out.rng_seed, out.rng.state = self.rng_seed, Pcg(state[0], state[1]).state
        out.seed(self._history)
        return out

    def seed(self, ids: Iterable[int]) -> None:
        """Push the prompt into the penalty window."""
        tokens = [int(i) for i in ids]
        if self.params.penalises:
            self._history.extend(tokens)
        check_status(
            self._lib.ggfw_sampler_seed(self.pointer, self._ffi.new("int32_t[]", tokens), len(tokens))
        )

    def accept(self, token: int) -> None:
        """Say that ``token`` entered the text."""
        if self.params.penalises:
            self._history.append(int(token))
        check_status(self._lib.ggfw_sampler_accept(self.pointer, int(token)))

    def pick(self, row: ArrayLike) -> int:
        """One token for a row of raw logits (n_vocab,) float32, which is not written to; an empty row gives 0.

        Raises:
            NonFiniteLogits: after bias and penalties no logit is above -inf.
        """
        logits = _contiguous(row)
        data = self._ffi.from_buffer("float[]", logits)
        return check_status(self._lib.ggfw_sampler_pick(self.pointer, data, logits.size))

    def distribution(self, row: ArrayLike) -> tuple[Ids, F32]:
        """What :meth:`pick` draws from: ids (n,) best first, probabilities (n,) float32."""
        logits = _contiguous(row)
        ids, probabilities = np.empty(logits.size, np.int32), np.empty(logits.size, np.float32)
        n = check_status(
            self._lib.ggfw_sampler_distribution(
                self.pointer,
                self._ffi.from_buffer("float[]", logits),
                logits.size,
                logits.size,
                self._ffi.from_buffer("int32_t[]", ids),
                self._ffi.from_buffer("float[]", probabilities),
            )
        )
        return ids[:n].astype(np.int64), probabilities[:n]


def _contiguous(row: ArrayLike) -> F32:
    out = np.ascontiguousarray(row, dtype=np.float32)
    if np.ndim(row) != 1:
        raise InvalidRequest(
            f"a row of logits has one dimension, this one has shape {out.shape}", param="row"
        )
    return out
