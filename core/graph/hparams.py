"""A model's hyperparameters: GGUF keys by the field's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ggfw.errors import ModelFileError, brief

_REQUIRED: Any = object()
_MOST = 2**31 - 1  # counts and sizes become 32-bit fields of native steps
_MOST_LAYERS = 2**16 - 1  # far above any model's; an impossible count must not cost lists of that length


class Hparams:
    """Typed access to ``{architecture}.*`` keys.

    Args:
        metadata: a file's metadata.
        architecture: the value of ``general.architecture``, the keys' prefix.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture
        #: The key that was read last, so that a failure of ``build`` can be traced to it.
        self.last_key = ""

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return ``{architecture}.{key}``.

        Raises:
            ModelFileError: the key is missing and there is no default.
        """
        full = f"{self.architecture}.{key}"
        value = self.metadata.get(full)
        if value is not None:
            self.last_key = full
            return value
        if default is _REQUIRED:
            raise ModelFileError(f"the key {full} is missing; the architecture {self.architecture} needs it")
        return default

    def integer(self, key: str, default: Any = _REQUIRED, *, least: int = 0, most: int = _MOST) -> int:
        """Return a key that holds one whole number, from ``least`` to ``most``.

        Raises:
            ModelFileError: the key is missing and there is no default, or it is no such number.
        """
        return self._whole(key, self.get(key, default), least, most)

    def number(self, key: str, default: Any = _REQUIRED, *, positive: bool = False) -> float:
        """Return a key that holds one finite number, not negative; with ``positive`` not 0 either.

        Raises:
            ModelFileError: the key is missing and there is no default, or it is no such number.
        """
        value = self.get(key, default)
        fits = _is_number(value) and math.isfinite(value) and (value > 0 or (value == 0 and not positive))
        if not fits:
            expected = "a positive number" if positive else "a number of at least 0"
            raise ModelFileError(f"{self.architecture}.{key} is {brief(value)}; {expected} was expected")
        return float(value)

    def _whole(self, key: str, value: Any, least: int, most: int = _MOST) -> int:
        if not (_is_number(value) and least <= value <= most and value == int(value)):
            raise ModelFileError(
                f"{self.architecture}.{key} is {brief(value)}; a whole number from {least} to {most} was expected"
            )
        return int(value)

    def per_layer(self, key: str, default: Any = _REQUIRED) -> tuple[Any, ...]:
        """Return a key that may be one value or one per layer, as one per layer.

        Raises:
            ModelFileError: an array shorter than the number of layers.
        """
        value = self.get(key, default)
        if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            return (value,) * self.n_layer
        values = tuple(v.item() if hasattr(v, "item") else v for v in value)
        if len(values) < self.n_layer:
            raise ModelFileError(
                f"{self.architecture}.{key} has {len(values)} values; {self.n_layer} layers need one each"
            )
        return values[: self.n_layer]

    def uniform(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a per-layer key whose values must all be equal.

        Raises:
            ModelFileError: the values differ between layers.
        """
        values = set(self.per_layer(key, default))
        if len(values) != 1:
            raise ModelFileError(
                f"{self.architecture}.{key} differs between layers ({sorted(values, key=str)}); "
                "this architecture expects one value"
            )
        return values.pop()

    @property
    def n_layer(self) -> int:
        """Layers of the trunk: ``block_count`` less the draft heads of multi-token prediction."""
        n, n_draft = (
            self.integer("block_count", least=1, most=_MOST_LAYERS),
            self.integer("nextn_predict_layers", 0),
        )
        if n_draft >= n:
            raise ModelFileError(
                f"{self.architecture}.nextn_predict_layers is {n_draft}; fewer than the {n} of block_count expected"
            )
        return n - n_draft

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return self.integer("embedding_length", least=1)

    @property
    def n_ctx_train(self) -> int:
        """Context length the model was trained for, in positions."""
        return self.integer("context_length", 2048, least=1)

    @property
    def n_head(self) -> int:
        """Query heads, where all layers have the same number."""
        return self._whole("attention.head_count", self.uniform("attention.head_count"), 1)

    @property
    def n_head_kv(self) -> int:
        """Key/value heads (GQA), where all layers have the same number; defaults to ``n_head``."""
        key = "attention.head_count_kv"
        return self._whole(key, self.uniform(key, self.n_head), 1)

    @property
    def head_dim(self) -> int:
        """Columns of a query or key head: ``attention.key_length``, else n_embd / n_head."""
        return self._head_columns("attention.key_length")

    @property
    def head_dim_v(self) -> int:
        """Columns of a value head: ``attention.value_length``, else n_embd / n_head."""
        return self._head_columns("attention.value_length")

    def _head_columns(self, key: str) -> int:
        if self.get(key, None) is not None:
            return self.integer(key, least=1)
        columns = self.n_embd // self.n_head
        if not columns:
            raise ModelFileError(
                f"{self.architecture}.embedding_length {self.n_embd} is less than a column for each of the "
                f"{self.n_head} heads of attention.head_count"
            )
        return columns

    @property
    def eps(self) -> float:
        """Epsilon of the RMS norms."""
        return self.number("attention.layer_norm_rms_epsilon")

    @property
    def rope_dims(self) -> int:
        """Rotated columns of a head."""
        return self.integer("rope.dimension_count", self.head_dim)

    @property
    def rope_freq_base(self) -> float:
        """Base of the rotary frequencies."""
        return self.number("rope.freq_base", 10000.0, positive=True)

    @property
    def n_expert(self) -> int:
        """Experts per layer, 0 = dense."""
        return self.integer("expert_count", 0)

    @property
    def n_expert_used(self) -> int:
        """Experts a token uses."""
        return self.integer("expert_used_count", 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
