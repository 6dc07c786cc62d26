"""The native sampler behind the same names as :class:`ggfw.sampling.Sampler`.

The library is handed in (``ffi`` with the declarations of ``ggfw_sampler.h``, ``lib`` opened by it), because the
core does not look for libraries itself. The executor takes :attr:`NativeSampler.pointer` into its batch and runs the
chain inside the step; Python then only reads the token. Where a token may still be refused, the sampler is *held* and
:meth:`NativeSampler.accept` takes the token in.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ggfw.errors import GgfwError, InvalidRequest, NonFiniteLogits, UnsupportedError
from ggfw.sampling.arithmetic import F32, Ids
from ggfw.sampling.build import SamplerVocab, build_stages, split_edits
from ggfw.sampling.chain import Sampler
from ggfw.sampling.edits import Window
from ggfw.sampling.filters import TopNSigma, Xtc
from ggfw.sampling.logprobs import TokenLogprob, TopLogprob
from ggfw.sampling.params import Params
from ggfw.sampling.rng import MASK64, Pcg
from ggfw.sampling.setup import host_reason
from ggfw.sampling.stages import DynamicTemperature, MinP, Temperature, TopK, TopP, Typical

STATUS_NONFINITE, STATUS_MEMORY, STATUS_NOT_DRAWN = -1, -2, -4


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


#: The numbers of ``enum ggfw_sample_stage`` by stage class.
_STAGES = {TopNSigma: 1, TopK: 2, Typical: 3, TopP: 4, MinP: 5, Xtc: 6, Temperature: 7, DynamicTemperature: 8}
#: Length of ``ggfw_sampler_params.stages``.
_MAX_STAGES = 32


class NativeSampler:
    """One sequence's sampler in C; the same tokens as :class:`ggfw.sampling.Sampler` of the same parameters.

    Args:
        ffi: a cffi ``FFI`` that knows ``ggfw_sampler.h``.
        lib: the library with its functions.
        params: the parameters; default :func:`ggfw.sampling.defaults`.
        vocab: which tokens end the generation and which are DRY's breakers.
        n_logprobs: note with each pick the log-probabilities of the picked token and of so many of the likeliest ones;
            None notes nothing.

    Raises:
        UnsupportedError: the native chain does not know what the parameters ask for (see
            :func:`ggfw.sampling.host_reason`).
    """

    def __init__(
        self,
        ffi: Any,
        lib: Any,
        params: Params | None = None,
        vocab: SamplerVocab | None = None,
        n_logprobs: int | None = None,
    ) -> None:
        self.params = p = params if params is not None else Params()
        self.vocab = vocab if vocab is not None else SamplerVocab()
        self.n_logprobs = n_logprobs
        seed = p.seed
        #: The seed in use, 0 .. 2^64 - 1, also when the parameters left it open.
        self.rng_seed: int = (
            int.from_bytes(os.urandom(8), "little") if seed is None or seed == -1 else seed & MASK64
        )
        stages = native_stages(p, self.vocab)
        breakers = self.vocab.breakers
        arrays = {
            "bias_ids": ffi.new("int32_t[]", list(p.logit_bias)),
            "bias_values": ffi.new("float[]", list(p.logit_bias.values())),
            "end_ids": ffi.new("int32_t[]", sorted(self.vocab.end_ids)),
            "dry_single": ffi.new("int32_t[]", sorted(breakers.single) if p.dries else []),
            "dry_longer": ffi.new("int32_t[]", breakers.flat() if p.dries else []),
        }
        native = ffi.new(
            "ggfw_sampler_params *",
            {
                "seed": self.rng_seed,
                "greedy": p.is_greedy,
                "n_stages": len(stages),
                "stages": stages,
                "min_keep": p.min_keep,
                "temperature": p.temperature,
                "dynatemp_range": p.dynatemp_range,
                "dynatemp_exponent": p.dynatemp_exponent,
                "top_k": p.top_k,
                "top_p": p.top_p,
                "min_p": p.min_p,
                "typical_p": p.typical_p,
                "top_n_sigma": p.top_n_sigma,
                "xtc_probability": p.xtc_probability,
                "xtc_threshold": p.xtc_threshold,
                "penalty_last_n": p.penalty_last_n if p.penalises else 0,
                "penalty_repeat": p.penalty_repeat,
                "penalty_freq": p.penalty_freq,
                "penalty_present": p.penalty_present,
                "dry_multiplier": p.dry_multiplier if p.dries else 0.0,
                "dry_base": p.dry_base,
                "dry_allowed_length": p.dry_allowed_length,
                "dry_last_n": p.dry_penalty_last_n,
                "dry_first": p.dries
                and p.penalises
                and p.samplers.index("dry") < p.samplers.index("penalties"),
                "n_dry_single": len(arrays["dry_single"]),
                "n_dry_longer": len(arrays["dry_longer"]),
                "n_bias": len(p.logit_bias),
                "n_end": len(self.vocab.end_ids),
                "min_tokens": p.min_tokens,
                "n_logprobs": -1 if n_logprobs is None else n_logprobs,
                **arrays,
            },
        )
        self._ffi, self._lib = ffi, lib
        self._own(lib.ggfw_sampler_new(native))
        #: All ids that went into penalty window and DRY's history, kept for :meth:`to_python`.
        self._history: list[int] = []
        self._n_seeded = 0

    def _own(self, pointer: Any) -> None:
        if pointer == self._ffi.NULL:
            raise MemoryError("no memory for a sampler")
        #: ``ggfw_sampler *``, valid as long as this object.
        self.pointer = self._ffi.gc(pointer, self._lib.ggfw_sampler_free)

    def copy(self) -> NativeSampler:
        """An independent sampler that goes on exactly like this one."""
        out = NativeSampler.__new__(NativeSampler)
        out.params, out.rng_seed, out._ffi, out._lib = self.params, self.rng_seed, self._ffi, self._lib
        out.vocab, out.n_logprobs = self.vocab, self.n_logprobs
        out._own(self._lib.ggfw_sampler_clone(self.pointer))
        out._history, out._n_seeded = list(self._history), self._n_seeded
        return out

    def to_python(self) -> Sampler:
        """A Python sampler in the same state, e.g. to go on under a constraint."""
        out = Sampler(self.params, vocab=self.vocab)
        state = self._ffi.new("uint64_t[2]")
        self._lib.ggfw_sampler_rng_get(self.pointer, state)
        out.rng_seed, out.rng.state = self.rng_seed, Pcg(state[0], state[1]).state
        out.seed(self._history[: self._n_seeded])
        for token in self._history[self._n_seeded :]:
            out.accept(token)
        return out

    @property
    def _remembers(self) -> bool:
        return self.params.penalises or self.params.dries or self.params.min_tokens > 0

    def seed(self, ids: Iterable[int]) -> None:
        """Push the prompt into the penalty window and DRY's history; before the first :meth:`accept`."""
        tokens = [int(i) for i in ids]
        if self._remembers:
            self._history.extend(tokens)
            self._n_seeded = len(self._history)
        check_status(
            self._lib.ggfw_sampler_seed(self.pointer, self._ffi.new("int32_t[]", tokens), len(tokens))
        )

    def accept(self, token: int) -> None:
        """Say that ``token`` entered the text."""
        if self._remembers:
            self._history.append(int(token))
        check_status(self._lib.ggfw_sampler_settle(self.pointer, int(token)))

    def hold(self) -> None:
        """Let an executor that draws with this sampler leave it to :meth:`accept` to take the token in."""
        self._lib.ggfw_sampler_hold(self.pointer)

    def pick(self, row: ArrayLike) -> int:
        """One token for a row of raw logits (n_vocab,) float32, which is not written to; an empty row gives 0.

        Raises:
            NonFiniteLogits: after bias and penalties no logit is above -inf.
        """
        logits = _contiguous(row)
        data = self._ffi.from_buffer("float[]", logits)
        return check_status(self._lib.ggfw_sampler_pick(self.pointer, data, logits.size))

    def pick_masked(self, row: ArrayLike, mask: NDArray[np.uint32]) -> int:
        """:meth:`pick` as if everything were at -inf whose bit is not set in ``mask`` (n_words,).

        Raises:
            NonFiniteLogits: nothing above -inf is left.
        """
        logits = _contiguous(row)
        data, words = self._ffi.from_buffer("float[]", logits), self._ffi.from_buffer("uint32_t[]", mask)
        return check_status(
            self._lib.ggfw_sampler_pick_masked(self.pointer, data, logits.size, words, mask.size)
        )

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

    def take_logprob(self) -> TokenLogprob:
        """The log-probability noted with the oldest pick that has not been asked for; at most eight are kept.

        Raises:
            GgfwError: there is none.
        """
        n = self.n_logprobs or 0
        ffi = self._ffi
        token, logprob = ffi.new("int32_t *"), ffi.new("double *")
        ids, logprobs = ffi.new("int32_t[]", n), ffi.new("double[]", n)
        m = check_status(self._lib.ggfw_sampler_take_logprobs(self.pointer, token, logprob, ids, logprobs))
        top = tuple(TopLogprob(ids[i], logprobs[i]) for i in range(m))
        return TokenLogprob(token[0], logprob[0], top)


def native_stages(p: Params, vocab: SamplerVocab) -> list[int]:
    """The native numbers of the stages behind the edits, in their order.

    Raises:
        UnsupportedError: one of them is not native.
    """
    reason = host_reason(p)
    chain = [] if reason else split_edits(build_stages(p, vocab, Window(0)))[1]
    if reason is None and len(chain) > _MAX_STAGES:
        reason = f"{len(chain)} stages are more than {_MAX_STAGES}"
    if reason is not None:
        raise UnsupportedError(f"the native sampler cannot be used: {reason}; use ggfw.sampling.Sampler")
    return [_STAGES[type(stage)] for stage in chain]


def _contiguous(row: ArrayLike) -> F32:
    out = np.ascontiguousarray(row, dtype=np.float32)
    if np.ndim(row) != 1:
        raise InvalidRequest(
            f"a row of logits has one dimension, this one has shape {out.shape}", param="row"
        )
    return out
