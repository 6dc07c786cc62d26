"""More prompts at once than the cache has room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_models import write_llama

import ggfw

DATA = Path(__file__).parent / "data"


def test_as_many_prompts_run_together_as_the_cache_has_room_for(tmp_path: Path) -> None:
    with ggfw.load(write_llama(tmp_path / "tiny.gguf"), ctx=64, n_parallel=1) as model:
        prompts = [[3 + i % 5, 4, 5 + i % 7] for i in range(100)]
        many = model.logits_many(prompts)
        alone = model.logits_many(prompts, together=False)
        assert [rows.shape for rows in many] == [rows.shape for rows in alone]
        assert all(np.allclose(a, b, atol=0.05) for a, b in zip(many, alone, strict=True))
        assert model.loaded.cache.n_pages_used() == 0


def test_states_of_recurrent_models_bound_it_too() -> None:
    with ggfw.load(DATA / "models" / "mamba2.gguf", n_parallel=1) as model:
        rows = model.logits_many([[1, 2, 3]] * 20)
        assert len(rows) == 20 and all(np.allclose(rows[0], row, atol=0.05) for row in rows)
        assert model.loaded.cache.n_slots_used == 0
