"""Files of ours that others may have written over: packed weights, and saved caches whose checksum is right."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import ggfw
from fuzz.choices import Choices, spoiled
from fuzz.target import Target
from ggfw.cache.saved import MAGIC
from ggfw.errors import GgfwError
from ggfw.execute.library import native
from ggfw.packed_cache import PackedCache, packed_key

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import tiny_models


def target() -> Target:
    """See the module."""
    folder = Path(tempfile.mkdtemp(prefix="ggfw-fuzz-"))
    model = ggfw.load(tiny_models.write_llama(folder / "m.gguf", n_layer=1, n_ctx=128), threads=1, ctx=128)
    prompt = model.tokenize("the sea and the stars and the hills and the rains")
    model.generate(prompt, max_tokens=1, temperature=0)
    saved = folder / "saved"
    model.save_cache(saved, prompt)
    good = saved.read_bytes()
    n = int.from_bytes(good[len(MAGIC) : len(MAGIC) + 8], "little")
    header = json.loads(good[len(MAGIC) + 8 : len(MAGIC) + 8 + n])
    body = good[len(MAGIC) + 8 + n : -32]
    packed, key = PackedCache(folder / "packed", 64), packed_key(["fuzz"])
    weights = np.random.default_rng(3).integers(0, 256, (1 << 20) + 777, np.uint8)

    def spoil_packed(c: Choices) -> None:
        thread = packed.store(key, weights, native())
        assert thread is not None
        thread.join()
        path = packed.path(key)
        data = bytearray(path.read_bytes())
        tail = spoiled(c, bytes(data[len(weights) :]), 6)
        data[len(weights) :] = tail
        for _ in range(c.below(3)):
            data[c.number(3) % len(data)] ^= 1 << c.below(8)
        path.write_bytes(data[: len(data) - (c.number(3) if c.chance(20) else 0)])
        found = packed.find(key, len(weights), native())
        assert found is None or np.array_equal(found, weights), "damaged weights were served"

    def spoil_saved(c: Choices) -> None:
        changed = json.loads(json.dumps(header))
        for _ in range(c.between(1, 3)):
            kind = c.below(6)
            if kind == 0:
                changed["tokens"] = c.json(3) if c.chance(50) else [c.edge() for _ in range(c.below(9))]
            elif kind == 1:
                changed["pages"] = c.json(3) if c.chance(30) else [[c.edge() - 2, c.edge()]]
            elif kind == 2:
                changed["state"] = c.pick((c.edge(), -1, None, "1", 0.5))
            elif kind == 3:
                changed[c.pick(("tokens", "pages", "state", "facts"))] = c.json(2)
            elif kind == 4:
                changed["tokens"] = header["tokens"][: c.below(9)]
            else:
                changed.pop(c.pick(("tokens", "pages", "state", "facts")), None)
        text = json.dumps(changed).encode()
        if c.chance(10):
            text = b"[" * c.number(3)
        part = body if c.chance(80) else spoiled(c, body, 3)
        made = MAGIC + len(text).to_bytes(8, "little") + text + part
        if c.chance(20):
            made = spoiled(c, made, 3)
        saved.write_bytes(made + hashlib.sha256(made).digest())
        model.load_cache(saved)
        model.generate(prompt, max_tokens=1, temperature=0)

    def run(data: bytes) -> None:
        c = Choices(data)
        spoil_packed(c) if c.chance(20) else spoil_saved(c)

    return Target(run, [bytes(range(0, 250, k + 1)) for k in range(20)], (GgfwError,))
