"""Units that bring a part of the ops, and units that this machine cannot run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernels_linear_twin as twin
import numpy as np
import pytest
from kernels_variants import variant

import ggfw
from ggfw import kernels_c
from ggfw.errors import BackendError
from ggfw.execute.kernel_set import KernelSet
from ggfw.registry import Registry, default_registry

HERE = Path(__file__).parent
QUANTS = HERE / "data" / "quants"
INTEGER = [name for name in twin.KERNELS if name.endswith((":Q8", ":Q16"))]
Q4_1, F16, BF16 = 3, 1, 30

PLUGIN = """
from ggfw import kernels_c
from ggfw.descriptors import KernelBackend
from ggfw.hookspecs import hookimpl

GGFW_PLUGIN_API = 1

@hookimpl
def ggfw_register_kernel_backends():
    return [KernelBackend(name="amx-model", probe=lambda: 60, library=lambda: {path!r})]
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The built-in backends, and the AMX unit with modelled tiles."""
    (tmp_path / "amx_model_backend.py").write_text(PLUGIN.format(path=variant("amx-model")))
    info = tmp_path / "amx_model_backend-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amx-model-backend\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[ggfw]\namx_model = amx_model_backend\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Registry.load(environ={})
    sys.modules.pop("amx_model_backend", None)


def names(found: tuple[Any, Any] | None) -> tuple[str, str]:
    assert found is not None
    f = twin.ffi()
    return tuple(f.string(f.cast("char *", kernel.name)).decode() for kernel in found)  # type: ignore[return-value]


def test_prompt_products_of_a_partial_unit_stand_beside_decode_products(registry: Registry) -> None:
    kernels = KernelSet(registry=registry)
    assert kernels.name == "amx-model"
    assert names(kernels.find("linear", Q4_1)) == ("linear_Q4_1_Q16_avx512", "linear_Q4_1_Q16_amx-model")
    assert names(kernels.find("linear", BF16)) == ("linear_BF16_F32_avx512", "linear_BF16_F32_amx-model")
    assert names(kernels.find("linear", F16)) == ("linear_F16_F32_avx512", "linear_F16_F32_avx512")
    assert names(kernels.find("moe_linear", Q4_1))[1] == "moe_linear_Q4_1_Q16_amx-model"
    int8 = KernelSet(registry=registry, activations="int8")
    assert names(int8.find("linear", Q4_1)) == ("linear_Q4_1_Q8_avx512", "linear_Q4_1_Q8_amx-model")
    exact = KernelSet(registry=registry, activations="f32")
    assert names(exact.find("linear", Q4_1)) == ("linear_Q4_1_F32_avx512",) * 2
    one = KernelSet(registry=registry, deterministic=True)
    assert names(one.find("linear", Q4_1)) == ("linear_Q4_1_Q16_avx512",) * 2
    without = KernelSet("avx512", registry)
    assert names(without.find("linear", Q4_1)) == ("linear_Q4_1_Q16_avx512",) * 2


@pytest.mark.parametrize("name", ["q-llama-Q2_K", "q-llama-small-BF16", "q-mixtral-small-Q8_0"])
def test_logits_of_tiles_are_close_to_those_of_int16(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts through tiles, with rows of decoding beside and after them."""
    path = QUANTS / f"{name}.gguf"
    ids = np.random.default_rng(0).integers(1, 200, 70).tolist()
    monkeypatch.setattr("ggfw.registry._default", registry)
    with ggfw.load(path) as tiles, ggfw.load(path, backend="avx512") as plain:
        got, want = tiles.logits(ids), plain.logits(ids)
        assert not np.array_equal(got, want)
        assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()
        assert list(tiles.greedy(ids, 12)) == list(plain.greedy(ids, 12))


@pytest.mark.slow  # compiles for eight seconds
@pytest.mark.parametrize("name", INTEGER)
def test_avx_vnni_gives_the_bits_of_the_other_units(name: str) -> None:
    """The instruction of AVX-512 stands in for that of AVX-VNNI; integers are exact, floats are summed alike."""
    ours, other = twin.library("avxvnni", variant("avxvnni-evex")), twin.library("avx512")
    n_in = max(twin.FORMATS[twin.base(name)][1], 96)
    rng = np.random.default_rng(5)
    for kind in ("plain", "ones"):
        rows = twin.random_rows(name, 40, n_in, rng, kind)
        x = rng.standard_normal((11, n_in)).astype(np.float32)
        x[0], x[1] = 1, -1
        got = twin.linear(twin.Matrices(ours, name, n_in, [rows]), x)[0]
        np.testing.assert_array_equal(got, twin.linear(twin.Matrices(other, name, n_in, [rows]), x)[0])


def test_a_unit_forced_where_it_cannot_run_says_what_is_missing() -> None:
    """An error, never an illegal instruction."""
    registry = default_registry()
    absent = [name for name in registry.kernel_backends if not registry.score(name)]
    assert absent  # no machine is of both families
    for name in absent:
        with pytest.raises(
            BackendError, match=f"'{name}' cannot be used: cannot run on this machine, which lacks "
        ):
            ggfw.load(QUANTS / "q-llama-small-Q8_0.gguf", backend=name)


@pytest.mark.skipif(
    not kernels_c.built("amx") or not shutil.which("objdump"), reason="needs the AMX unit and objdump"
)
def test_the_amx_unit_has_tile_instructions() -> None:
    """The compiler did not lose them; the probe, which runs everywhere, has no vector registers wider than SSE's."""
    text = subprocess.run(
        ["objdump", "-d", kernels_c.library_path("amx")], capture_output=True, text=True, check=True
    ).stdout
    for name in ("ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored", "tdpbf16ps"):
        assert name in text, name
    probe = text.split("<ask_what_is_missing>:")[1].split("\n\n")[0]
    assert "cpuid" in probe or "call" in probe
    assert "%ymm" not in probe and "%zmm" not in probe


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("qemu-x86_64"), reason="needs qemu-user (apt install qemu-user)")
def test_libraries_open_on_an_old_processor(tmp_path: Path) -> None:
    """Without AVX: every library can be opened and asked; what cannot run says what it lacks."""
    program = tmp_path / "driver"
    command = ["gcc", "-O2", "-std=gnu11", f"-I{kernels_c.get_include()}", str(HERE / "kernels_driver.c")]
    subprocess.run([*command, "-o", str(program), "-ldl"], check=True)
    (tmp_path / "vectors").write_bytes(b"")
    for unit in ("generic", "avx2", "avxvnni", "avx512", "amx"):
        if kernels_c.built(unit):
            arguments = [program, kernels_c.library_path(unit), tmp_path / "vectors", tmp_path / "results"]
            ran = subprocess.run(
                ["qemu-x86_64", "-cpu", "Nehalem", *arguments], capture_output=True, text=True
            )
            assert ran.returncode == (0 if unit == "generic" else 3), (unit, ran)
            assert unit == "generic" or "AVX2" in ran.stdout
