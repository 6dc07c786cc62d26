"""A model's hyperparameters: GGUF keys by the field's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggfw.errors import ModelFileError

_REQUIRED: Any = object()


class Hparams:
    """Typed access to ``{architecture}.*`` keys.

    Args:
        metadata: a file's metadata.
        architecture: the value of ``general.architecture``, the keys' prefix.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return ``{architecture}.{key}``.

        Raises:
            ModelFileError: the key is missing and there is no default.
        """
        full = f"{self.architecture}.{key}"
        value = self.metadata.get(full)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelFileError(f"the key {full} is missing; the architecture {self.architecture} needs it")
        return default

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
                f"{self.architecture}.{key} differs between layers ({sorted(values)}); "
                "this architecture expects one value"
            )
        return values.pop()

    @property
    def n_layer(self) -> int:
        """Layers of the trunk: ``block_count`` less the draft heads of multi-token prediction."""
        return int(self.get("block_count")) - int(self.get("nextn_predict_layers", 0))

    @property
    def n_embd(self) -> int:
        """Width of the residual stream."""
        return int(self.get("embedding_length"))

    @property
    def n_ctx_train(self) -> int:
        """Context length the model was trained for."""
        return int(self.get("context_length", 2048))

    @property
    def n_head(self) -> int:
        """Query heads, where all layers have the same number."""
        return int(self.uniform("attention.head_count"))

    @property
    def n_head_kv(self) -> int:
        """Key/value heads (GQA), where all layers have the same number; defaults to ``n_head``."""
        return int(self.uniform("attention.head_count_kv", self.n_head))

    @property
    def head_dim(self) -> int:
        """Columns of a query or key head: ``attention.key_length``, else n_embd / n_head."""
        return int(self.get("attention.key_length", self.n_embd // self.n_head))

    @property
    def head_dim_v(self) -> int:
        """Columns of a value head."""
        return int(self.get("attention.value_length", self.n_embd // self.n_head))

    @property
    def eps(self) -> float:
        """Epsilon of the RMS norms."""
        return float(self.get("attention.layer_norm_rms_epsilon"))

    @property
    def rope_dims(self) -> int:
        """Rotated columns of a head."""
        return int(self.get("rope.dimension_count", self.head_dim))

    @property
    def rope_freq_base(self) -> float:
        """Base of the rotary frequencies."""
        return float(self.get("rope.freq_base", 10000.0))

    @property
    def n_expert(self) -> int:
        """Experts per layer, 0 = dense."""
        return int(self.get("expert_count", 0))

    @property
    def n_expert_used(self) -> int:
        """Experts a token uses."""
        return int(self.get("expert_used_count", 0))
