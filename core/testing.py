"""The conformance kit: what a plugin's own tests, and ``ggfw plugins check``, ask of it.

Each function raises ``AssertionError`` with one sentence when something is wrong, and returns nothing when all is well.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ggfw.descriptors import ArchitectureSpec, Descriptor, KernelBackend, QuantFormat, resolve
from ggfw.graph import Architecture

__all__ = ["check_architecture", "check_kernel_backend", "check_quant_format"]


def check_architecture(spec: ArchitectureSpec) -> None:
    """Check an architecture's descriptor and the class it loads.

    Args:
        spec: what its hook returned.

    Raises:
        AssertionError: the descriptor is malformed, ``load`` gives no :class:`~ggfw.graph.Architecture` with a
            ``build`` of its own, or class and descriptor serve different names.
    """
    _check_descriptor(spec, ArchitectureSpec)
    cls = resolve(spec.load)
    assert isinstance(cls, type) and issubclass(cls, Architecture), (
        f"{spec.name}: load gives {cls!r}, expected a subclass of ggfw.graph.Architecture"
    )
    assert cls.build is not Architecture.build, f"{spec.name}: {cls.__name__} has no build of its own"
    # A class may leave its names to the descriptor, which is what counts; if it states them, they must agree.
    assert not cls.gguf_names or tuple(cls.gguf_names) == tuple(spec.gguf_names), (
        f"{spec.name}: the descriptor serves {tuple(spec.gguf_names)}, the class says {tuple(cls.gguf_names)}"
    )
    for trait in ("causal", "chunkable", "cacheable"):
        assert isinstance(getattr(cls, trait), bool), f"{spec.name}: {trait} must be True or False"
    if spec.match is not None:
        score = spec.match({})
        assert isinstance(score, int) and score >= 0, (
            f"{spec.name}: match({{}}) gives {score!r}, expected 0 or more"
        )


def check_quant_format(fmt: QuantFormat, n_blocks: int = 257, seed: int = 0) -> None:
    """Check a quant format's descriptor, its ``dequantize`` and, where there is one, its ``quantize``.

    Args:
        fmt: what its hook returned.
        n_blocks: random blocks to try.
        seed: of the random bytes.

    Raises:
        AssertionError: a result depends on its neighbours or on what was in ``out``, an input is written to, an
            element is not set, or quantising what was dequantised moves it by more than a step.
    """
    _check_descriptor(fmt, QuantFormat)
    dequantize = resolve(fmt.dequantize)
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n_blocks, fmt.type_size), np.uint8)  # (n, type_size)
    blocks[0], blocks[1] = 0, 255
    before = blocks.copy()
    first = np.full((n_blocks, fmt.block_size), np.nan, np.float32)
    second = np.full((n_blocks, fmt.block_size), 12345.0, np.float32)
    with np.errstate(all="ignore"):  # random bytes hold infinite scales
        dequantize(blocks, first)
        dequantize(blocks, second)
        assert np.array_equal(blocks, before), f"{fmt.name}: dequantize writes to its input"
        assert np.array_equal(first, second, equal_nan=True), (
            f"{fmt.name}: dequantize leaves elements of out unset"
        )
        for i in (0, 1, n_blocks // 2, n_blocks - 1):
            one = np.empty((1, fmt.block_size), np.float32)
            dequantize(blocks[i : i + 1], one)
            assert np.array_equal(one[0], first[i], equal_nan=True), (
                f"{fmt.name}: block {i} gives other values alone than among others"
            )
    if fmt.quantize is not None:
        _check_quantize(fmt, rng)


def _check_quantize(fmt: QuantFormat, rng: np.random.Generator) -> None:
    """Quantise normal values, and check the error against the spread of the format's own values."""
    assert fmt.quantize is not None
    dequantize, quantize = resolve(fmt.dequantize), resolve(fmt.quantize)
    values = rng.standard_normal((64, fmt.block_size), np.float32)
    values[0] = 0
    packed = np.full((64, fmt.type_size), 0xAA, np.uint8)
    again = np.full((64, fmt.type_size), 0x55, np.uint8)
    before = values.copy()
    quantize(values, packed)
    quantize(values, again)
    assert np.array_equal(values, before), f"{fmt.name}: quantize writes to its input"
    assert np.array_equal(packed, again), f"{fmt.name}: quantize leaves bytes of out unset"
    back = np.empty_like(values)
    dequantize(packed, back)
    assert np.isfinite(back).all(), f"{fmt.name}: a quantised block of ordinary values is not finite"
    assert not back[0].any(), f"{fmt.name}: a block of zeros does not stay zero"
    # Even one bit per element with a scale keeps more than this of a normal block's direction.
    error = np.linalg.norm(back[1:] - values[1:]) / np.linalg.norm(values[1:])
    assert error < 0.75, f"{fmt.name}: quantising loses {error:.0%} of ordinary values"


def check_kernel_backend(backend: KernelBackend) -> None:
    """Check a kernel backend's descriptor, its probe and, if it can run here, its library's exports.

    Args:
        backend: what its hook returned.

    Raises:
        AssertionError: the probe gives no score of 0 or more, or the library is missing, lacks the two exported
            functions, or says another ABI than the descriptor.
    """
    import cffi

    _check_descriptor(backend, KernelBackend)
    probe = resolve(backend.probe)
    score = probe()
    assert isinstance(score, int) and score >= 0, (
        f"{backend.name}: the probe gives {score!r}, expected 0 or more"
    )
    assert probe() == score, f"{backend.name}: the probe changes its mind"
    if not score:
        return
    path = resolve(backend.library)()
    assert isinstance(path, (str, os.PathLike)) and Path(path).is_file(), (
        f"{backend.name}: no library at {path!r}"
    )
    ffi = cffi.FFI()
    ffi.cdef("int32_t ggfw_kernels_abi(void); const void *ggfw_kernels(void);")
    library = ffi.dlopen(os.fspath(path))
    for name in ("ggfw_kernels_abi", "ggfw_kernels"):
        assert hasattr(library, name), f"{backend.name}: {path} does not export {name}"
    abi = library.ggfw_kernels_abi()
    assert abi == backend.abi, f"{backend.name}: the library has ABI {abi}, the descriptor says {backend.abi}"
    assert library.ggfw_kernels() != ffi.NULL, f"{backend.name}: {path} has no kernel table"


def _check_descriptor(item: Descriptor, kind: type[Descriptor]) -> None:
    assert isinstance(item, kind), f"expected {kind.__name__}, got {type(item).__name__}"
    problems = item.problems()
    assert not problems, f"{item.name}: {'; '.join(problems)}"
