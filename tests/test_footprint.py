"""How much memory a model takes, told before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

import ggfw
from ggfw.cli.facts import facts
from ggfw.footprint import Footprint, kv_bytes, layout_of
from ggfw.gguf import GGUF
from ggfw.support import support

MODELS = Path(__file__).parent / "data" / "models"


@pytest.mark.parametrize(
    ("name", "n_windowed"),
    [("gemma2", 2), ("gemma3", 5), ("gpt-oss", 2), ("cohere2", 3), ("llama", None), ("qwen35", None)],
)
def test_windows_that_only_the_architecture_knows_are_counted(name: str, n_windowed: int | None) -> None:
    path = MODELS / f"{name}.gguf"
    with GGUF.open(path) as gguf, ggfw.load(path) as model:
        found = facts(gguf, support(gguf))
        pools = [pool.spec for pool in model.engine.scheduler.cache.pools]
        windowed = sum(len(pool.layers) for pool in pools if pool.window)
        assert found["window_layers"] == (windowed or None)
        if n_windowed is not None:
            assert 0 < windowed < sum(len(pool.layers) for pool in pools)
        wanted = sum(
            len(p.layers) * p.n_head_kv * (p.d_k + p.d_v * (not p.v_in_k)) * min(n, p.window or n) * 2
            for p in pools
            for n in [1 << 16]
        )
        assert kv_bytes(gguf, 1 << 16, "f16", layout_of(gguf)) == wanted
        held = sum(len(p.layers) * p.n_head_kv * (p.d_k + p.d_v * (not p.v_in_k)) for p in pools) * 2 << 16
        footprint = Footprint.of(gguf, ctx=1 << 16, kv_type="f16")
        assert dict(footprint.cache)[1 << 16] == held, "pages that left a window are kept for later prompts"
        assert wanted <= (kv_bytes(gguf, 1 << 16, "f16") or 0)


def test_a_file_of_an_unknown_architecture_is_told_from_its_header(tmp_path: Path) -> None:
    data = (MODELS / "llama.gguf").read_bytes().replace(b"llama", b"lxama")
    (tmp_path / "x.gguf").write_bytes(data)
    with GGUF.open(tmp_path / "x.gguf") as gguf, GGUF.open(MODELS / "llama.gguf") as known:
        assert layout_of(gguf) is None
        assert kv_bytes(gguf, 512) == kv_bytes(known, 512) == kv_bytes(known, 512, "f16", layout_of(known))
