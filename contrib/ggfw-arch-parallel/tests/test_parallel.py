"""The example package against its own float64 twin: on both executors, mixed batches, and through the server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.gguf import GGUF, write_gguf

N_LAYER, N_EMBD, N_HEAD, N_KV, D, N_FF, EPS = 3, 32, 4, 2, 8, 48, 1e-5
PROMPTS = [[1, 5, 70, 33, 9, 200, 41], [1, 8, 8, 90], [1, 17, 60, 3, 2, 250, 11, 12, 77, 5, 42]]


def write(path: Path) -> Path:
    """Write a random model of this architecture with a byte vocabulary."""
    rng = np.random.default_rng(3)

    def matrix(n_out: int, n_in: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((n_out, n_in)) * scale / np.sqrt(n_in)).astype(np.float32)

    def vector(n: int, mean: float) -> np.ndarray:
        return (mean + 0.2 * rng.standard_normal(n)).astype(np.float32)

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    meta: dict[str, Any] = {
        "general.architecture": "parallel",
        "general.name": "parallel-tiny",
        "parallel.context_length": 128,
        "parallel.embedding_length": N_EMBD,
        "parallel.block_count": N_LAYER,
        "parallel.feed_forward_length": N_FF,
        "parallel.attention.head_count": N_HEAD,
        "parallel.attention.head_count_kv": N_KV,
        "parallel.attention.layer_norm_epsilon": EPS,
        "parallel.rope.dimension_count": D,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.zeros(len(pieces), np.float32),
        "tokenizer.ggml.token_type": np.array([2, 3, 3, *[6] * 256], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    }
    tensors = [("token_embd.weight", matrix(len(pieces), N_EMBD, 5.0))]
    for i in range(N_LAYER):
        shapes = {
            "attn_q": (N_HEAD * D, N_EMBD), "attn_k": (N_KV * D, N_EMBD), "attn_v": (N_KV * D, N_EMBD),
            "attn_output": (N_EMBD, N_HEAD * D), "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD),
            "ffn_down": (N_EMBD, N_FF),
        }  # fmt: skip
        tensors += [(f"blk.{i}.{name}.weight", matrix(*shape)) for name, shape in shapes.items()]
        tensors += [
            (f"blk.{i}.attn_norm.weight", vector(N_EMBD, 1)),
            (f"blk.{i}.attn_norm.bias", vector(N_EMBD, 0)),
            (f"blk.{i}.shift.weight", vector(N_EMBD, 0.5)),
        ]
    tensors += [
        ("output_norm.weight", vector(N_EMBD, 1)),
        ("output_norm.bias", vector(N_EMBD, 0)),
        ("output.weight", matrix(len(pieces), N_EMBD, 3.0)),
    ]
    write_gguf(path, meta, tensors)
    return path


def twin(path: Path, ids: list[int]) -> np.ndarray:
    """The same model in float64, without any of ggfw's graph."""
    with GGUF.open(path) as gguf:
        w = {
            name: np.frombuffer(bytes(info.data), np.float32).reshape(info.shape).astype(np.float64)
            for name, info in gguf.tensors.items()
        }

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def rope(x: np.ndarray) -> np.ndarray:
        angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    x = w["token_embd.weight"][ids]
    for i in range(N_LAYER):
        p = f"blk.{i}."
        h = norm(x, p + "attn_norm")
        h = h + w[p + "shift.weight"] * (np.concatenate([np.zeros((1, N_EMBD)), h[:-1]]) - h)
        q = rope((h @ w[p + "attn_q.weight"].T).reshape(-1, N_HEAD, D))
        k = rope((h @ w[p + "attn_k.weight"].T).reshape(-1, N_KV, D)).repeat(N_HEAD // N_KV, 1)
        v = (h @ w[p + "attn_v.weight"].T).reshape(-1, N_KV, D).repeat(N_HEAD // N_KV, 1)
        s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(D) + np.triu(np.full((len(ids),) * 2, -np.inf), 1)
        a = np.exp(s - s.max(-1, keepdims=True))
        a = np.einsum("hqk,khd->qhd", a / a.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        gate, up = h @ w[p + "ffn_gate.weight"].T, h @ w[p + "ffn_up.weight"].T
        f = gate / (1 + np.abs(gate)) * up
        x = x + a @ w[p + "attn_output.weight"].T + f @ w[p + "ffn_down.weight"].T
    return norm(x, "output_norm") @ w["output.weight"].T


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("parallel") / "tiny.gguf")


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_logits_equal_the_twin_in_a_mixed_batch(path: Path, backend: str | None, chunk: int | None) -> None:
    with ggfw.load(path, backend=backend, n_parallel=len(PROMPTS)) as model:
        rows = model.logits_many(PROMPTS, together=True, chunk=chunk)
    for ids, got in zip(PROMPTS, rows, strict=True):
        want = twin(path, ids)
        assert want.std() > 1
        assert np.abs(got - want).max() < 2e-3


def test_decoding_carries_the_state_on(path: Path) -> None:
    with ggfw.load(path) as model:
        got = model.greedy(PROMPTS[0], 8)
    ids = list(PROMPTS[0])
    for token in got:
        assert token == int(twin(path, ids)[-1].argmax())
        ids.append(token)


def test_only_the_numpy_op_interrupts_the_plan(path: Path) -> None:
    with ggfw.load(path) as model:
        plan = model.loaded.executor.plan
    python = [step for step in plan.steps if step.node is not None]
    assert [step.node.attrs["custom"].name for step in python] == ["token_shift"] * N_LAYER
    assert sum(step.op == "custom" and step.node is None for step in plan.steps) == N_LAYER


def test_a_failing_numpy_op_fails_that_request_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ggfw.load(path) as model:
        good = model.generate("hello", max_tokens=4, temperature=0, ignore_eos=True)
        steps = [r[2] for r in model.loaded.executor._ranges if r[2] is not None]

        def fail(*args: Any) -> None:
            raise RuntimeError("token_shift broke")

        monkeypatch.setattr(type(steps[0]), "__call__", fail)
        with pytest.raises(Exception, match="token_shift broke"):
            model.generate("hello", max_tokens=4, temperature=0)
        monkeypatch.undo()
        assert (
            model.generate("hello", max_tokens=4, temperature=0, ignore_eos=True).token_ids == good.token_ids
        )


def test_it_answers_through_the_chat_endpoint(path: Path) -> None:
    """`ggfw serve` in a process of its own, a real request over HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ggfw.cli.main", "serve", str(path), "--port", str(port)]
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                answer = json.load(urllib.request.urlopen(request, timeout=30))
                break
            except urllib.error.HTTPError as refused:
                pytest.fail(refused.read().decode())
            except urllib.error.URLError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(20)
    assert answer["choices"][0]["message"]["role"] == "assistant"
    with ggfw.load(path) as model:
        same = model.chat(body["messages"], max_tokens=3, temperature=0)
    assert answer["usage"]["prompt_tokens"] == same.usage.prompt_tokens
    assert answer["choices"][0]["message"]["content"] == same.text
    assert answer["usage"]["completion_tokens"] == len(same.token_ids)
