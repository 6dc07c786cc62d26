"""Writing GGUF files, and agreement with the gguf package in both directions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import gguf as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.errors import InvalidRequest
from ggfw.gguf import GGUF, MetadataArray, ValueType, gguf_bytes, values, write_gguf


def plain(value: Any) -> Any:
    return [plain(v) for v in value] if isinstance(value, MetadataArray) else value


_scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.text(max_size=20),
    st.floats(width=32, allow_nan=False),
)
_lists = st.one_of(
    st.lists(st.text(max_size=8), max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.lists(st.booleans(), max_size=20),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=12), st.one_of(_scalars, _lists), max_size=8))
def test_metadata_round_trip(metadata: dict[str, Any]) -> None:
    metadata.pop("general.alignment", None)
    raw = gguf_bytes(metadata)
    read = GGUF.open(raw).metadata
    assert {key: plain(value) for key, value in read.items()} == metadata
    assert gguf_bytes(read) == raw


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, ValueType.U32),
        (-3, ValueType.I32),
        (2**32, ValueType.U64),
        (-(2**40), ValueType.I64),
        (0.5, ValueType.F32),
        (True, ValueType.BOOL),
        ("x", ValueType.STRING),
        (np.int16(4), ValueType.I16),
        (np.float64(4), ValueType.F64),
        (values.U8(4), ValueType.U8),
    ],
)
def test_scalar_types(value: Any, expected: ValueType) -> None:
    metadata = GGUF.open(gguf_bytes({"k": value})).metadata
    assert metadata.value_type("k") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([1, 2], ValueType.I32),
        ([1, 2**31], ValueType.U32),
        ([-1, 2**31], ValueType.I64),
        ([2**63], ValueType.U64),
        ([1, 0.5], ValueType.F32),
        (["a"], ValueType.STRING),
        ([True], ValueType.BOOL),
        (np.array([1], np.uint16), ValueType.U16),
        (np.array([True]), ValueType.BOOL),
        (values.U64([1]), ValueType.U64),
    ],
)
def test_array_types(value: Any, expected: ValueType) -> None:
    assert GGUF.open(gguf_bytes({"k": value})).metadata["k"].value_type == expected


@pytest.mark.parametrize(
    "value", [values.U8(256), values.U8([1, -1]), None, [1, "a"], {"a": 1}, 2**64, values.U8("x")]
)
def test_values_without_counterpart(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="'k'"):
        gguf_bytes({"k": value})


@pytest.mark.parametrize(
    "tensors",
    [
        [("w", np.zeros(4, np.float32)), ("w", np.zeros(4, np.float32))],
        [("", np.zeros(4, np.float32))],
        [("n" * 64, np.zeros(4, np.float32))],
        [("w", np.zeros(4, np.complex64))],
        [("w", np.zeros((1, 1, 1, 1, 4), np.float32))],
        [("w", (bytes(18), (31,), "Q4_0"))],
        [("w", (bytes(18), (32,), "Q9_9"))],
        [("w", (bytes(17), (32,), "Q4_0"))],
    ],
)
def test_impossible_tensors(tensors: Any) -> None:
    with pytest.raises(InvalidRequest):
        gguf_bytes({}, tensors)


def test_all_kinds_of_payload(tmp_path: Path) -> None:
    block = bytes(range(18))
    first = gguf_bytes(
        {}, [("q", (block, (1, 32), "Q4_0")), ("lazy", (lambda: block, (32,), 2))], alignment=64
    )
    gguf = GGUF.open(first)
    assert gguf.alignment == 64
    buffer = io.BytesIO()
    turned = np.arange(6, dtype=">f4").reshape(2, 3).T
    write_gguf(buffer, gguf.metadata, [("copy", gguf.tensors["q"]), ("turned", turned)])
    again = GGUF.open(buffer.getvalue())
    assert again.alignment == 32
    assert again.tensors["copy"].data.tobytes() == block
    assert np.array_equal(again.tensors["turned"].data.view("<f4").reshape(3, 2), turned)


def test_gguf_package_reads_ours(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tokens = ["a", "ß", "▁x"]
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    write_gguf(
        path,
        {"general.architecture": "llama", "tokenizer.ggml.tokens": tokens, "x.count": 5},
        [
            ("m.weight", matrix),
            ("h.weight", matrix.astype(np.float16)),
            ("q.weight", (bytes(36), (2, 32), "Q4_0")),
        ],
        alignment=128,
    )
    theirs = reference.GGUFReader(path)
    assert theirs.fields["x.count"].contents() == 5
    assert theirs.fields["tokenizer.ggml.tokens"].contents() == tokens
    by_name = {t.name: t for t in theirs.tensors}
    assert np.array_equal(by_name["m.weight"].data, matrix)
    assert by_name["h.weight"].data.dtype == np.float16
    assert by_name["q.weight"].shape.tolist() == [32, 2]


def test_ours_reads_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = reference.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    writer.add_float64("x.f64", 0.1)
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    writer.add_tensor("m.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUF.open(path) as ours:
        assert ours.architecture == "llama" and ours.arch_get("block_count") == 3
        assert ours.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
        assert ours.metadata["x.f64"] == 0.1
        assert ours.tensors["m.weight"].shape == (4, 6)
        assert np.array_equal(ours.tensors["m.weight"].data.view("<f4").reshape(4, 6), matrix)
