"""Files whose tensors are made in place, piece by piece."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ggfw.errors import InvalidRequest
from ggfw.gguf import write_gguf
from ggfw.gguf.writer import write_in_place

KEYS = {"general.architecture": "llama", "general.name": "pieces"}


@pytest.mark.parametrize("alignment", [1, 32, 4096])
@pytest.mark.parametrize("by_position", [True, False])
def test_pieces_in_any_order_make_the_file_that_is_written_at_once(
    tmp_path: Path, alignment: int, by_position: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_position:
        monkeypatch.delattr(os, "pwrite", raising=False)  # as where the system has none
    rng = np.random.default_rng(1)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (
        ("a", (3, 5)), ("b", (7,)), ("none", (0, 4)), ("c", (2, 3, 4)),
    )}  # fmt: skip
    at_once, pieces = tmp_path / "once.gguf", tmp_path / "pieces.gguf"
    write_gguf(at_once, KEYS, list(arrays.items()), alignment=alignment)
    pieces.write_bytes(b"what was there before")
    laid_out = [(name, x.shape, "F32") for name, x in arrays.items()]
    with write_in_place(pieces, KEYS, laid_out, alignment=alignment) as region:
        spans = [(name, at) for name, x in arrays.items() for at in range(0, x.nbytes, 10)]
        for i in rng.permutation(len(spans)):
            name, at = spans[i]
            region.write(name, at, arrays[name].tobytes()[at : at + 10])
        assert pieces.read_bytes() == b"what was there before"
    assert pieces.read_bytes() == at_once.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["once.gguf", "pieces.gguf"]


def test_a_file_without_tensors(tmp_path: Path) -> None:
    write_gguf(tmp_path / "once.gguf", KEYS)
    with write_in_place(tmp_path / "pieces.gguf", KEYS, []):
        pass
    assert (tmp_path / "pieces.gguf").read_bytes() == (tmp_path / "once.gguf").read_bytes()


def test_what_does_not_lie_in_its_tensor_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    for begin, count in ((0, 81), (79, 2), (-1, 1), (81, 0)):
        with (
            pytest.raises(InvalidRequest, match="tensor 'a' has 80 bytes"),
            write_in_place(tmp_path / "x.gguf", KEYS, [("a", (4, 5), "F32"), ("b", (4,), "F32")]) as region,
        ):
            region.write("a", begin, bytes(count))
        assert not list(tmp_path.iterdir())
    with (
        pytest.raises(InvalidRequest, match="given twice"),
        write_in_place(tmp_path / "x", KEYS, [("a", (1,), "F32")] * 2),
    ):
        pass
    with pytest.raises(InvalidRequest, match="is a folder"), write_in_place(tmp_path, KEYS, []):
        pass
