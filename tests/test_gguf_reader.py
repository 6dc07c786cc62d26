"""Reading GGUF files: good ones, and every way of being damaged that must end in GGUFError."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.errors import GGUFError, ModelNotFound, UnknownQuantFormat
from ggfw.gguf import GGUF, MetadataArray, ValueType, gguf_bytes, values
from ggfw.gguf.strings import decode_strings, raw_strings, scan_strings


def header(n_tensors: int, n_pairs: int, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_pairs)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def record(name: str, dims: list[int], ggml_type: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, ggml_type, offset)


def padded(head: bytes, alignment: int = 32) -> bytes:
    return head + bytes(-len(head) % alignment)


def small_model(**changes: object) -> bytes:
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.tokens": ["<s>", "", "é", "a" * 300],
        "tokenizer.ggml.scores": np.array([0, -1, -2, -3], np.float32),
        "tokenizer.ggml.add_bos_token": True,
    }
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    # The last tensor fills its alignment unit, so every proper prefix of the file lacks something.
    return gguf_bytes(
        metadata | changes, [("a.weight", matrix), ("b.weight", np.arange(8, dtype=np.float32))]
    )


def refused(data: bytes, *words: str) -> str:
    with pytest.raises(GGUFError) as caught:
        GGUF.open(data)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    return message


def test_reads_values_and_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_model())
    with GGUF.open(path) as gguf:
        assert gguf.architecture == "llama"
        assert gguf.version == 3 and gguf.alignment == 32 and gguf.path == path
        assert gguf.arch_get("block_count") == 2 and gguf.arch_get("nothing", 7) == 7
        assert gguf.get("tokenizer.ggml.add_bos_token") is True
        assert gguf.metadata.value_type("llama.block_count") == ValueType.U32
        tensor = gguf.tensors["a.weight"]
        assert (tensor.shape, tensor.type_name, tensor.n_bytes, tensor.shard) == ((3, 4), "F32", 48, 0)
        assert tensor.data.view("<f4").tolist() == list(range(12))
        assert not tensor.data.flags.writeable
        assert np.shares_memory(tensor.data, gguf.tensors["a.weight"].data)
        assert list(gguf.tensors) == ["a.weight", "b.weight"]


def test_arrays_are_lazy_sequences() -> None:
    gguf = GGUF.open(small_model(x=values.U8([1, 2, 255]), flags=[True, False], nested=[[1, 2], [3]]))
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, MetadataArray) and len(tokens) == 4
    assert tokens[2] == "é" and tokens[-1] == "a" * 300 and tokens[1:3] == ["", "é"]
    assert tokens == ["<s>", "", "é", "a" * 300]
    assert tokens.strings() == list(tokens)
    assert tokens.raw()[2] == "é".encode()
    with pytest.raises(IndexError):
        tokens[4]
    scores = gguf.metadata["tokenizer.ggml.scores"]
    assert scores.numpy().dtype == np.float32 and scores[-1] == -3.0
    with pytest.raises(TypeError, match="F32"):
        scores.strings()
    assert gguf.metadata["x"].numpy().tolist() == [1, 2, 255]
    assert gguf.metadata["flags"].list() == [True, False]
    assert [inner.list() for inner in gguf.metadata["nested"]] == [[1, 2], [3]]


def test_views_outlive_close(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_model())
    gguf = GGUF.open(path)
    view, tokens = gguf.tensors["b.weight"].data, gguf.metadata["tokenizer.ggml.tokens"]
    gguf.close()
    assert view.view("<f4")[7] == 7 and tokens[0] == "<s>"


def test_version_2_is_read() -> None:
    assert GGUF.open(gguf_bytes({"general.architecture": "x"}, version=2)).version == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["magic"]),
        (b"GGU", ["magic"]),
        (b"PK\x03\x04 and so on", ["magic", "not a GGUF file"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["Git LFS"]),
        (b"tjgg" + bytes(40), ["before GGUF"]),
        (struct.pack("<4sIII", b"GGUF", 1, 0, 0), ["version 1", "byte 4"]),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), ["big-endian"]),
        (header(0, 0, version=4), ["version 4"]),
    ],
)
def test_other_files_are_named(data: bytes, words: list[str]) -> None:
    refused(data, *words)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"gone\.gguf"):
        GGUF.open(tmp_path / "gone.gguf")
    with pytest.raises(GGUFError, match="folder"):
        GGUF.open(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match="empty"):
        GGUF.open(tmp_path / "empty.gguf")


# gguf-1: counts and lengths are checked before anything is allocated


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(0, 1) + struct.pack("<Q", 2**64 - 1), ["metadata count", "byte 16"]),
        (
            header(0, 1) + struct.pack("<Q", 2**64 - 1) + bytes(32),
            ["name of metadata key 0 length", "byte 24"],
        ),
        (header(0, 1) + text("a") + struct.pack("<IIQ", 9, 0, 2**62), ["element count", "'a'", "byte 41"]),
        (header(0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 2**61), ["element count", "'a'"]),
        (header(0, 2**63) + bytes(64), ["metadata count", "byte 16"]),
        (header(2**62, 0) + bytes(64), ["tensor count", "byte 8"]),
        (header(0, 1) + text("a") + struct.pack("<IQ", 8, 2**40), ["'a'", "byte 37"]),
        (header(0, 1) + text("a") + struct.pack("<I", 13), ["value type", "13"]),
        (header(0, 1) + text("a") + struct.pack("<IIQ", 9, 99, 0), ["value type", "99"]),
        (header(0, 1) + text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 30, ["nested"]),
        (header(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 0), ["UTF-8"]),
    ],
)
def test_absurd_lengths(data: bytes, words: list[str]) -> None:
    tracemalloc.start()
    begin = time.perf_counter()
    refused(data, *words)
    assert time.perf_counter() - begin < 0.5
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


# gguf-2: sizes do not wrap


@pytest.mark.parametrize(
    "dims", [[2**42 + 1, 2**22], [2**32, 2**32], [2**63], [2**63, 0], [1, 1, 1, 1, 1], [4, 2**22 + 1]]
)
def test_impossible_shapes(dims: list[int]) -> None:
    refused(padded(header(1, 0) + record("big.weight", dims, 0, 0)) + bytes(16 << 20), "big.weight")


def test_rows_must_fill_blocks() -> None:
    refused(padded(header(1, 0) + record("w", [33, 2], 2, 0)) + bytes(4096), "'w'", "33", "Q4_0")


# gguf-3: alignment


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (values.U32(0), "power of two"),
        (values.U32(3), "power of two"),
        (values.U32(2**31 + 1), "power of two"),
        (values.I32(32), "U32"),
        ("32", "U32"),
    ],
)
def test_bad_alignment(value: object, word: str) -> None:
    from ggfw.gguf.values import encode_string, encode_value

    key = "general.alignment"
    refused(padded(header(0, 1) + encode_string(key) + encode_value(key, value)), key, word)


# gguf-4: duplicates, truncation, misplaced tensors


def test_duplicates() -> None:
    twice = record("token_embd.weight", [8], 0, 0) + record("token_embd.weight", [8], 0, 32)
    refused(padded(header(2, 0) + twice) + bytes(64), "token_embd.weight", "twice")
    pair = text("a.b") + struct.pack("<IB", 0, 1)
    refused(header(0, 2) + pair + pair, "a.b", "twice")


def test_every_prefix_is_refused() -> None:
    data = small_model()
    assert len(data) < 2048
    for end in range(len(data)):
        with pytest.raises(GGUFError, match=r"byte|bytes"):
            GGUF.open(data[:end])
    assert len(GGUF.open(data).tensors) == 2


def test_misplaced_tensors() -> None:
    refused(padded(header(1, 0) + record("w", [8], 0, 8)) + bytes(64), "'w'", "alignment")
    both = record("first", [16], 0, 0) + record("second", [8], 0, 32)
    refused(padded(header(2, 0) + both) + bytes(64), "first", "overlap", "second")
    refused(padded(header(1, 0) + record("w", [8], 0, 2**62)) + bytes(64), "'w'", "do not fit")


def test_unknown_types_are_listed_and_sized() -> None:
    records = record("new", [256], 77, 0) + record("known", [8], 0, 128) + record("last", [256, 2], 200, 160)
    gguf = GGUF.open(padded(header(3, 0) + records) + bytes(160 + 64))
    new, last = gguf.tensors["new"], gguf.tensors["last"]
    assert (new.type_name, new.n_bytes, new.known) == ("unknown(77)", 128, False)
    assert (last.type_name, last.n_bytes) == ("unknown(200)", 64)
    from ggfw import quants

    with pytest.raises(UnknownQuantFormat, match="77"):
        quants.dequantize(new.ggml_type, new.data, new.shape)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_bytes_never_crash(data: st.DataObject) -> None:
    raw = bytearray(small_model())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from([0, 1, 7, 9, 127, 128, 255]))
    try:
        gguf = GGUF.open(bytes(raw))
    except GGUFError as error:
        assert len(str(error)) < 1000
        return
    for value in gguf.metadata.values():
        if isinstance(value, MetadataArray):
            value.list()
    for tensor in gguf.tensors.values():
        assert len(tensor.data) == tensor.n_bytes


# String arrays: the vectorised scan must equal the plain walk on everything


def _fail(problem: str, at: int) -> None:
    raise GGUFError(f"{problem} at {at}")


_strings = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [
                b"",
                b"\0" * 9,
                b"\x01" + b"\0" * 7,
                b"\0" * 40,
                b"x" * 255,
                b"y" * 256,
                b"z" * 70000,
                b"\xff\xfe",
            ]
        ),
    ),
    max_size=400,
)


@settings(max_examples=150, deadline=None)
@given(_strings, st.binary(max_size=20), st.binary(max_size=20), st.integers(1, 3))
def test_string_scan_equals_plain_walk(items: list[bytes], before: bytes, after: bytes, repeat: int) -> None:
    items = items * repeat
    body = b"".join(struct.pack("<Q", len(s)) + s for s in items)
    data = np.frombuffer(before + body + after, np.uint8)
    heads = scan_strings(data, len(before), len(items), _fail)
    expected = [len(before)]
    for s in items:
        expected.append(expected[-1] + 8 + len(s))
    assert heads.tolist() == expected
    assert raw_strings(data, heads) == items
    assert [s.encode("utf-8", "surrogateescape") for s in decode_strings(data, heads)] == items
    if items:
        with pytest.raises(GGUFError, match="string"):
            scan_strings(data[: len(before) + len(body) - 1], len(before), len(items), _fail)


def test_large_vocabulary_opens_at_once(tmp_path: Path) -> None:
    tokens = [f"▁word{i}" for i in range(262_144)]
    path = tmp_path / "big.gguf"
    path.write_bytes(gguf_bytes({"general.architecture": "x", "tokenizer.ggml.tokens": tokens}))
    took = []
    for _ in range(3):
        begin = time.perf_counter()
        gguf = GGUF.open(path)
        took.append(time.perf_counter() - begin)
    assert min(took) < 0.1  # a plain loop in Python needs about 0.05 s on a fast machine, this about 0.01 s
    assert gguf.metadata["tokenizer.ggml.tokens"][262_143] == tokens[-1]
    assert gguf.metadata["tokenizer.ggml.tokens"].strings() == tokens


@pytest.mark.parametrize("item", ["", "\0" * 9])
def test_strings_of_zeros_take_no_longer_than_a_plain_walk(item: str) -> None:
    data = gguf_bytes({"general.architecture": "x", "strings": [item] * 200_000})
    begin = time.perf_counter()
    for _ in range(200_000):
        struct.unpack_from("<Q", data, 40)
    walk = time.perf_counter() - begin
    begin = time.perf_counter()
    assert len(GGUF.open(data).metadata["strings"]) == 200_000
    assert time.perf_counter() - begin < 8 * walk + 0.05


def test_what_is_no_plain_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(GGUFError, match="not a file"):
        GGUF.open(tmp_path / "m.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    with pytest.raises(GGUFError, match="loop.gguf"):
        GGUF.open(tmp_path / "loop.gguf")


def test_messages_do_not_repeat_endless_names() -> None:
    long = "n" * 100_000
    data = gguf_bytes({"general.architecture": "x", long: 1, long + "2": 1})
    assert len(refused(data.replace(long.encode() + b"2", long.encode() + b"\xff"), "UTF-8")) < 400
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", len(long)) + long.encode()
    assert len(refused(head + struct.pack("<I", 99), "not a GGUF value type")) < 400
