"""The conformance kit: every built-in passes, and each kind of wrong plugin is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ggfw.descriptors import ArchitectureSpec, KernelBackend, QuantFormat
from ggfw.graph import Architecture
from ggfw.registry import Registry
from ggfw.testing import check_architecture, check_kernel_backend, check_quant_format

BUILTIN = Registry.load(environ={})


@pytest.mark.parametrize("name", BUILTIN.architectures)
def test_builtin_architectures(name: str) -> None:
    check_architecture(BUILTIN.architectures[name])


@pytest.mark.parametrize("name", BUILTIN.quant_formats)
def test_builtin_quant_formats(name: str) -> None:
    check_quant_format(BUILTIN.quant_formats[name])


@pytest.mark.parametrize("name", BUILTIN.kernel_backends)
def test_builtin_kernel_backends(name: str) -> None:
    check_kernel_backend(BUILTIN.kernel_backends[name])


def half(blocks: Any, out: Any) -> None:
    out[:] = blocks.view(np.int8).astype(np.float32) / 64


def to_half(values: Any, out: Any) -> None:
    out[:] = np.clip(np.rint(values * 64), -128, 127).astype(np.int8).view(np.uint8)


def fmt(dequantize: Any = half, quantize: Any = None, **fields: Any) -> QuantFormat:
    given = dict(
        name="toy", ggml_type=200, block_size=8, type_size=8, dequantize=dequantize, quantize=quantize
    )
    return QuantFormat(**{**given, **fields})


def unset(blocks: Any, out: Any) -> None:
    out[:, 1:] = 0


def greedy(blocks: Any, out: Any) -> None:
    half(blocks, out)
    blocks[:] = 0


def company(blocks: Any, out: Any) -> None:
    half(blocks, out)
    out += len(blocks)


def negated(values: Any, out: Any) -> None:
    to_half(-values, out)


def test_a_sound_format_passes() -> None:
    check_quant_format(fmt(quantize=to_half))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (fmt(unset), "unset"),
        (fmt(greedy), "writes to its input"),
        (fmt(company), "alone than among others"),
        (fmt(quantize=negated), "loses"),
        (fmt(block_size=0), "block_size is 0"),
    ],
)
def test_wrong_formats_are_caught(wrong: QuantFormat, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_quant_format(wrong)


class Toy(Architecture):
    gguf_names = ("toy",)

    def build(self, g: Any, hp: Any, w: Any, run: Any) -> None:
        h = g.rms_norm(g.select_outputs(g.embed(w["token_embd"])), w["output_norm"], hp.eps)
        g.output(hidden=h, logits=g.linear(h, w["output"]))


class NoBuild(Architecture):
    gguf_names = ("toy",)


def test_architectures_are_checked() -> None:
    check_architecture(ArchitectureSpec(name="toy", gguf_names=("toy",), load=Toy))
    for load, names, message in (
        (NoBuild, ("toy",), "no build of its own"),
        (Toy, ("other",), "the class says"),
        (dict, ("toy",), "expected a subclass"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_architecture(ArchitectureSpec(name="toy", gguf_names=names, load=load))


def test_backends_are_checked(tmp_path: Any) -> None:
    def backend(score: Any, path: str = "nowhere") -> KernelBackend:
        return KernelBackend(name="toy", probe=lambda: score, library=lambda: path)

    check_kernel_backend(backend(0))
    for wrong, message in (
        (backend(-1), "expected 0 or more"),
        (backend("1"), "expected 0 or more"),
        (backend(1), "no library at"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_kernel_backend(wrong)
