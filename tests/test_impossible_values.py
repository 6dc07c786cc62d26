"""Well-formed files whose values are impossible: one typed sentence, quickly, and nothing on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.cache import PAGE_SIZE, Cache, OutOfPages, PoolSpec
from ggfw.descriptors import KernelBackend, resolve
from ggfw.errors import (
    BackendError,
    GgfwError,
    GraphError,
    InvalidRequest,
    ModelFileError,
    NonFiniteLogits,
    PluginError,
)
from ggfw.execute.library import kernel_library
from ggfw.gguf import GGUF, gguf_bytes
from ggfw.graph.hparams import Hparams
from ggfw.registry import default_registry

MODELS = Path(__file__).parent / "data" / "models"


def changed(name: str, keys: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> bytes:
    """A model of ours with other metadata values, and perhaps other tensors."""
    with GGUF.open(MODELS / f"{name}.gguf") as gguf:
        payload = {n: (t.data.tobytes(), t.shape, t.ggml_type) for n, t in gguf.tensors.items()}
        return gguf_bytes({**gguf.metadata, **keys}, {**payload, **(tensors or {})}.items())


@pytest.mark.parametrize("value", [0, -1, 2**31, 2**62, 1.5, float("nan"), float("inf"), "x", "", [1], True])
@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count", "context_length"])
def test_counts_must_be_counts(key: str, value: Any) -> None:
    with pytest.raises(GgfwError) as caught, ggfw.load(changed("llama", {f"llama.{key}": value})):
        pass
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "llama.rope.freq_base", 0.0),
        ("llama", "llama.rope.freq_base", -1.0),
        ("llama", "llama.rope.freq_base", "x"),
        ("llama", "llama.attention.layer_norm_rms_epsilon", float("nan")),
        ("llama", "llama.attention.layer_norm_rms_epsilon", -1.0),
        ("llama", "llama.attention.head_count", 1000),
        ("mistral3", "mistral3.rope.scaling.yarn_beta_slow", 0.0),
        ("llama-yarn", "llama.rope.scaling.original_context_length", 0),
        ("gemma3", "gemma3.attention.sliding_window", -(2**31)),
        ("gemma3", "gemma3.attention.sliding_window", "x"),
        ("gemma4", "gemma4.rope.dimension_count_swa", [1, 2]),
        ("qwen35", "qwen35.ssm.inner_size", ["a"]),
        ("lfm2moe", "lfm2moe.shortconv.l_cache", [0, 0]),
    ],
)
def test_sizes_and_numbers_must_be_possible(name: str, key: str, value: Any) -> None:
    with pytest.raises((ModelFileError, GraphError)) as caught, ggfw.load(changed(name, {key: value})):
        pass
    said = str(caught.value)
    assert key.rpartition(".")[2] in said or "window" in said, said


def test_a_failure_of_build_names_plugin_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFileError, match=r"gemma3\.attention\.sliding_window is 'x'; a whole number"):
        ggfw.load(changed("gemma3", {"gemma3.attention.sliding_window": "x"}))

    def build(self: Any, g: Any, hp: Any, w: Any, run: Any) -> None:
        int(hp.get("attention.sliding_window"))

    spec = default_registry().architecture_for({"general.architecture": "gemma3"})
    monkeypatch.setattr(resolve(spec.load), "build", build)
    with pytest.raises(
        GraphError, match=r"test_impossible_values.py line \d+\).*sliding_window = 'x'"
    ) as caught:
        ggfw.load(changed("gemma3", {"gemma3.attention.sliding_window": "x"}))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("value", [[1], "x", 1.5])
def test_token_roles_must_be_ids(value: Any) -> None:
    with ggfw.load(changed("llama", {"tokenizer.ggml.eos_token_id": value})) as model:
        with pytest.raises(ModelFileError, match="eos_token_id"):
            model.generate("hello", max_tokens=1)


@pytest.mark.parametrize("change", [lambda t: t[:100], lambda t: [*t, "one more"], lambda t: ["a"]])
def test_there_are_as_many_tokens_as_logits(change: Callable[[list[str]], list[str]]) -> None:
    with GGUF.open(MODELS / "llama.gguf") as gguf:
        tokens = list(gguf.metadata["tokenizer.ggml.tokens"])
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens has \d+ tokens"):
        ggfw.load(changed("llama", {"tokenizer.ggml.tokens": change(tokens)}))


@pytest.mark.parametrize("backend", ["reference", None])
def test_weights_that_are_not_finite_make_an_error_and_no_warning(backend: str | None) -> None:
    shape = (64, 96)
    data = changed("llama", {}, {"blk.0.ffn_down.weight": np.full(shape, np.inf, np.float32)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ggfw.load(data, backend=backend) as model, pytest.raises(NonFiniteLogits):
            model.generate("hello", max_tokens=1)


@pytest.mark.parametrize("ctx", [-1, 2**31, 10**30, 1.5, "7"])
def test_contexts_that_cannot_be(ctx: Any) -> None:
    with pytest.raises(InvalidRequest, match="ctx is"):
        ggfw.load(MODELS / "llama.gguf", ctx=ctx)


def test_a_pool_of_a_billion_pages_costs_nothing() -> None:
    cache = Cache([PoolSpec((0,), 1, 4, 4)], n_positions=2**31 * PAGE_SIZE)
    a, b = cache.sequence(), cache.sequence()
    a.reserve(2 * PAGE_SIZE)
    b.reserve(PAGE_SIZE)
    a.release()
    b.reserve(4 * PAGE_SIZE)
    assert sorted(b.tables[0]) == [0, 1, 2, 3], "what was given back is used before what is new"
    with pytest.raises(OutOfPages):
        a.reserve(2**31 * PAGE_SIZE)
    b.close()
    assert cache.n_pages_used() == 0


def test_typed_hyperparameters() -> None:
    hp = Hparams({"a.n": 3, "a.f": 0.5, "a.whole": 4.0}, "a")
    assert (
        hp.integer("n") == 3 and hp.integer("whole") == 4 and hp.number("f") == 0.5 and hp.number("n") == 3.0
    )
    assert hp.integer("none", 7) == 7 and hp.number("none", 0) == 0.0
    with pytest.raises(ModelFileError, match=r"a\.f is 0\.5; a whole number from 0"):
        hp.integer("f")
    with pytest.raises(ModelFileError, match=r"a\.none is missing"):
        hp.number("none")


@pytest.mark.parametrize(
    "options",
    [
        {"n_parallel": 2**31 - 1},
        {"ctx": True},
        {"rope_base": -1.0},
        {"rope_base": float("nan")},
        {"threads": 0},
        {"ubatch": -1},
    ],
    ids=str,
)
def test_impossible_options_of_loading(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ggfw.load(MODELS / "llama.gguf", **options)
    assert caught.value.param in options


def test_a_path_that_no_file_can_have() -> None:
    with pytest.raises(ggfw.ModelNotFound):
        ggfw.load("a\0b.gguf")


def test_prompts_and_stops_of_the_wrong_type() -> None:
    with ggfw.load(MODELS / "llama.gguf") as model:
        for prompt in (None, 5, [1.5], ["a"]):
            with pytest.raises(InvalidRequest, match="a prompt is a string or a sequence of token ids"):
                model.generate(prompt, max_tokens=1)  # type: ignore[arg-type]
        for stop in (5, [5], {"a": 1}):
            with pytest.raises(InvalidRequest, match="stop is a string or a list"):
                model.generate("a", max_tokens=1, stop=stop)  # type: ignore[arg-type]
        assert model.generate(np.array([1, 2]), max_tokens=1).finish_reason == "length"  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_model_that_runs_in_the_parent_is_an_error_in_the_child() -> None:
    """The engine's thread does not come along: without a check the child waits for ever."""
    script = f"""
import os, signal, sys, ggfw
model = ggfw.load({str(MODELS / "llama.gguf")!r})
model.generate("a", max_tokens=1)
if os.fork() == 0:
    signal.alarm(20)
    try:
        model.generate("a", max_tokens=1)
    except ggfw.GgfwError as error:
        print(error, flush=True)
    model.close()
    with ggfw.load({str(MODELS / "llama.gguf")!r}) as own:
        print(own.generate("a", max_tokens=1).finish_reason, flush=True)
    sys.exit(0)
status = os.wait()[1]
print(status, model.generate("a", max_tokens=1).finish_reason)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    said = done.stdout.splitlines()
    assert "load the model after forking" in said[0] and said[1:] == ["length", "0 length"], done
    assert not done.stderr


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (lambda: "/no/such/library.so", "/no/such/library.so"),
        (lambda: sys.executable, "cannot be used"),
        (lambda: [][1], "cannot say where its library is"),
        ("no_such_module:path", "no_such_module"),
    ],
    ids=["missing", "not a library", "raises", "not importable"],
)
def test_a_backend_without_a_usable_library_says_the_way_out(library: Any, said: str) -> None:
    with pytest.raises(BackendError, match="GGFW_DISABLE_PLUGINS=broken") as caught:
        kernel_library(KernelBackend(name="broken", probe=lambda: 1, library=library))
    assert said in str(caught.value)


def test_what_a_plugin_names_but_does_not_have() -> None:
    for load in ("no_such_module:X", "json:no_such_name"):
        with pytest.raises(PluginError, match=load):
            resolve(load)


@pytest.mark.parametrize("key", ["rope.scaling.type", "rope.scaling.factor", "rope.freq_base"])
def test_long_texts_of_a_file_are_cut_in_messages(key: str) -> None:
    with pytest.raises(ggfw.GgfwError, match="xxx") as caught:
        ggfw.load(changed("gpt-oss", {f"gpt-oss.{key}": "x" * 100_000}), ctx=64)
    assert len(str(caught.value)) < 1000
