"""Conformance of quant formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ggfw import quants
from ggfw.descriptors import QuantFormat, resolve
from ggfw.registry import default_registry
from ggfw.testing.checks import Checks, NotApplicable
from ggfw.testing.models import compare_executors
from ggfw.testing.tiny import registry_with, tiny_gguf

__all__ = ["QuantFormatChecks"]

#: Relative L2 error that the native executor may add to a tiny random model of 2 layers: its activations have 15 bits.
NATIVE_ERROR = 2e-3


class QuantFormatChecks(Checks[QuantFormat]):
    """See the methods."""

    kind = QuantFormat
    rules = (
        "descriptor", "load", "type", "pure", "independent", "quantise", "error", "extremes", "stable", "rows", "model",
    )  # fmt: skip

    def load(self) -> None:
        """``dequantize`` can be imported, and ``quantize`` where it is given."""
        self._dequantize = resolve(self.item.dequantize)
        self._quantize = None if self.item.quantize is None else resolve(self.item.quantize)

    def type(self) -> None:
        """No other installed format has the same ggml type id."""
        taken = [
            other.name
            for other in registry_with(self.item).quant_formats.values()
            if other.ggml_type == self.item.ggml_type and other.name != self.item.name
        ]
        assert not taken, f"ggml_type {self.item.ggml_type} belongs to {taken[0]}; choose another number"

    def pure(self) -> None:
        """``dequantize`` sets every element of ``out``, whatever stood there, and leaves its input alone."""
        blocks = self._blocks()
        before = blocks.copy()
        first, second = self._values(blocks, np.nan), self._values(blocks, 12345.0)
        assert np.array_equal(blocks, before), "dequantize writes to its input"
        assert np.array_equal(first, second, equal_nan=True), "dequantize leaves elements of out unset"

    def independent(self) -> None:
        """A block has the same values alone as among others."""
        blocks = self._blocks()
        values = self._values(blocks)
        for i in (0, 1, len(blocks) // 2, len(blocks) - 1):
            alone = self._values(blocks[i : i + 1])
            assert np.array_equal(alone[0], values[i], equal_nan=True), (
                f"block {i} gives other values alone than among others"
            )

    def quantise(self) -> None:
        """``quantize`` sets every byte of ``out`` and leaves its input alone."""
        values = self._ordinary()
        before = values.copy()
        packed, again = self._packed(values, 0xAA), self._packed(values, 0x55)
        assert np.array_equal(values, before), "quantize writes to its input"
        assert np.array_equal(packed, again), "quantize leaves bytes of out unset"

    def error(self) -> None:
        """Normal values come back with less than 75 % relative error, and zeros as zeros."""
        values = self._ordinary()
        back = self._values(self._packed(values))
        assert np.isfinite(back).all(), "a quantised block of ordinary values is not finite"
        assert not back[0].any(), "a block of zeros does not stay zero"
        # Even one bit per element with a scale keeps more than this of a normal block's direction.
        lost = np.linalg.norm(back[1:] - values[1:]) / np.linalg.norm(values[1:])
        assert lost < 0.75, f"quantising loses {lost:.0%} of ordinary values"

    def extremes(self) -> None:
        """Blocks that are constant, one-sided, tiny (1e-6), large (1e4) or have one outlier give finite values."""
        n = self.item.block_size
        ramp = np.linspace(-1, 1, n, dtype=np.float32)
        outlier = np.full(n, 1e-3, np.float32)
        outlier[n // 2] = 100
        rows = [
            np.ones(n),
            -np.ones(n),
            np.abs(ramp),
            -np.abs(ramp),
            1e-6 * ramp,
            1e4 * ramp,
            outlier,
            0 * ramp - 0.0,
        ]
        values = np.stack(rows).astype(np.float32)  # (8, block_size)
        back = self._values(self._packed(values))
        for row, got in zip(values, back, strict=True):
            assert np.isfinite(got).all(), f"a block from {row.min():g} to {row.max():g} does not stay finite"
            most = 1.5 * np.abs(row).max() + 4e-6  # the least f16 scale, times 64 levels
            assert np.abs(got).max() <= most, (
                f"a block from {row.min():g} to {row.max():g} comes back as {got.min():g} to {got.max():g}"
            )

    def stable(self) -> None:
        """Quantising what was dequantised loses far less than quantising did the first time."""
        values = self._ordinary()[1:]
        once = self._values(self._packed(values))
        twice = self._values(self._packed(once))
        first, second = np.linalg.norm(once - values), np.linalg.norm(twice - once)
        assert second <= 0.5 * first + 1e-3 * np.linalg.norm(values), (
            f"a second round of quantising changes values by {second / max(first, 1e-30):.0%} of the first one's error"
        )

    def rows(self) -> None:
        """Rows of several blocks have the sizes that ``block_size`` and ``type_size`` say, in and out."""
        fmt, n = self.item, 3
        size = quants.row_bytes(fmt, n * fmt.block_size)
        packed = self._blocks()[: 2 * n].reshape(2, size)
        if self._quantize is not None:
            values = self._ordinary()[: 2 * n].reshape(2, n * fmt.block_size)
            packed = quants.quantize(fmt, values)
            assert packed.shape == (2, size), (
                f"a row of {n} blocks has {packed.shape[-1]} bytes, expected {size}"
            )
        with np.errstate(all="ignore"):
            back = quants.dequantize(fmt, packed, (2, n * fmt.block_size))
        alone = self._values(packed.reshape(-1, fmt.type_size)).reshape(back.shape)
        assert np.array_equal(back, alone, equal_nan=True), "rows give other values than their blocks"

    def model(self) -> None:
        """A tiny model in this format gives the same logits natively as on the exact executor."""
        self._need_quantize()
        if default_registry().quant_formats.get(self.item.name) != self.item:
            raise NotApplicable("it is not installed, so no file can be read with it")
        registry = registry_with(self.item)
        columns = -(-64 // self.item.block_size) * self.item.block_size
        data = tiny_gguf(n_embd=columns, n_ff=columns, fmt=self.item, registry=registry)
        compare_executors(data, registry, NATIVE_ERROR)

    # -- data ------------------------------------------------------------------------------------------------------

    def _blocks(self) -> np.ndarray:
        """Random bytes (257, type_size); the first block all zeros, the second all ones."""
        blocks = np.random.default_rng(0).integers(0, 256, (257, self.item.type_size), np.uint8)
        blocks[0], blocks[1] = 0, 255
        return blocks

    def _ordinary(self) -> np.ndarray:
        """Normal values (64, block_size), the first row zero."""
        values = np.random.default_rng(1).standard_normal((64, self.item.block_size), np.float32)
        values[0] = 0
        return values

    def _values(self, blocks: Any, before: float = 0.0) -> np.ndarray:
        out = np.full((len(blocks), self.item.block_size), before, np.float32)
        with np.errstate(all="ignore"):  # random bytes hold infinite scales
            self._dequantize(blocks, out)
        return out

    def _packed(self, values: np.ndarray, before: int = 0) -> np.ndarray:
        quantize = self._need_quantize()
        out = np.full((len(values), self.item.type_size), before, np.uint8)
        quantize(values, out)
        return out

    def _need_quantize(self) -> Callable[[np.ndarray, np.ndarray], None]:
        if self._quantize is None:
            raise NotApplicable("the format can be read but not made")
        return self._quantize  # type: ignore[no-any-return]
