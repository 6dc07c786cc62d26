"""Writing quantised files: errors of the encoders, recipes, importance matrices, whole files."""

from __future__ import annotations

import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ggfw
from ggfw import quants
from ggfw.errors import InvalidRequest
from ggfw.gguf import GGUF, write_gguf
from ggfw.gguf.values import F32, I32, U32, U64, encode_value
from ggfw.quantize import RECIPES, encodable, encode, quantize_file, read_importance, recipe
from ggfw.quantize.crew import Job, Scratch, run_jobs

DATA = Path(__file__).parent / "data"

#: Relative root mean square error of Gaussian values, the encoders' figure plus a tenth.
BOUNDS = {
    "Q4_0": 0.090, "Q4_1": 0.077, "Q5_0": 0.0445, "Q5_1": 0.0372, "Q8_0": 0.0059, "Q2_K": 0.293, "Q3_K": 0.160,
    "Q4_K": 0.0775, "Q5_K": 0.0382, "Q6_K": 0.0191, "IQ4_NL": 0.0812, "IQ4_XS": 0.0819,
}  # fmt: skip


def decoded(fmt: str, blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return quants.dequantize(fmt, blocks.reshape(-1), shape)


@pytest.mark.parametrize("fmt", BOUNDS)
@pytest.mark.parametrize("n_rows", [1, 7])
def test_the_error_of_gaussian_values_is_small(fmt: str, n_rows: int) -> None:
    x = np.random.default_rng(1).standard_normal((n_rows, 1280)).astype(np.float32) * 0.02
    error = decoded(fmt, encode(fmt, x), x.shape) - x
    assert np.sqrt((error**2).mean()) / 0.02 < BOUNDS[fmt] * (1.25 if n_rows == 1 else 1.0)


@pytest.mark.parametrize("fmt", [f for f in BOUNDS if f in {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}])
def test_the_search_beats_the_simple_quantiser(fmt: str) -> None:
    x = np.random.default_rng(2).standard_normal((16, 512)).astype(np.float32)

    def error(blocks: np.ndarray) -> float:
        return float(((decoded(fmt, blocks, x.shape) - x) ** 2).sum())

    assert error(encode(fmt, x)) <= error(quants.quantize(fmt, x)) * 1.0001


@pytest.mark.parametrize("fmt", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"])
def test_what_was_quantised_before_comes_back(fmt: str) -> None:
    """Many a file in floats was made from a quantised one; blocks whose smallest integer may be 0 or 1 fit twice."""
    x = (np.random.default_rng(1).standard_normal((256, 2048)) * 0.02).astype(np.float32)
    once = decoded(fmt, encode(fmt, x), x.shape)
    assert (decoded(fmt, encode(fmt, once), x.shape) == once).all()


@pytest.mark.parametrize("fmt", BOUNDS)
@pytest.mark.parametrize("kind", ["zeros", "constant", "one spike", "tiny", "huge", "positive"])
def test_extreme_blocks_stay_finite_and_near(fmt: str, kind: str) -> None:
    x = np.random.default_rng(3).standard_normal((2, 256)).astype(np.float32)
    x = {
        "zeros": x * 0,
        "constant": x * 0 + np.float32(0.3),
        "one spike": np.where(np.arange(256) == 77, np.float32(50), x * np.float32(0.001)),
        "tiny": x * np.float32(1e-38),
        "huge": x * np.float32(1e4),
        "positive": np.abs(x) + np.float32(5),
    }[kind].astype(np.float32)
    y = decoded(fmt, encode(fmt, x), x.shape)
    assert np.isfinite(y).all()
    assert np.abs(y - x).max() <= np.abs(x).max() * (0.75 if fmt in {"Q2_K", "Q3_K"} else 0.25) + 1e-30


@pytest.mark.parametrize("fmt", ["Q4_0", "Q5_1", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS"])
def test_important_columns_are_kept_better(fmt: str) -> None:
    x = np.random.default_rng(4).standard_normal((32, 512)).astype(np.float32)
    importance = np.where(np.arange(512) % 8 == 0, 100.0, 0.01).astype(np.float32)
    plain = (decoded(fmt, encode(fmt, x), x.shape) - x)[:, ::8]
    aware = (decoded(fmt, encode(fmt, x, importance), x.shape) - x)[:, ::8]
    assert (aware**2).mean() < 0.9 * (plain**2).mean()


def test_what_cannot_be_encoded_is_refused() -> None:
    x = np.zeros((2, 256), np.float32)
    x[1, 3] = np.inf
    with pytest.raises(InvalidRequest, match="infinity or a NaN"):
        encode("Q4_K", x)
    with pytest.raises(InvalidRequest, match="rows of 100 elements"):
        encode("Q4_K", np.zeros((1, 100), np.float32))
    with pytest.raises(InvalidRequest, match="shape"):
        encode("Q4_K", np.zeros((1, 256), np.float32), np.ones(255, np.float32))
    assert not encodable("IQ1_S")
    with pytest.raises(InvalidRequest, match="can be read but not made"):
        encode("IQ1_S", np.zeros((1, 256), np.float32))


@pytest.mark.parametrize(
    "fmt", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_XS", "F16"]
)
def test_values_beyond_the_scales_of_a_format_are_refused(fmt: str) -> None:
    """They would come back as infinities, NaN or zeros."""
    x = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)
    x[2, 300:] *= 1e25
    with pytest.raises(InvalidRequest, match=f"too large for {fmt}"):
        encode(fmt, x)
    x[2, 300:] = 6e4
    assert np.isfinite(decoded(fmt, encode(fmt, x), x.shape)).all()


@pytest.mark.parametrize("fmt", BOUNDS)
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_large_values_are_kept_or_refused(fmt: str, sign: int) -> None:
    """A fitted offset may leave float16 where no value does: Q4_1 and Q5_1 gave infinities from about 62,000 on."""
    rng = np.random.default_rng(9)
    shape = rng.uniform(0.2, 1.0, (4, 512)) * (sign or rng.choice([-1, 1], (4, 512)))
    refused = []
    for top in (
        1.6e4,
        1.7e4,
        5.8e4,
        6.2e4,
        6.4e4,
        65_504,
        7e4,
        1e5,
        3e5,
        1e6,
        1e7,
        1e9,
        1e12,
        1e19,
        1e30,
        3e38,
    ):
        x = (shape * (top / np.abs(shape).max())).astype(np.float32)
        try:
            y = decoded(fmt, encode(fmt, x), x.shape)
        except InvalidRequest as exc:
            assert f"too large for {fmt}" in str(exc)
            refused.append(top)
            continue
        assert not refused, "larger ones were refused"
        assert np.sqrt(((y - x) ** 2).mean()) < 0.2 * top, top
    assert refused and refused[0] > 65_504


@pytest.mark.parametrize("fmt", BOUNDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_none_is_found_wherever_it_stands(fmt: str, value: float) -> None:
    for at in (0, 31, 255, 256 * 17 - 1):
        x = np.full((17, 256), 0.5, np.float32)
        x.reshape(-1)[at] = value
        with pytest.raises(InvalidRequest, match="infinity or a NaN"):
            encode(fmt, x)


def test_recipes_know_their_names() -> None:
    assert recipe("q4_k_m") is RECIPES["Q4_K_M"] is recipe("Q4_K")
    with pytest.raises(InvalidRequest, match="did you mean Q4_K_M"):
        recipe("Q4_K_MM")
    q4 = RECIPES["Q4_K_M"]
    layers = [q4.format_of(f"blk.{i}.ffn_down.weight", 16, is_output=False) for i in range(16)]
    assert layers == ["Q6_K" if i < 2 or i >= 14 or (i - 2) % 3 == 2 else "Q4_K" for i in range(16)]
    assert q4.format_of("output.weight", 16, is_output=True) == "Q6_K"


@pytest.mark.parametrize("fmt", ["Q4_0", "Q6_K", "F16"])
def test_blocks_are_written_where_they_are_wanted(fmt: str) -> None:
    x = np.random.default_rng(6).standard_normal((3, 5, 256)).astype(np.float32)
    wanted = encode(fmt, x)
    out = np.full(wanted.shape, 0xAA, np.uint8)
    assert encode(fmt, x, out=out) is out and (out == wanted).all()
    for wrong in (np.empty((15, wanted.shape[-1]), np.uint8), out.view(np.int8), out[:, ::-1]):
        with pytest.raises(InvalidRequest, match="out must be a C-contiguous uint8 array"):
            encode(fmt, x, out=wrong)


def test_rows_of_any_number_are_encoded_one_by_one_alike() -> None:
    """Blocks are searched 16 at a time: those that fill no sixteen are the same as in company."""
    x = np.random.default_rng(7).standard_normal((40, 256)).astype(np.float32)
    for fmt in BOUNDS:
        whole = encode(fmt, x)
        for n_rows in (1, 3, 17):
            assert (encode(fmt, x[:n_rows]) == whole[:n_rows]).all(), (fmt, n_rows)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A file with rows of 256 and of 96, three experts, a norm and a router."""
    rng = np.random.default_rng(5)
    path = tmp_path / "wide.gguf"
    shapes = {
        "token_embd.weight": (40, 256),
        "blk.0.attn_v.weight": (32, 256),
        "blk.0.attn_q.weight": (32, 96),
        "blk.0.ffn_down_exps.weight": (3, 16, 256),
        "blk.0.ffn_gate_inp.weight": (3, 256),
        "blk.0.attn_norm.weight": (256,),
    }
    tensors = [(n, rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()]
    write_gguf(path, {"general.architecture": "llama", "general.name": "wide"}, tensors)
    return path


def test_a_file_gets_the_formats_of_its_recipe(wide: Path, tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    made = quantize_file(
        wide,
        tmp_path / "q.gguf",
        "Q4_K_M",
        overrides={"attn_v": "Q8_0"},
        threads=2,
        progress=lambda *a: said.append(a),
    )
    assert made.formats == {
        "token_embd.weight": "Q6_K",
        "blk.0.attn_v.weight": "Q8_0",
        "blk.0.attn_q.weight": "Q5_0",
        "blk.0.ffn_down_exps.weight": "Q6_K",
        "blk.0.ffn_gate_inp.weight": "F32",
        "blk.0.attn_norm.weight": "F32",
    }
    assert made.narrowed == ("blk.0.attn_q.weight",)
    assert (
        said[-1][1]
        == said[-1][2]
        == sum(np.prod(t) for t in [(40, 256), (32, 256), (32, 96), (3, 16, 256), (3, 256), (256,)])
    )
    with GGUF.open(wide) as before, GGUF.open(made.path) as after:
        assert after.metadata["general.file_type"] == 15
        assert after.metadata["general.name"] == "wide"
        assert made.bytes == sum(t.n_bytes for t in after.tensors.values())
        for name, tensor in after.tensors.items():
            x = quants.dequantize("F32", before.tensors[name].data, before.tensors[name].shape)
            y = quants.dequantize(tensor.ggml_type, tensor.data, tensor.shape)
            assert np.sqrt(((x - y) ** 2).mean()) < 0.05


def test_formats_for_what_is_no_matrix_are_refused(wide: Path, tmp_path: Path) -> None:
    for name, said in (
        ("attn_norm", "'blk.0.attn_norm.weight' is no matrix"),
        ("attn_vv", "no tensor is called 'attn_vv'"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            quantize_file(wide, tmp_path / "q.gguf", "Q4_0", overrides={"attn_v": "Q8_0", name: "Q8_0"})
    assert [p.name for p in tmp_path.iterdir()] == ["wide.gguf"]


def test_names_may_look_like_layers(tmp_path: Path) -> None:
    source, x = tmp_path / "s.gguf", np.ones((2, 32), np.float32)
    names = [
        "blk.x.attn_q.weight",
        "blk.",
        "blk.99999999999999999999.attn_q.weight",
        "blk.1attn.weight",
        "blk.\u0663.a.weight",
    ]
    write_gguf(source, {"general.architecture": "llama"}, [(name, x) for name in names])
    made = quantize_file(source, tmp_path / "q.gguf", "Q4_0")
    assert made.formats == {name: "F32" if name == "blk." else "Q4_0" for name in names}


def test_threads_do_not_change_the_file(wide: Path, tmp_path: Path) -> None:
    files = [
        quantize_file(wide, tmp_path / f"{n}.gguf", "Q3_K_M", threads=n).path.read_bytes() for n in (1, 3)
    ]
    assert files[0] == files[1]


def test_floats_need_not_be_aligned_in_the_file(wide: Path, tmp_path: Path) -> None:
    with GGUF.open(wide) as gguf:
        tensors = [(t.name, quants.dequantize("F32", t.data, t.shape)) for t in gguf.tensors.values()]
    odd = tmp_path / "odd.gguf"
    for name in ("w", "wi", "wid", "wide"):  # one of the lengths puts the data at an odd byte
        write_gguf(odd, {"general.architecture": "llama", "general.name": name}, tensors, alignment=1)
        with GGUF.open(odd) as gguf, GGUF.open(quantize_file(odd, tmp_path / "q", "Q4_K_M").path) as made:
            found = {t.name: t.data.tobytes() for t in made.tensors.values()}
            if gguf.tensors["token_embd.weight"].offset % 4 == 1:
                break
    else:
        raise AssertionError("none lies at an odd byte")
    with GGUF.open(quantize_file(wide, tmp_path / "even", "Q4_K_M").path) as made:
        assert found == {t.name: t.data.tobytes() for t in made.tensors.values()}


def test_metadata_is_copied_undecoded(tmp_path: Path) -> None:
    """Byte for byte, also what is no text; and a vocabulary becomes no Python objects."""
    words = [f"w{i}" for i in range(300)] + ["", "\0" * 9, "\udcff\udc80", "x" * 300, "\u00e9"]
    keys = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": F32([0.5, -1.0]),
        "tokenizer.ggml.token_type": I32([1, 2, 3]),
        "some.flags": [True, False],
        "some.empty": U64([]),
        "some.nested": [[1, 2], [3]],
        "general.alignment": U32(64),
    }
    source, x = tmp_path / "s.gguf", np.ones((2, 32), np.float32)
    write_gguf(source, keys, [("blk.0.attn_q.weight", x)], alignment=64)
    with GGUF.open(source) as gguf:
        raw = gguf.metadata["tokenizer.ggml.tokens"].raw()
        copied = encode_value("k", gguf.metadata["tokenizer.ggml.tokens"])
        assert gguf.metadata["tokenizer.ggml.tokens"]._items is None
        assert copied == encode_value("k", words)
    with GGUF.open(quantize_file(source, tmp_path / "q.gguf", "Q8_0").path) as made:
        assert made.metadata["tokenizer.ggml.tokens"].raw() == raw
        for key, value in keys.items():
            if key != "general.alignment":
                found = made.metadata[key]
                wanted = value.value if hasattr(value, "value") else value
                assert found == wanted if not key.endswith("nested") else [list(a) for a in found] == wanted


def test_the_first_failure_ends_all_threads() -> None:
    begun: list[int] = []

    def jobs() -> Iterator[Job]:
        for i in range(1000):

            def job(scratch: Scratch, i: int = i) -> None:
                begun.append(i)
                assert len(scratch.bytes(i)) == i
                if i == 20:
                    raise InvalidRequest("twenty", "i")
                time.sleep(0.001)

            yield job

    n_threads = threading.active_count()
    with pytest.raises(InvalidRequest, match="twenty"):
        run_jobs(jobs(), 3)
    assert 21 <= len(begun) < 100 and threading.active_count() == n_threads
    with pytest.raises(ZeroDivisionError):
        run_jobs((lambda _: None for i in (1, 0) if 1 // i), 2)
    done: list[int] = []
    run_jobs((lambda _, i=i: done.append(i) for i in range(50)), 4)
    assert sorted(done) == list(range(50))


def test_only_a_few_tensors_are_in_memory(tmp_path: Path) -> None:
    """The pieces that the threads have in hand."""
    rng = np.random.default_rng(8)
    source = tmp_path / "many.gguf"
    x = rng.standard_normal((512, 1024)).astype(np.float32)
    write_gguf(source, {"general.architecture": "llama"}, [(f"blk.{i}.ffn_up.weight", x) for i in range(24)])
    quantize_file(source, tmp_path / "first.gguf", "Q8_0")  # what is loaded once is no part of it
    tracemalloc.start()
    try:
        made = quantize_file(source, tmp_path / "q.gguf", "Q8_0", threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * made.bytes / 24 < x.nbytes


def test_importance_of_both_forms(wide: Path, tmp_path: Path) -> None:
    columns = np.arange(256, dtype=np.float32)
    experts = np.stack([columns, columns[::-1], columns * 0 + 1])
    names = {"blk.0.attn_v.weight": columns, "blk.0.ffn_down_exps.weight": experts}
    old = tmp_path / "old.dat"
    parts = [struct.pack("<i", len(names))]
    for name, values in names.items():
        parts += [
            struct.pack("<i", len(name)),
            name.encode(),
            struct.pack("<ii", 2, values.size),
            (values * 2).tobytes(),
        ]
    old.write_bytes(b"".join(parts))
    new = tmp_path / "new.gguf"
    tensors = []
    for name, values in names.items():
        counts = np.full((values.size // 256, 1), 4, np.float32)
        tensors += [(f"{name}.in_sum2", values.reshape(-1, 256) * 4), (f"{name}.counts", counts)]
    write_gguf(new, {"general.type": "imatrix"}, tensors)
    for path in (old, new):
        found = read_importance(path)
        assert np.allclose(found.of("blk.0.attn_v.weight", (32, 256)), columns)
        assert np.allclose(found.of("blk.0.ffn_down_exps.weight", (3, 16, 256)), experts)
        assert found.of("token_embd.weight", (40, 256)) is None
        with pytest.raises(InvalidRequest, match="another model"):
            found.of("blk.0.attn_v.weight", (32, 128))
    a = quantize_file(wide, tmp_path / "a.gguf", "Q4_K_M", importance=read_importance(old)).path.read_bytes()
    b = quantize_file(wide, tmp_path / "b.gguf", "Q4_K_M").path.read_bytes()
    assert a != b
    for cut in range(0, old.stat().st_size, 97):
        old.write_bytes(b"".join(parts)[:cut])
        with pytest.raises(InvalidRequest):
            read_importance(old)


def test_a_failed_run_leaves_no_file(wide: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    x = np.zeros((32, 256), np.float32)
    x[3, 4] = np.nan
    write_gguf(bad, {"general.architecture": "llama"}, [("blk.0.attn_v.weight", x)])
    with pytest.raises(InvalidRequest, match=r"blk\.0\.attn_v\.weight.*NaN"):
        quantize_file(bad, tmp_path / "never.gguf", "Q4_K_M")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.gguf", "wide.gguf"]
    with pytest.raises(InvalidRequest, match="onto itself"):
        quantize_file(wide, wide, "Q8_0")


def test_a_quantised_model_runs(tmp_path: Path) -> None:
    source = DATA / "models" / "llama.gguf"
    made = quantize_file(source, tmp_path / "q8.gguf", "Q8_0")
    ids = [1, 5, 9, 30, 7]
    with ggfw.load(source, kv_type="f32") as before, ggfw.load(made.path, kv_type="f32") as after:
        a, b = before.logits(ids), after.logits(ids)
    assert np.abs(a - b).max() < 0.05 * np.abs(a).max()
