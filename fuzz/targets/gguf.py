"""GGUF files field by field, each of which may lie; and split sets that may not agree with themselves."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from fuzz.choices import Choices, spoiled
from fuzz.target import Target
from ggfw.errors import GGUFError, ModelFileError, ModelNotFound
from ggfw.gguf import GGUF, analyze, write_gguf

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_KEYS = (
    "general.architecture", "general.alignment", "general.name", "split.no", "split.count", "split.tensors.count",
    "tokenizer.ggml.tokens", "llama.context_length", "llama.block_count", "llama.attention.head_count", "",
)  # fmt: skip


def build(c: Choices) -> bytes:
    """A file whose counts, lengths, types and offsets are right most of the time."""
    lie = c.chance(60)

    def n64(right: int) -> bytes:
        return struct.pack("<Q", c.edge() % 2**64 if lie and c.chance(4) else right)

    def string(text: bytes) -> bytes:
        return n64(len(text)) + text

    def value(kind: int, depth: int = 0) -> bytes:
        if kind == 8:
            return string(c.raw(c.below(12)))
        if kind == 9:
            inner = c.pick((0, 4, 5, 6, 8, 9, 10)) if depth < 3 else 4
            n = c.below(5)
            return struct.pack("<I", inner) + n64(n) + b"".join(value(inner, depth + 1) for _ in range(n))
        return c.raw(_WIDTHS.get(kind, 4)).ljust(_WIDTHS.get(kind, 4), b"\0")

    pairs = []
    for _ in range(c.below(8)):
        key = c.pick(_KEYS).encode() or c.raw(6)
        kind = c.pick((4, 8, 9, 6, 7, 5, 10, 0, 12)) if not (lie and c.chance(3)) else c.number(4)
        pairs.append(string(key) + struct.pack("<I", kind) + value(kind))
    records, offset = [], 0
    for i in range(c.below(6)):
        dims = [32 * c.between(1, 3)] + [c.between(1, 4) for _ in range(c.below(4))]
        if lie and c.chance(8):
            dims[c.below(len(dims))] = c.edge() % 2**64
        kind = c.pick((0, 1, 2, 8, 12, 30, 99)) if not (lie and c.chance(4)) else c.number(4)
        place = c.edge() % 2**64 if lie and c.chance(6) else offset
        name = f"t{i if not c.chance(4) else 0}".encode()
        records.append(
            string(name) + struct.pack("<I", len(dims) if not (lie and c.chance(3)) else c.number(4))
            + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, place)
        )  # fmt: skip
        offset = (offset + 4 * 96 * 4**3) // 32 * 32
    magic = b"GGUF" if not (lie and c.chance(2)) else c.raw(4).ljust(4, b"x")
    version = 3 if not (lie and c.chance(3)) else c.number(4)
    head = magic + struct.pack("<I", version) + n64(len(records)) + n64(len(pairs))
    out = head + b"".join(pairs) + b"".join(records)
    out += bytes(-len(out) % 32)
    out += bytes(min(offset, 1 << 18) if not c.chance(10) else c.below(offset + 1))
    return spoiled(c, out) if c.chance(20) else out


def look(gguf: GGUF) -> None:
    """Read everything that an open file offers."""
    for key in gguf.metadata:
        value = gguf.metadata[key]
        if hasattr(value, "list"):
            value.list()
    for tensor in gguf.tensors.values():
        data = tensor.data
        assert len(data) == tensor.n_bytes
        if len(data):
            int(data[0]) + int(data[-1])
    repr(gguf)
    try:
        _ = gguf.architecture
        analyze(gguf)
    except ModelFileError:
        pass


def _seed_file() -> bytes:
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        meta = {
            "general.architecture": "llama",
            "llama.block_count": 1,
            "general.alignment": 32,
            "a": ["x", "yy"],
        }
        write_gguf(path, meta, [("t", np.zeros((2, 32), np.float32)), ("u", np.zeros(32, np.float32))])
        return path.read_bytes()


def reader() -> Target:
    """The reader, and the analysis of what it read."""

    def run(data: bytes) -> None:
        file = data if data[:4] == b"GGUF" else build(Choices(data))
        with GGUF.open(file) as gguf:
            look(gguf)

    return Target(run, [_seed_file(), bytes(range(256)), bytes(range(255, -1, -1))], (GGUFError,))


def split() -> Target:
    """Sets of shards, as bytes and as files."""
    import numpy as np

    folder = Path(tempfile.mkdtemp(prefix="ggfw-fuzz-"))

    def run(data: bytes) -> None:
        c = Choices(data)
        n = c.between(1, 4)
        paths = []
        for old in folder.iterdir():
            old.unlink()
        for i in range(n):
            meta = {
                "split.no": i if not c.chance(8) else c.edge() % 2**32,
                "split.count": n if not c.chance(8) else c.edge() % 2**16,
                "split.tensors.count": n if not c.chance(8) else c.edge() % 2**31,
            }
            if i == 0:
                meta["general.architecture"] = "llama"
            if c.chance(6):
                meta.pop(c.pick(list(meta)))
            name = f"t{i}" if not c.chance(6) else "t0"
            number, count = (i + 1, n) if not c.chance(6) else (c.below(6), c.below(6))
            path = folder / f"m-{number:05d}-of-{count:05d}.gguf"
            write_gguf(path, meta, [(name, np.zeros(32, np.float32))])
            if c.chance(8):
                path.write_bytes(spoiled(c, path.read_bytes()))
            paths.append(path)
        if len(paths) > 1 and c.chance(10):
            paths.pop(c.below(len(paths))).unlink(missing_ok=True)
        paths = sorted({path for path in paths if path.exists()})
        given: object = paths[c.below(len(paths))] if paths and c.chance(50) else paths
        if isinstance(given, list) and c.chance(50):
            given = [p.read_bytes() for p in given]
        with GGUF.open(given) as gguf:  # type: ignore[arg-type]
            look(gguf)

    return Target(run, [bytes([3]) + bytes(255), bytes(range(256))], (GGUFError, ModelNotFound))
