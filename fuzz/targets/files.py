"""Small binary files besides models: importance matrices and saved log-probabilities."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np

from fuzz.choices import Choices, spoiled
from fuzz.target import Target
from ggfw.errors import GGUFError, InvalidRequest, UnknownQuantFormat
from ggfw.gguf import write_gguf
from ggfw.logprob_file import LogprobReader, LogprobWriter
from ggfw.quantize.importance import read_importance


def target() -> Target:
    """See the module; the first byte chooses."""
    folder = Path(tempfile.mkdtemp(prefix="ggfw-fuzz-"))
    path = folder / "file"
    tokens = np.arange(8, dtype=np.int32).reshape(2, 4)
    with LogprobWriter(path, tokens, 8, 16) as out:
        out.write(np.zeros((8, 16)))
    logprobs = path.read_bytes()
    binary = struct.pack("<ii", 2, 1) + b"a" + struct.pack("<ii", 3, 4) + bytes(16)
    binary += struct.pack("<i", 1) + b"b" + struct.pack("<ii", 3, 4) + bytes(16)
    write_gguf(path, {"general.type": "imatrix"}, [
        ("a.in_sum2", np.ones((1, 8), np.float32)), ("a.counts", np.ones((1, 1), np.float32)),
        ("b.in_sum2", np.ones((2, 8), np.float32)), ("b.counts", np.ones((2, 1), np.float32)),
    ])  # fmt: skip
    container = path.read_bytes()

    def run(data: bytes) -> None:
        c = Choices(data)
        kind = c.below(4)
        if kind == 0:
            path.write_bytes(spoiled(c, logprobs, 12))
            with LogprobReader(path, tokens, 8, 16) as reader:
                reader.read(4)
                reader.read(4)
            return
        if kind == 3:
            shape = tuple(c.below(4) for _ in range(c.below(4)))
            n = c.below(3)
            write_gguf(path, {"general.type": "imatrix"}, [
                ("a.in_sum2", np.ones((2, 8), np.float32)), ("a.counts", np.ones(shape, np.float32)),
                *[(f"x{i}.in_sum2", np.ones((1, 4), np.float32)) for i in range(n)],
            ])  # fmt: skip
        else:
            path.write_bytes(spoiled(c, binary if kind == 1 else container))
        read_importance(path)

    return Target(
        run, [bytes([k]) + bytes(40) for k in range(4)], (InvalidRequest, GGUFError, UnknownQuantFormat)
    )
