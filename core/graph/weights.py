"""References to a file's tensors, as an architecture sees them: names and shapes, no data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, overload

from ggfw.errors import ModelFileError
from ggfw.records import dataclass


@dataclass(frozen=True)
class WeightRef:
    """A tensor of the model file.

    Attributes:
        name: full name in the file, ``blk.0.attn_q.weight``.
        shape: slowest axis first: a matrix is (n_out, n_in), experts are (n_expert, n_out, n_in).
        ggml_type: type id of its blocks.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: int


class Weights:
    """The tensors of a file by short name: ``w["token_embd"]`` is ``token_embd.weight``.

    A name with a suffix of its own is taken as it stands (``w["attn_q.bias"]``, ``w["ssm_a"]`` falls back to the name
    without suffix). :meth:`block` gives the view of one layer. Every look-up is remembered, so that tensors nobody
    asked for can be listed.
    """

    def __init__(self, tensors: Mapping[str, Any], prefix: str = "", asked: set[str] | None = None) -> None:
        self._tensors = tensors
        self._prefix = prefix
        self._asked: set[str] = set() if asked is None else asked

    def block(self, i: int) -> Weights:
        """Return the tensors of layer ``i`` (``blk.i.…``)."""
        return Weights(self._tensors, f"{self._prefix}blk.{i}.", self._asked)

    def _candidates(self, name: str) -> Iterator[str]:
        if not name.endswith((".weight", ".bias", ".scale")):
            yield f"{self._prefix}{name}.weight"
        yield self._prefix + name

    @overload
    def get(self, name: str) -> WeightRef | None: ...
    @overload
    def get(self, name: str, default: WeightRef) -> WeightRef: ...
    def get(self, name: str, default: WeightRef | None = None) -> WeightRef | None:
        """Return a tensor, or ``default`` where the file does not have it."""
        for full in self._candidates(name):
            info = self._tensors.get(full)
            if info is not None:
                self._asked.add(full)
                return WeightRef(full, tuple(info.shape), int(info.ggml_type))
        return default

    def __contains__(self, name: str) -> bool:
        return any(full in self._tensors for full in self._candidates(name))

    def __getitem__(self, name: str) -> WeightRef:
        found = self.get(name)
        if found is None:
            wanted = next(self._candidates(name))
            raise ModelFileError(
                f"tensor {wanted} is missing; the architecture needs it, so the file is incomplete or is of "
                "another architecture than general.architecture says"
            )
        return found

    def unused(self) -> list[str]:
        """Return the names of tensors that were never asked for."""
        return [name for name in self._tensors if name not in self._asked]
