"""Perplexity and KL against a saved base, on a tiny model, beside the plain definition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ggfw
from ggfw.cli.main import cli
from ggfw.errors import InvalidRequest
from ggfw.perplexity import perplexity
from ggfw.quantize import quantize_file

MODEL = Path(__file__).parent / "data" / "models" / "llama.gguf"
TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 6


def log_softmax(rows: np.ndarray) -> np.ndarray:
    x = rows.astype(np.float64)
    return x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)


def test_it_is_what_the_definition_says() -> None:
    with ggfw.load(MODEL, ctx=32, kv_type="f32") as model:
        found = perplexity(model, TEXT, ctx=32)
        ids = model.tokenizer.encode(TEXT)
        nll = []
        for begin in range(0, len(ids) - 31, 32):
            chunk = [model.tokenizer.bos_id, *ids[begin + 1 : begin + 32]]
            rows = log_softmax(model.logits(chunk))
            nll += [-rows[i, chunk[i + 1]] for i in range(16, 31)]
    assert found.n_tokens == len(nll)
    assert found.value == pytest.approx(np.exp(np.mean(nll)), rel=1e-5)
    assert found.error == pytest.approx(found.value * np.std(nll, ddof=1) / len(nll) ** 0.5, rel=1e-5)


def test_a_saved_base_is_at_no_distance_from_itself_and_others_are(tmp_path: Path) -> None:
    base, sizes = tmp_path / "base.npz", []
    with ggfw.load(MODEL, ctx=32, kv_type="f32") as model:
        perplexity(model, TEXT, ctx=32, save=base)
        same = perplexity(model, TEXT, ctx=32, base=base, progress=lambda *a: sizes.append(a)).divergence
        with pytest.raises(InvalidRequest, match="another text or context"):
            perplexity(model, TEXT, ctx=32, max_chunks=2, base=base)
    assert same is not None and abs(same.mean_kl) < 1e-4 and same.top1_same > 0.95
    assert sizes[-1][0] == sizes[-1][1] == len(sizes)
    coarse = quantize_file(MODEL, tmp_path / "coarse.gguf", "Q4_0").path
    with ggfw.load(coarse, ctx=32, kv_type="f32") as other:
        far = perplexity(other, TEXT, ctx=32, base=base).divergence
    assert far is not None and far.mean_kl > 1e-3 and far.max_kl >= far.kl_99 >= 0
    damaged = base.read_bytes()[:-400]
    base.write_bytes(damaged)
    with ggfw.load(MODEL, ctx=32) as model, pytest.raises(InvalidRequest, match="log-probabilities"):
        perplexity(model, TEXT, ctx=32, base=base)


def test_an_interrupted_run_leaves_no_file(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with ggfw.load(MODEL, ctx=32) as model, pytest.raises(KeyboardInterrupt):
        perplexity(model, TEXT, ctx=32, save=tmp_path / "base.npz", progress=stop)
    assert not list(tmp_path.iterdir())


def test_a_short_text_is_refused() -> None:
    with ggfw.load(MODEL, ctx=64) as model, pytest.raises(InvalidRequest, match="a longer text"):
        perplexity(model, "short", ctx=64)


def test_the_verb(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXT)
    run = CliRunner().invoke(cli, ["perplexity", str(MODEL), str(text), "--ctx", "32", "--json"])
    assert run.exit_code == 0, run.output
    row = json.loads(run.output)
    assert row["perplexity"] > 1 and row["ctx"] == 32 and row["divergence"] is None
