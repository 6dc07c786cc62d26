"""Rotary position embedding: every scaling comes down to one frequency per pair and one magnitude.

Sources: RoPE (Su et al. 2021), YaRN (Peng et al. 2023), llama.cpp's ``ggml_rope_ext``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ggfw.errors import InvalidRequest, ModelFileError, brief
from ggfw.records import dataclass

if TYPE_CHECKING:
    import numpy as np

    from ggfw.graph.architecture import RunConfig
    from ggfw.graph.hparams import Hparams
    from ggfw.graph.weights import WeightRef, Weights


#: Values of ``rope.scaling.type``.
KINDS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class RopeScaling:
    """How a model was stretched to longer contexts.

    Attributes:
        kind: none, linear, yarn or longrope.
        factor: the stretch; positions are divided by it (for yarn: the low frequencies only; with longrope's own
            factors it is 1 in files that are right).
        original_context: context length before the stretch.
        attn_factor: multiplies cos and sin.
        beta_fast, beta_slow: yarn's ramp ends, in rotations over the original context.
        log_multiplier: yarn's ``mscale_all_dim``; 0 when the file does not say.
    """

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0

    @classmethod
    def from_hparams(cls, hp: Hparams) -> RopeScaling:
        """Read ``rope.scaling.*`` (an absent type with a factor means linear).

        Raises:
            ModelFileError: a type that is none of KINDS, or a factor, context or ramp end that is not positive.
        """
        # Files older than rope.scaling.* say rope.scale_linear.
        factor = float(hp.get("rope.scaling.factor", hp.get("rope.scale_linear", 0.0)) or 0.0)
        kind = str(hp.get("rope.scaling.type", "linear"))
        if kind not in KINDS:
            raise ModelFileError(
                f"{hp.architecture}.rope.scaling.type is {brief(kind)}; {', '.join(KINDS)} are known"
            )
        if factor < 0 or not math.isfinite(factor):
            raise ModelFileError(
                f"{hp.architecture}.rope.scaling.factor is {factor}; expected a positive number"
            )
        return cls(
            kind=kind if factor > 0 or kind == "longrope" else "none",
            factor=factor or 1.0,
            original_context=hp.integer("rope.scaling.original_context_length", hp.n_ctx_train, least=1),
            attn_factor=hp.number("rope.scaling.attn_factor", 1.0),
            beta_fast=hp.number("rope.scaling.yarn_beta_fast", 32.0, positive=True),
            beta_slow=hp.number("rope.scaling.yarn_beta_slow", 1.0, positive=True),
            log_multiplier=float(hp.get("rope.scaling.yarn_log_multiplier", 0.0)),
        )


@dataclass(frozen=True)
class Rope:
    """One rotation: which columns, at which frequencies.

    Attributes:
        dims: rotated columns of a head (the first ones), even.
        base: base of the frequencies: theta_i = position * base^(-2 i / dims).
        pairing: "norm" rotates columns (2i, 2i+1), "neox" (i, i + dims/2).
        factors: tensor of dims/2 divisors of the frequencies, or None.
        scaling: see :class:`RopeScaling`.
    """

    dims: int
    base: float
    pairing: str = "norm"
    factors: WeightRef | None = None
    scaling: RopeScaling = RopeScaling()

    @classmethod
    def from_file(cls, hp: Hparams, w: Weights, run: RunConfig, *, pairing: str) -> Rope:
        """Return the rotation a file asks for: ``rope.*`` keys, ``rope_freqs`` or ``rope_factors_long/short``.

        Long factors apply iff the context per sequence exceeds the original context, as in llama.cpp.
        """
        scaling = RopeScaling.from_hparams(hp)
        if run.rope_scaling is not None:
            if not isinstance(run.rope_scaling, str) or run.rope_scaling not in KINDS:
                message = (
                    f"the rope scaling {brief(run.rope_scaling)} is unknown; {', '.join(KINDS)} are known"
                )
                raise InvalidRequest(message, "rope_scaling")
            scaling = replace(scaling, kind=run.rope_scaling)
        factors = w.get("rope_freqs")
        if factors is None:
            long, short = w.get("rope_factors_long"), w.get("rope_factors_short")
            factors = long if run.n_ctx > scaling.original_context else short
        base = hp.rope_freq_base if run.rope_freq_base is None else run.rope_freq_base
        if scaling.kind == "yarn" and base == 1.0:
            raise InvalidRequest(
                "yarn needs a rotary base other than 1, at which all frequencies are equal", "rope_base"
            )
        return cls(hp.rope_dims, base, pairing, factors, scaling)

    def at_base(self, base: float) -> Rope:
        """Return the same rotation with another base."""
        return replace(self, base=base)

    def frequencies(self, factors: np.ndarray | None) -> tuple[np.ndarray, float]:
        """Return ``(inv_freq, magnitude)``: radians per position of each pair, and the factor of cos and sin.

        Args:
            factors: (dims/2,) float32 values of ``self.factors``.
        """
        import numpy as np  # here, because listing plugins imports this module and must stay quick

        scaling = self.scaling
        pairs = np.arange(self.dims // 2, dtype=np.float64)
        extrapolated = self.base ** (-2.0 * pairs / self.dims)
        if factors is not None:
            with np.errstate(
                divide="ignore"
            ):  # logits that are not finite are the error of the step, not a warning
                extrapolated = extrapolated / factors.astype(np.float64)
        if scaling.kind in ("linear", "longrope"):
            return (extrapolated / scaling.factor).astype(np.float32), scaling.attn_factor
        if scaling.kind == "none":
            return extrapolated.astype(np.float32), scaling.attn_factor
        low = max(0.0, math.floor(self._correction_dim(scaling.beta_fast)))
        high = min(self.dims - 1.0, math.ceil(self._correction_dim(scaling.beta_slow)))
        ramp = 1.0 - np.clip((pairs - low) / max(0.001, high - low), 0.0, 1.0)
        mixed = extrapolated / scaling.factor * (1.0 - ramp) + extrapolated * ramp
        magnitude = _mscale(scaling.factor, 1.0) / _mscale(scaling.factor, scaling.log_multiplier)
        return mixed.astype(np.float32), magnitude * scaling.attn_factor

    def _correction_dim(self, n_rotations: float) -> float:
        """Pair index whose frequency makes ``n_rotations`` turns over the original context (YaRN, eq. 17)."""
        turns = self.scaling.original_context / (n_rotations * 2.0 * math.pi)
        return self.dims * math.log(turns) / (2.0 * math.log(self.base))


def _mscale(factor: float, multiplier: float) -> float:
    """YaRN's attention magnitude for a stretch of ``factor``."""
    return 1.0 if factor <= 1.0 else 0.1 * multiplier * math.log(factor) + 1.0
