"""Sampling options at the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import write_llama

import ggfw
from ggfw.cli.generating import split_generation_options

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

GIVEN: dict[str, Any] = {
    "top_n_sigma": 2.5, "xtc_probability": 0.75, "xtc_threshold": 0.05, "min_keep": 2, "dynatemp_range": 0.4,
    "dynatemp_exponent": 0.5, "dry_multiplier": 0.6, "dry_base": 1.3, "dry_allowed_length": 1,
    "dry_penalty_last_n": 40, "min_tokens": 3, "temperature": 1.5, "min_p": 0.0, "seed": 3,
    "samplers": "dry;top_n_sigma;top_k;xtc;temperature",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "Tiny-Llama.Q8_0.gguf", n_ctx=4096)


def run(cli: Cli, model: Path, *options: str) -> dict[str, Any]:
    said = cli("run", model, "hello", "-n", "20", "--json", "--ignore-eos", *options)
    assert said.code == 0, said.err
    return json.loads(said.out)


def test_options_reach_the_sampler(cli: Cli, model: Path) -> None:
    more = {"max_tokens": 20, "ignore_eos": True}
    with ggfw.load(model) as loaded:
        messages = [ggfw.user("hello")]
        want = loaded.chat(messages, **more, **GIVEN, dry_sequence_breakers=["q", ";"])
        one_by_one = [loaded.chat(messages, **more, seed=3, **knobs) for knobs in (
            {}, {"mirostat": 2, "mirostat_tau": 9.0, "mirostat_eta": 0.5, "temperature": 2.0},
            {"adaptive_target": 0.01, "adaptive_decay": 0.5}, {"sampling_profile": "gopherllm"},
        )]  # fmt: skip
        assert len({tuple(r.token_ids) for r in (want, *one_by_one)}) == 5
    options = [f"--{key.replace('_', '-')}={value}" for key, value in GIVEN.items()]
    options = [o.replace("--dynatemp-exponent", "--dynatemp-exp") for o in options]
    assert run(cli, model, *options, "--dry-sequence-breaker", "q", "--dry-sequence-breaker", ";")[
        "token_ids"
    ] == list(want.token_ids)
    for result, options in zip(
        one_by_one,
        (
            [],
            ["--mirostat", "2", "--mirostat-ent", "9", "--mirostat-lr", "0.5", "--temp", "2"],
            ["--adaptive-target", "0.01", "--adaptive-decay", "0.5"],
            ["--sampling-profile", "gopherllm"],
        ),
        strict=True,
    ):
        assert run(cli, model, "--seed", "3", *options)["token_ids"] == list(result.token_ids)


def test_logprobs(cli: Cli, model: Path) -> None:
    found = run(cli, model, "--logprobs", "2", "--temp", "0")
    assert [e["id"] for e in found["logprobs"]] == found["token_ids"]
    for entry in found["logprobs"]:
        assert len(entry["top"]) == 2 and entry["top"][0]["logprob"] >= entry["top"][1]["logprob"]
        assert entry["logprob"] <= 0 and entry["top"][0]["id"] == entry["id"]
        assert sum(math.exp(t["logprob"]) for t in entry["top"]) <= 1
    assert "logprobs" not in run(cli, model, "--temp", "0")


def test_native_and_python_rows_note_the_same(model: Path) -> None:
    with ggfw.load(model) as loaded:
        free = loaded.generate("hello", temperature=0, max_tokens=8, logprobs=3)
        # adaptive-p is Python, and of one candidate it takes that one
        host = loaded.generate("hello", top_k=1, adaptive_target=0.5, max_tokens=8, logprobs=3)
        python = loaded.generate("hello", seed=1, max_tokens=8, logprobs=3, mirostat=2)
        assert host.token_ids == free.token_ids
        for a, b in zip(host.logprobs or (), free.logprobs or (), strict=True):
            assert [t.id for t in a.top] == [t.id for t in b.top]
            assert [a.logprob, *(t.logprob for t in a.top)] == pytest.approx(
                [b.logprob, *(t.logprob for t in b.top)], abs=1e-11
            )
        assert [e.id for e in python.logprobs or ()] == list(python.token_ids)
    with ggfw.load(model, backend="reference") as loaded:
        slow = loaded.generate("hello", temperature=0, max_tokens=8, logprobs=3)
    assert slow.token_ids == free.token_ids
    for a, b in zip(slow.logprobs or (), free.logprobs or (), strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=2e-2)  # int8 activations


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samplers", "top_k;infill"], "infill"),
        (["--sampling-profile", "mine"], "golem, gopherllm"),
        (["--mirostat", "3"], "mirostat"),
        (["--xtc-probability", "2"], "xtc_probability"),
        (["--sampling-profile", "gopherllm", "--top-k", "-1"], "top_k"),
    ],
)
def test_bad_values_are_said(cli: Cli, model: Path, options: list[str], said: str) -> None:
    outcome = cli("run", model, "hello", *options)
    assert outcome.code == 1 and said in outcome.err and "Traceback" not in outcome.err


def test_breakers() -> None:
    def taken(*breakers: str) -> Any:
        options = {"logit_bias": (), "dry_sequence_breaker": breakers}
        return split_generation_options(options).get("dry_sequence_breakers")

    assert taken() is None
    assert taken("none") == []
    assert taken("a", "\n") == ["a", "\n"]
