"""Which kernel computes which step: the chosen backend first, gaps filled from the next scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ggfw.errors import BackendError, InvalidRequest, brief
from ggfw.execute.library import KernelLibrary, Native, checksum, kernel_library, native
from ggfw.graph.plan import F32, Q8, Q16
from ggfw.graph.weights import WeightRef
from ggfw.registry import Registry, default_registry

F32_FORMAT = 0
ROWS_DECODE, ROWS_PROMPT = 1, 2
NO_FORMAT = -1
#: GGFW_KERNEL_R16: reads packed weights of the built-in units, whichever of them packed.
KERNEL_R16 = 1
#: GGFW_KERNEL_FILE: packs, but reads the file's layout as well.
KERNEL_FILE = 2

#: enum ggfw_op
OPS = {
    "embed": 1, "linear": 2, "quantize": 3, "norm": 4, "rope_table": 5, "rope_store": 6, "attention": 7,
    "elementwise": 8, "gather": 9, "copy": 10, "moe_route": 11, "moe_linear": 12, "moe_sum": 13, "pool": 14,
    "sample": 15, "short_conv": 16, "ssm_scan": 17, "delta_rule": 18, "reduce": 19,
    "custom": 64,
}  # fmt: skip

#: What products of quantised weights may take their activations in, by name: the wanted type, then what is more exact.
ACTIVATIONS = {"int8": (Q8, Q16, F32), "int16": (Q16, F32), "f32": (F32,)}
DEFAULT_ACTIVATIONS = "int16"


class KernelSet:
    """Kernels of the usable backends; implements :class:`ggfw.graph.lower.Kernels`.

    Args:
        backend: name of the backend to prefer, None = the one with the highest score.
        activations: what products of quantised weights take their activations in: int8 (one scale per 16 columns,
            fastest), int16 (15 bits, one scale per 32), f32 (not rounded).
        deterministic: one kernel for decode and prompt rows, whose arithmetic for a row depends on nothing else.
        repack: False = weights stay in the file's layout wherever the kernels of a format can read it.
    """

    def __init__(
        self,
        backend: str | None = None,
        registry: Registry | None = None,
        activations: str = DEFAULT_ACTIVATIONS,
        deterministic: bool = False,
        repack: bool = True,
    ) -> None:
        if not isinstance(activations, str) or activations not in ACTIVATIONS:
            raise InvalidRequest(
                f"activations {brief(activations)} are unknown; {', '.join(ACTIVATIONS)} are known",
                "activations",
            )
        self.activations = ACTIVATIONS[activations]
        self.deterministic = deterministic
        self.repack = repack
        registry = registry or default_registry()
        chosen = registry.backend(backend)
        self.native: Native = native(registry)
        ranked = registry.backends()
        if backend is not None:  # below the explicit choice only lower scores may fill gaps
            ranked = ranked[ranked.index(chosen) :]
        self.libraries: list[KernelLibrary] = []
        for descriptor in ranked:
            try:
                self.libraries.append(kernel_library(descriptor, registry))
            except BackendError as exc:
                if descriptor.name == backend:
                    raise
                registry.disqualify(descriptor.name, exc)  # listed as failed; costs nobody else anything
        if not self.libraries:
            raise BackendError("no kernel backend can be opened; see `ggfw plugins list`, or reinstall ggfw")
        self.name = self.libraries[0].name
        self._found: dict[tuple[str, int | None, int | None], tuple[Any, Any] | None] = {}

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells this set from others that might pack differently: its libraries, and what was asked for."""
        sums = tuple(checksum(self.native, Path(library.path).read_bytes()) for library in self.libraries)
        return sums, self.activations, self.deterministic

    def find(self, op: str, ggml_type: int | None, n_in: int | None = None) -> tuple[Any, Any] | None:
        """Return the (decode, prompt) kernels of an op, or None.

        Args:
            ggml_type: weight format for linear, moe_linear and embed; None for the others.
            n_in: columns of the weight; kernels may want a multiple of some number.
        """
        asked = op, ggml_type, n_in
        if asked not in self._found:
            self._found[asked] = self._search(op, ggml_type, n_in)
        return self._found[asked]

    def _search(self, op: str, ggml_type: int | None, n_in: int | None) -> tuple[Any, Any] | None:
        key = (OPS[op], NO_FORMAT if ggml_type is None else ggml_type)
        prompt_only: dict[int, Any] = {}  # of better libraries, by activation type
        for library in self.libraries:
            entries = [
                k
                for k in library.kernels.get(key, ())
                if n_in is None or not k.n_in_multiple or n_in % k.n_in_multiple == 0
            ]
            products = op in ("linear", "moe_linear")
            for kind in self.activations if products else (None,):
                usable = [k for k in entries if kind is None or k.activation == kind]
                decode = next((k for k in usable if k.row_classes & ROWS_DECODE), None)
                prompt = next((k for k in usable if k.row_classes & ROWS_PROMPT), None)
                if decode is not None and prompt is not None:
                    if decode.flags & KERNEL_R16 and decode.pack and not self.in_file_layout(decode, prompt):
                        prompt = prompt_only.get(decode.activation, prompt)
                    # Decode kernels take any rows of a segment, only not the fastest way for many.
                    return decode, decode if self.deterministic else prompt
                if prompt is not None and prompt.flags & KERNEL_R16 and not prompt.pack:
                    prompt_only.setdefault(prompt.activation, prompt)
        return None

    def in_file_layout(self, decode: Any, prompt: Any) -> bool:
        """Whether weights for these two kernels stay as they are in the file."""
        if decode.pack == self.native.ffi.NULL:
            return True
        return not self.repack and bool(decode.flags & prompt.flags & KERNEL_FILE)

    def weight_type(self, ref: WeightRef, op: str) -> int:
        """Return the format ``ref`` is computed in: its own, or F32 (dequantised at load) where no kernel has it."""
        return ref.ggml_type if self.find(op, ref.ggml_type, ref.shape[-1]) is not None else F32_FORMAT

    def activation(self, ggml_type: int, op: str) -> int:
        """Return the activation type (F32, Q8 or Q16) that the kernels of a format want."""
        found = self.find(op, ggml_type)
        return int(found[0].activation) if found is not None else F32

    def pair(self, op: str, ggml_type: int | None) -> tuple[Any, Any]:
        """Return the (decode, prompt) kernels of an op.

        Raises:
            BackendError: no usable backend has it.
        """
        found = self.find(op, ggml_type)
        if found is None:
            raise BackendError(f"no usable kernel backend has op {op} for format {ggml_type}; reinstall ggfw")
        return found
