"""Conformance of kernel backends: every entry of the table against the exact executor and float64 products."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ggfw import quants
from ggfw.descriptors import KernelBackend, QuantFormat, resolve
from ggfw.execute.kernel_set import NO_FORMAT, OPS, KernelSet
from ggfw.execute.library import KernelLibrary, dlopen, kernel_library, native
from ggfw.graph.plan import F32, Q8, Q16
from ggfw.testing.checks import Checks, NotApplicable
from ggfw.testing.models import compare_executors
from ggfw.testing.tiny import registry_with, tiny_gguf

__all__ = ["KernelBackendChecks"]

#: Relative L2 error of a product, by the type of its activations: F32 sums in any order; int8 with a scale per 16; 15
#: bits with a scale per 32. BF16 tiles, which round activations to 8 bits of mantissa, have 4e-3.
PRODUCT_ERROR = {F32: 4e-3, Q8: 1.2e-2, Q16: 1e-3}
#: The same for the logits of a tiny model.
MODEL_ERROR = 2e-2

_NAMES = {number: name for name, number in OPS.items()}


class KernelBackendChecks(Checks[KernelBackend]):
    """See the methods."""

    kind = KernelBackend
    rules = ("descriptor", "load", "library", "entries", "products", "rows", "models")
    gates = frozenset({"descriptor", "load", "library", "entries"})

    def load(self) -> None:
        """``probe`` gives a whole number of 0 or more, and the same again."""
        probe = resolve(self.item.probe)
        self._score = probe()
        assert isinstance(self._score, int) and self._score >= 0, (
            f"the probe gives {self._score!r}, expected 0 or more"
        )
        assert probe() == self._score, "the probe changes its mind"

    def library(self) -> None:
        """The library is there, exports ``ggfw_kernels_abi`` and ``ggfw_kernels``, and has the descriptor's ABI."""
        self._need_score()
        path = resolve(self.item.library)()
        assert isinstance(path, (str, os.PathLike)) and Path(path).is_file(), f"no library at {path!r}"
        ffi = native(self._registry).ffi
        library = dlopen(ffi, os.fspath(path))
        for name in ("ggfw_kernels_abi", "ggfw_kernels"):
            assert hasattr(library, name), f"{path} does not export {name}"
        abi = library.ggfw_kernels_abi()
        assert abi == self.item.abi, f"the library has ABI {abi}, the descriptor says {self.item.abi}"
        assert library.ggfw_kernels() != ffi.NULL, f"{path} has no kernel table"

    def entries(self) -> None:
        """Every entry has a known op, chunks and a body; a format exactly where its op reads a matrix."""
        self._need_score()
        null = native(self._registry).ffi.NULL
        found = 0
        for (op, number), kernels in self._kernels.kernels.items():
            for kernel in kernels:
                found += 1
                name = _name(kernel)
                assert op in _NAMES, f"{name} has the unknown op {op}"
                assert kernel.row_classes & 3, f"{name} serves no kind of row"
                reads = _NAMES[op] in ("linear", "moe_linear") or (
                    _NAMES[op] == "embed" and number != NO_FORMAT
                )
                assert reads == (number != NO_FORMAT), f"{name} has a format that does not fit it"
                if _NAMES[op] == "embed" and reads:
                    assert kernel.unpack_rows != null, f"{name} has no unpack_rows"
                    continue
                assert kernel.n_chunks != null and kernel.run != null, f"{name} has no n_chunks or no run"
                assert not reads or kernel.unpack_rows != null, f"{name} has no unpack_rows"
                assert (kernel.pack == null) == (kernel.pack_size == null), (
                    f"{name} has only one of pack, pack_size"
                )
        assert found, "the table is empty"

    def products(self) -> None:
        """Every matrix product is that of the dequantised matrix in float64, within the bound of its activations."""
        ffi, lib = native(self._registry).ffi, native(self._registry).lib
        quantizers = {t: self._quantizer(t) for t in (Q8, Q16)}
        done = 0
        for kernel, fmt in self._products():
            for n_out, n_rows in ((37, 1), (48, 5), (16, 40)):
                n_in = _columns(kernel, fmt)
                weights, exact = _matrix(fmt, n_out, n_in)
                x = np.random.default_rng(n_rows).standard_normal((n_rows, n_in), np.float32)
                y = np.full((n_rows, n_out), np.nan, np.float32)
                status = lib.ggfw_linear_once(
                    kernel, quantizers.get(kernel.activation, ffi.NULL), ffi.from_buffer(weights), n_out, n_in,
                    ffi.from_buffer("float[]", x), n_rows, ffi.from_buffer("float[]", y),
                )  # fmt: skip
                assert status == 0, f"{_name(kernel)} refuses {n_out} x {n_in} (status {status})"
                wanted = x.astype(np.float64) @ exact.T
                found = float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted))
                most = PRODUCT_ERROR[kernel.activation]
                assert found <= most, (
                    f"{_name(kernel)} on {n_rows} x {n_in} by {n_out}: relative error {found:.2g}, at most {most:g}"
                )
                done += 1
        if not done:
            raise NotApplicable("the library has no matrix products")

    def rows(self) -> None:
        """``unpack_rows`` gives the dequantised rows, of matrices in file layout and packed."""
        ffi = native(self._registry).ffi
        done = 0
        for kernel, fmt in (*self._products(), *self._products("embed")):
            n_out, n_in = 37, _columns(kernel, fmt)
            weights, exact = _matrix(fmt, n_out, n_in)
            data = ffi.from_buffer(weights)
            if kernel.pack != ffi.NULL:
                raw = np.zeros(kernel.pack_size(n_out, n_in) + 128, np.uint8)
                packed = raw[-raw.ctypes.data % 64 :]
                kernel.pack(data, n_out, n_in, 0, n_out, ffi.from_buffer(packed))
                data = ffi.from_buffer(packed)
            ids = np.array([0, 36, 17, 17], np.int32)
            out = np.full((len(ids), n_in + 3), np.nan, np.float32)
            kernel.unpack_rows(
                data, n_out, n_in, ffi.from_buffer("int32_t[]", ids), len(ids), ffi.from_buffer("float[]", out),
                out.strides[0],
            )  # fmt: skip
            assert np.isnan(out[:, n_in:]).all(), f"{_name(kernel)}: unpack_rows writes behind its rows"
            assert np.allclose(out[:, :n_in], exact[ids], rtol=1e-5, atol=1e-7), (
                f"{_name(kernel)}: unpack_rows gives other values than the format's dequantize"
            )
            done += 1
        if not done:
            raise NotApplicable("the library reads no matrices")

    def models(self) -> None:
        """Tiny models in each of its formats, dense and with experts, give the logits of the exact executor."""
        self._need_score()
        formats = {fmt.name: fmt for kernel, fmt in (*self._products(), *self._products("moe_linear"))}
        # In front of all others, which fill its gaps: one for a single format stands behind them otherwise.
        registry = registry_with(replace(self.item, probe=lambda: 1 << 30))
        for fmt in formats.values() or [quants.get("F32")]:
            if fmt.quantize is None and fmt.name != "F32":
                continue
            for n_expert in (0, 4):
                data = tiny_gguf(n_embd=256, n_ff=256, n_expert=n_expert, fmt=fmt, registry=self._registry)
                try:
                    compare_executors(data, registry, MODEL_ERROR)
                except AssertionError as exc:
                    kind = f"with {n_expert} experts" if n_expert else "without experts"
                    raise AssertionError(f"a tiny model in {fmt.name} {kind}: {exc}") from exc

    # -- what there is ---------------------------------------------------------------------------------------------

    @cached_property
    def _registry(self) -> Any:
        return registry_with(self.item)

    @cached_property
    def _kernels(self) -> KernelLibrary:
        return kernel_library(self.item, self._registry)

    def _need_score(self) -> None:
        if not self._score:
            raise NotApplicable("the backend cannot run on this machine")

    def _products(self, op: str = "linear") -> Iterator[tuple[Any, QuantFormat]]:
        self._need_score()
        for (number, ggml_type), kernels in self._kernels.kernels.items():
            if number == OPS[op] and ggml_type != NO_FORMAT:
                fmt = self._registry.quant_format_by_type(ggml_type)
                for kernel in kernels:
                    yield kernel, fmt

    def _quantizer(self, kind: int) -> Any:
        """A kernel that makes activations of this type: the backend's own, or the one that would fill the gap."""
        for library in KernelSet(registry=self._registry).libraries:
            for kernel in library.kernels.get((OPS["quantize"], NO_FORMAT), ()):
                if kernel.activation == kind:
                    return kernel
        return KernelSet(registry=self._registry).pair("quantize", None)[0]


def _name(kernel: Any) -> str:
    op = _NAMES.get(kernel.op, kernel.op)
    return f"the entry {op} of format {kernel.format}" if kernel.format != NO_FORMAT else f"the entry {op}"


def _columns(kernel: Any, fmt: QuantFormat) -> int:
    """Columns that fit the blocks of the format and what the kernel asks for; a few blocks."""
    step = int(np.lcm.reduce([fmt.block_size, max(1, kernel.n_in_multiple), 32]))
    return step * max(2, 128 // step)


def _matrix(fmt: QuantFormat, n_out: int, n_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in file layout, (n_out, row bytes) uint8, and their values, (n_out, n_in) float64."""
    rng = np.random.default_rng(7)
    if fmt.quantize is not None:
        data = quants.quantize(fmt, rng.standard_normal((n_out, n_in), np.float32))
    else:  # random bytes; blocks with absurd scales are drawn again
        blocks = rng.integers(0, 256, (n_out * n_in // fmt.block_size, fmt.type_size), np.uint8)
        for _ in range(200):
            values = quants.dequantize(fmt, blocks.reshape(-1), (len(blocks), fmt.block_size))
            bad = ~(
                np.isfinite(values).all(1) & (np.abs(values).max(1) < 100) & (np.abs(values).max(1) > 1e-3)
            )
            if not bad.any():
                break
            blocks[bad] = rng.integers(0, 256, (int(bad.sum()), fmt.type_size), np.uint8)
        data = blocks.reshape(n_out, -1)
    data = np.ascontiguousarray(data)
    return data, quants.dequantize(fmt, data.reshape(-1), (n_out, n_in)).astype(np.float64)
