"""Whatever callers of the library give as arguments: one clear error of ours, and numbers of NumPy are numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.chat.skills import load_skills
from ggfw.perplexity import perplexity
from ggfw.testing import check, tiny_gguf

HUGE = 10**5000  # more digits than Python shows


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError("nobody may see it")


VALUES: dict[str, Any] = {
    "huge": HUGE, "minus huge": -HUGE, "list of huge": [HUGE], "mapping of huge": {HUGE: HUGE}, "nan": float("nan"),
    "inf": float("inf"), "array": np.array([1.5, 2.0]), "array without axes": np.array(1.5), "words": np.array(["a"]),
    "object": object(), "unshown": Unshown(), "complex": 1j, "function": print, "set": {1.5}, "bytes": b"\xff",
    "list of none": [None],
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Iterator[ggfw.Model]:
    with ggfw.load(tiny_gguf(), n_parallel=2) as model:
        yield model


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
OPTIONS = ("folders", "log", "kv_type", "backend", "spec", "draft", "threads", "ctx", "n_parallel", "max_queue",
           "prefix_cache_mb", "ubatch", "rope_scaling", "rope_base", "activations", "deterministic", "n_state_ring",
           "packed_cache", "repack", "prefault", "registry")  # fmt: skip
REQUEST = ("stop", "timeout", "ignore_eos", "constraint", "schema", "grammar", "regex", "json", "choice", "logprobs",
           "sampling_profile", "parse_special", "special_tokens", "id", "cache_prompt", "max_tokens", "temperature",
           "top_k", "seed", "logit_bias", "samplers", "dry_sequence_breakers", "mirostat")  # fmt: skip
CHAT = ("tools", "tool_choice", "parallel_tool_calls", "template_args", "continue_final_message", "think",
        "reasoning_effort", "reasoning_budget", "skills")  # fmt: skip
Call = Callable[[ggfw.Model, Any], Any]
CALLS: dict[str, Call] = {
    "generate": lambda m, v: m.generate(v, max_tokens=1),
    "chat": lambda m, v: m.chat(v, max_tokens=1),
    "chat content": lambda m, v: m.chat([ggfw.user(v)], max_tokens=1),
    "chat role": lambda m, v: m.chat([{"role": v, "content": "a"}], max_tokens=1),
    "assistant tool_calls": lambda m, v: ggfw.assistant("a", tool_calls=v),
    "stream callback": lambda m, v: m.stream("a", v, max_tokens=1),
    "choices": lambda m, v: m.generate_choices("a", v, max_tokens=1),
    "submit": lambda m, v: m.submit(v),
    "request prompt": lambda m, v: m.submit(ggfw.Request(v, ggfw.Params())),
    "request params": lambda m, v: m.submit(ggfw.Request([1], v)),
    "request parser": lambda m, v: m.submit(ggfw.Request([1], ggfw.Params(), parser=v)),
    "embed": lambda m, v: m.embed(v),
    "aembed": lambda m, v: asyncio.run(m.aembed(v)),
    "tokenize": lambda m, v: m.tokenize(v),
    "detokenize": lambda m, v: m.detokenize(v),
    "logits": lambda m, v: m.logits(v),
    "logits chunk": lambda m, v: m.logits([1, 2], v),
    "logits_many": lambda m, v: m.logits_many(v),
    "hidden": lambda m, v: m.hidden(v),
    "greedy n": lambda m, v: m.greedy([1], v),
    "search_tokens": lambda m, v: m.search_tokens(v),
    "search_tokens limit": lambda m, v: m.search_tokens("a", v),
    "nearest_tokens": lambda m, v: m.nearest_tokens(v),
    "nearest_tokens k": lambda m, v: m.nearest_tokens(5, v),
    "save_cache path": lambda m, v: m.save_cache(v, [1]),
    "save_cache tokens": lambda m, v: m.save_cache("cache", v),
    "load_cache": lambda m, v: m.load_cache(v),
    "cosine": lambda m, v: ggfw.cosine_similarity([1.0, 2.0], v),
    "load_skills": lambda m, v: load_skills(v),
    "quantize": lambda m, v: ggfw.quants.quantize("Q8_0", v),
    "quantize format": lambda m, v: ggfw.quants.quantize(v, np.zeros((1, 32))),
    "dequantize buffer": lambda m, v: ggfw.quants.dequantize("Q8_0", v, (1, 32)),
    "dequantize shape": lambda m, v: ggfw.quants.dequantize("Q8_0", bytes(34), v),
    "dequantize out": lambda m, v: ggfw.quants.dequantize("Q8_0", bytes(34), (1, 32), v),
    "row_bytes": lambda m, v: ggfw.quants.row_bytes("Q8_0", v),
    "supports": lambda m, v: ggfw.supports(v),
    "analyze": lambda m, v: ggfw.analyze(v),
    "discover": lambda m, v: ggfw.discover_models(v),
    "select": lambda m, v: ggfw.select_model(v, "nowhere"),
    "select folders": lambda m, v: ggfw.select_model("a", v),
    "matvec": lambda m, v: ggfw.kernels.matvec("Q8_0", v, np.ones(32)),
    "matvec x": lambda m, v: ggfw.kernels.matvec("Q8_0", bytes(34), v),
    "matvec out": lambda m, v: ggfw.kernels.matvec("Q8_0", bytes(34), np.ones(32), v),
    "matvec backend": lambda m, v: ggfw.kernels.matvec("Q8_0", bytes(34), np.ones(32), backend=v),
    "dot": lambda m, v: ggfw.kernels.dot("Q8_0", bytes(34), v),
    "compile": lambda m, v: m.compiler.compile(v),
    "perplexity": lambda m, v: perplexity(m, v),
    "perplexity ctx": lambda m, v: perplexity(m, "abc " * 99, ctx=v),
    "perplexity chunks": lambda m, v: perplexity(m, "abc " * 99, ctx=16, max_chunks=v),
    "decode": lambda m, v: m.tokenizer.decode(v),
    "encode": lambda m, v: m.tokenizer.encode(v),
    "result": lambda m, v: m.submit(m.request("a", max_tokens=1)).result(v),
    "check": lambda m, v: check(v),
    "load": lambda m, v: ggfw.load(v),
    **{f"request {o}": lambda m, v, o=o: m.generate("a", **{"max_tokens": 1, o: v}) for o in REQUEST},
    **{
        f"chat {o}": lambda m, v, o=o: m.chat([ggfw.user("a")], **{"max_tokens": 1, "tools": TOOLS, o: v})
        for o in CHAT
    },
    **{f"load {o}": lambda m, v, o=o: ggfw.load(tiny_gguf(), **{o: v}).close() for o in OPTIONS},
}  # fmt: skip


@pytest.mark.parametrize("what", list(CALLS))
def test_wrong_arguments_are_errors_of_ours(
    model: ggfw.Model, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in VALUES.items():
        try:
            CALLS[what](model, value)
        except TimeoutError:
            assert what == "result"  # of no seconds at all
        except ggfw.GgfwError as error:
            assert 0 < len(str(error)) < 600, (name, str(error))


def test_errors_name_the_argument(model: ggfw.Model) -> None:
    for what in ("packed_cache", "rope_base", "registry", "kv_type", "threads", "log"):
        with pytest.raises(ggfw.InvalidRequest, match=what) as caught:
            ggfw.load(tiny_gguf(), **{what: [HUGE]})
        assert caught.value.param == what
    with pytest.raises(ggfw.InvalidRequest, match="PackedCache"):
        ggfw.load(tiny_gguf(), packed_cache="a folder")  # type: ignore[arg-type]
    with pytest.raises(ggfw.InvalidRequest, match="choices were asked for"):
        model.generate_choices("a", 10**9)
    with pytest.raises(ggfw.InvalidRequest, match="token"):
        model.nearest_tokens("9" * 5000)
    with pytest.raises(ggfw.InvalidRequest, match="no folder"):
        load_skills("~no-such-user/skills")


def test_numbers_of_numpy_are_numbers(model: ggfw.Model) -> None:
    i, f = np.int64, np.float32
    with ggfw.load(
        tiny_gguf(), threads=i(1), ctx=np.int32(64), n_parallel=np.uint8(1), ubatch=np.uint16(32), max_queue=i(3),
        prefix_cache_mb=i(1), rope_base=f(10000.0), prefault=np.bool_(True), repack=np.bool_(True),
    ) as small:  # fmt: skip
        assert small.n_ctx == 64
    plain = model.generate(
        [1, 5], max_tokens=2, temperature=0.5, top_k=3, seed=4, logit_bias={7: 1.0}, logprobs=2
    )
    given = model.generate(
        np.array([1, 5]), max_tokens=i(2), temperature=f(0.5), top_k=np.uint8(3), seed=i(4),
        logit_bias={i(7): f(1.0)}, logprobs=i(2), timeout=f(60), ignore_eos=np.bool_(False),
    )  # fmt: skip
    assert given.token_ids == plain.token_ids
    assert len(model.generate_choices("a", i(2), max_tokens=1)) == 2
    ids = np.array([1, 5, 9], np.uint16)
    assert model.detokenize(ids) == model.detokenize([1, 5, 9])
    assert np.array_equal(model.logits(ids, i(2)), model.logits([1, 5, 9]))
    assert model.greedy(ids, i(2)) == model.greedy([1, 5, 9], 2)
    assert [t.id for t in model.nearest_tokens(i(5), i(2))] == [t.id for t in model.nearest_tokens(5, 2)]
    assert len(model.search_tokens("a", i(1))) == 1
    assert ggfw.quants.row_bytes(i(8), i(64)) == ggfw.quants.row_bytes("Q8_0", 64)
    assert ggfw.quants.dequantize("Q8_0", bytes(68), np.array([2, 32])).shape == (2, 32)
    chat: Any = model.chat([ggfw.user("a")], max_tokens=i(1), reasoning_budget=i(5))
    assert chat.usage.completion_tokens == 1


def test_the_cosine_of_very_long_and_very_short_vectors() -> None:
    assert ggfw.cosine_similarity([1e300, 1e300], [1e-300, 1e-300]) == pytest.approx(1.0)
    assert ggfw.cosine_similarity(np.array([1, 0], np.int8), np.array([-3, 0], np.float16)) == -1.0
    for wrong in ([float("inf"), 1.0], [float("nan"), 1.0], [0.0, 0.0]):
        with pytest.raises(ggfw.InvalidRequest):
            ggfw.cosine_similarity(wrong, [1.0, 1.0])
