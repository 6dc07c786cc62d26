"""Saving a conversation's cache and going on with it in another process, and files that are not what they should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_engine_reuse import DATA, ask, cold, ids, load

import ggfw
from ggfw.cache.saved import MAGIC
from ggfw.gguf import GGUF, write_gguf


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "gemma4-e2b", "deepseek2", "qwen35", "nemotron_h", "mamba2"]
)
@pytest.mark.parametrize("n", [33, 128, 170])
def test_a_conversation_goes_on_after_a_restart(name: str, n: int, tmp_path: Path) -> None:
    path, prompt = tmp_path / "talk.cache", ids(n, n)
    with load(name) as model:
        first = ask(model, prompt, 40)
        tokens = [*prompt, *first.token_ids]
        n_saved = model.save_cache(path, tokens)
        assert n_saved == len(tokens) - 1, "the last token was drawn, not evaluated"
    longer = [*tokens, *ids(5, 1)]
    with load(name) as model:
        assert model.load_cache(path) == tokens[:n_saved]
        assert model.loaded.cache.n_pages_used() == 0 and model.loaded.cache.n_slots_used == 0
        result = ask(model, longer)
        assert result.usage.cached_tokens == n_saved
        assert result.token_ids == cold(model, longer).token_ids
        assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_keys_hold_for_files_too(tmp_path: Path) -> None:
    with load("llama") as model:
        prompt = ids(50, 1)
        ask(model, prompt, 4, cache_key="mine")
        with pytest.raises(ggfw.InvalidRequest, match="nothing is known"):
            model.save_cache(tmp_path / "x", prompt)
        assert model.save_cache(tmp_path / "x", prompt, cache_key="mine") == 50
        model.load_cache(tmp_path / "x", cache_key="yours")
        assert ask(model, prompt, 1, cache_key="yours").usage.cached_tokens == 49
        assert ask(model, prompt, 1).usage.cached_tokens == 0


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path, bad = tmp_path / "talk.cache", tmp_path / "bad.cache"
    prompt = ids(70, 2)
    with load("llama") as model:
        ask(model, prompt)
        model.save_cache(path, prompt)
        data = path.read_bytes()
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1
        other = MAGIC[:6] + b"\x63\n" + data[8:]
        for content in (
            b"",
            b"GGUF" + bytes(100),
            data[:-1],
            data[: len(data) // 2],
            data + b"x",
            changed,
            other,
        ):
            bad.write_bytes(content)
            with pytest.raises(ggfw.CacheFileError, match=r"bad\.cache"):
                model.load_cache(bad)
        with pytest.raises(FileNotFoundError):
            model.load_cache(tmp_path / "none")
        assert model.load_cache(path) == prompt
    for name, options in (
        ("llama-yarn", {}),
        ("gemma3", {}),
        ("llama", {"kv_type": "f16"}),
        ("llama", {"rope_base": 5e3}),
    ):
        with load(name, **options) as model, pytest.raises(ggfw.CacheFileError, match="was saved for"):
            model.load_cache(path)
    with (
        load("llama", deterministic=False) as model,
        pytest.raises(ggfw.CacheFileError, match="'deterministic'"),
    ):
        model.load_cache(path)
    with (
        load("llama", activations="int8") as model,
        pytest.raises(ggfw.CacheFileError, match="'activations'"),
    ):
        model.load_cache(path)
    with load("llama", ctx=32) as model, pytest.raises(ggfw.errors.ContextLengthExceeded):
        model.load_cache(path)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.cache"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with load("llama") as model:
        ask(model, ids(50, 3))
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            model.save_cache(path, ids(50, 3))
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "key", ["rope.freq_base", "attention.layer_norm_rms_epsilon", "rope.dimension_count"]
)
def test_a_file_of_the_same_tensors_computes_another_cache(key: str, tmp_path: Path) -> None:
    """What fills a cache depends on numbers in the metadata, too."""
    path, prompt = tmp_path / "talk.cache", ids(40, 3)
    for name, changes in (("one", {}), ("other", {f"llama.{key}": 4 if "count" in key else 2.5})):
        with GGUF.open(DATA / "llama.gguf") as gguf:
            write_gguf(tmp_path / f"{name}.gguf", {**gguf.metadata, **changes}, gguf.tensors.items())
    with ggfw.load(tmp_path / "one.gguf", threads=1, ctx=64) as model:
        ask(model, prompt)
        model.save_cache(path, prompt)
        assert model.load_cache(path) == prompt
    with ggfw.load(tmp_path / "other.gguf", threads=1, ctx=64) as model:
        with pytest.raises(ggfw.CacheFileError, match="was saved for"):
            model.load_cache(path)


def test_a_closed_model_says_so_and_its_figures_stay(tmp_path: Path) -> None:
    """Also where it is closed between two lines of the caller: what reads the model runs in the engine's thread."""
    path, prompt = tmp_path / "talk.cache", ids(40, 3)
    model = load("llama")
    ask(model, prompt)
    model.save_cache(path, prompt)
    before = model.engine.metrics()
    model.close()
    for ask_again in (
        lambda: model.load_cache(path),
        lambda: model.save_cache(path, prompt),
        lambda: ask(model, prompt),
    ):
        with pytest.raises(ggfw.errors.GenerationError, match="the model is closed"):
            ask_again()
    after = model.engine.metrics()
    assert after.prompt_tokens == before.prompt_tokens == 40
    assert [pool.page_bytes for pool in after.pools] == [pool.page_bytes for pool in before.pools]
