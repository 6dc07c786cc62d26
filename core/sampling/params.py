"""Parameters of the sampling chain: their defaults, ranges and names in a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from types import MappingProxyType
from typing import Any

from ggfw.errors import InvalidRequest, ModelFileError
from ggfw.records import dataclass
from ggfw.sampling import checks, order
from ggfw.sampling.order import DEFAULT_SAMPLERS

#: Keys ``general.sampling.<name>`` of a model file -> parameter.
METADATA_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "sequence": "samplers",
        "temp": "temperature",
        "top_k": "top_k",
        "top_p": "top_p",
        "min_p": "min_p",
        "xtc_probability": "xtc_probability",
        "xtc_threshold": "xtc_threshold",
        "penalty_last_n": "penalty_last_n",
        "penalty_repeat": "penalty_repeat",
        "mirostat": "mirostat",
        "mirostat_tau": "mirostat_tau",
        "mirostat_eta": "mirostat_eta",
    }
)


@dataclass(frozen=True)
class Params:
    """How tokens are drawn. Without arguments: llama.cpp's defaults.

    Args:
        temperature: divisor of the logits; <= 0 means greedy (the best token, without a random number).
        top_k: keep the k best; <= 0 means all.
        top_p: keep the smallest head whose probabilities reach it; >= 1 is off, 0 keeps one.
        min_p: keep what has at least this share of the best probability; <= 0 is off, at most 1.
        typical_p: locally typical sampling; >= 1 is off.
        seed: of the random generator, any 64-bit integer; None or -1 draws a fresh one. 0 is a seed.
        penalty_last_n: length of the penalty window in tokens, prompt included; 0 is off, < 0 the whole conversation.
        penalty_repeat: divides positive, multiplies other logits of tokens in the window; 1 is off (0 is read as 1).
        penalty_freq: subtracted once per occurrence in the window; 0 is off.
        penalty_present: subtracted once if the token stands in the window; 0 is off.
        logit_bias: token id -> addend (finite, or -inf to suppress the token).
        samplers: the stages in their order, by llama.cpp's names (see :mod:`ggfw.sampling.order`); a stage that is not
            named is off.
        min_keep: candidates that typical-p, top-p, min-p and XTC leave at least.
        min_tokens: tokens to draw before one that ends the generation may come.
        top_n_sigma: keep logits within so many standard deviations of the best; <= 0 is off.
        dynatemp_range: the temperature varies by so much around ``temperature`` with the entropy; <= 0 is off.
        dynatemp_exponent: how the entropy, as a share of the highest possible one, maps into that range.
        xtc_probability: chance that XTC drops all but the least likely of the candidates above the threshold; 0 is off.
        xtc_threshold: probability from which on XTC may drop candidates; above 0.5 is off.
        dry_multiplier: strength of the DRY penalty against verbatim repetition; 0 is off.
        dry_base: the penalty grows by this factor per further repeated token; < 1 is off.
        dry_allowed_length: a repetition of fewer tokens costs nothing.
        dry_penalty_last_n: tokens that DRY looks back, prompt included; 0 is off, < 0 the whole conversation.
        dry_sequence_breakers: texts that no repetition reaches over.
        mirostat: 0 off, 1 or 2 that version; it replaces all stages but logit bias and temperature, as in llama.cpp.
        mirostat_tau: surprise per token, in bits, that mirostat steers towards.
        mirostat_eta: its learning rate.
        adaptive_target: probability near which adaptive-p picks tokens; < 0 is off.
        adaptive_decay: of adaptive-p's moving average, 0 to 0.99.
        extra: parameters of plugins' stages, by name.

    Raises:
        InvalidRequest: wrong type or value; ``param`` names the field.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    seed: int | None = None
    penalty_last_n: int = 64
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    min_keep: int = 0
    min_tokens: int = 0
    top_n_sigma: float = -1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, _CHECKS[f.name](f.name, getattr(self, f.name)))

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken without a draw."""
        if self.mirostat:
            return self.temperature <= 0
        return "temperature" in self.samplers and self.temperature + max(self.dynatemp_range, 0.0) <= 0

    @property
    def penalises(self) -> bool:
        """Whether the penalty window is in use."""
        off = self.penalty_repeat == 1 and self.penalty_freq == 0 and self.penalty_present == 0
        return self.penalty_last_n != 0 and not off and not self.mirostat and "penalties" in self.samplers

    @property
    def dries(self) -> bool:
        """Whether DRY is in use."""
        off = self.dry_multiplier == 0 or self.dry_base < 1 or self.dry_penalty_last_n == 0
        return not off and not self.mirostat and "dry" in self.samplers

    def for_choice(self, index: int) -> Params:
        """The parameters of choice ``index`` of several: seed + index, so that choice 0 equals a single answer."""
        if index == 0 or self.seed is None or self.seed == -1:
            return self
        return replace(self, seed=choice_seed(self.seed, index))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], base: Params | None = None) -> Params:
        """``base`` (default: :func:`defaults`) with the recommendations of a model file (``general.sampling.*``).

        Args:
            metadata: the file's key-value pairs; keys and stages that are not known here are ignored.

        Raises:
            ModelFileError: a recommendation has the wrong type or an impossible value.
        """
        found = {
            name: metadata[f"general.sampling.{key}"]
            for key, name in METADATA_KEYS.items()
            if f"general.sampling.{key}" in metadata
        }
        sequence = found.pop("samplers", None)
        if isinstance(sequence, str) and (names := order.known_samplers(sequence)):
            found["samplers"] = names
        try:
            return replace(base if base is not None else defaults(), **found)
        except InvalidRequest as error:
            raise ModelFileError(
                f"the file's general.sampling recommendation cannot be used: {error}; correct it with ggfw.gguf"
            ) from error


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice ``index`` of several with ``seed``: the sum, modulo 2^64."""
    return (seed + index) % 2**64


def defaults() -> Params:
    """llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalties, window 64."""
    return Params()


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "temperature": checks.number,
    "top_k": checks.i32,
    "top_p": checks.at_least_zero,
    "min_p": checks.at_most_one,
    "typical_p": checks.at_least_zero,
    "seed": checks.seed,
    "penalty_last_n": checks.i32,
    "penalty_repeat": checks.repeat,
    "penalty_freq": checks.number,
    "penalty_present": checks.number,
    "logit_bias": checks.bias,
    "samplers": order.samplers,
    "min_keep": checks.count,
    "min_tokens": checks.count,
    "top_n_sigma": checks.number,
    "dynatemp_range": checks.number,
    "dynatemp_exponent": checks.at_least_zero,
    "xtc_probability": checks.share,
    "xtc_threshold": checks.at_least_zero,
    "dry_multiplier": checks.at_least_zero,
    "dry_base": checks.at_least_zero,
    "dry_allowed_length": checks.count,
    "dry_penalty_last_n": checks.i32,
    "dry_sequence_breakers": checks.breakers,
    "mirostat": checks.mirostat,
    "mirostat_tau": checks.at_least_zero,
    "mirostat_eta": checks.at_least_zero,
    "adaptive_target": checks.at_most_one,
    "adaptive_decay": checks.decay,
    "extra": checks.mapping,
}
