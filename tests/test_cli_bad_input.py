"""Damaged and unknown files at the command line: exit code 1 and one sentence with the thing and the way out."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_models import write_llama

from ggfw.gguf import GGUF, write_gguf

if TYPE_CHECKING:
    from cli_support import Cli

pytest_plugins = ["cli_support"]

Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def rewritten(path: Path, change: Change) -> Path:
    """Write a tiny model anew, with metadata and tensors changed."""
    write_llama(path)
    with GGUF.open(path) as gguf:
        metadata = {
            key: (value.list() if hasattr(value, "list") else value) for key, value in gguf.metadata.items()
        }
        metadata["tokenizer.ggml.scores"] = np.asarray(metadata["tokenizer.ggml.scores"], np.float32)
        metadata["tokenizer.ggml.token_type"] = np.asarray(metadata["tokenizer.ggml.token_type"], np.int32)
        tensors = {
            name: tensor.data.copy().view(np.float32).reshape(tensor.shape)
            for name, tensor in gguf.tensors.items()
        }
    change(metadata, tensors)
    write_gguf(path, metadata, list(tensors.items()))
    return path


def unknown_architecture(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    metadata["general.architecture"] = "brontosaurus"


def missing_tensor(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    del tensors["blk.1.ffn_up.weight"]


def wrong_shape(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_k.weight"][:, :-8].copy()


def unknown_pre_tokenizer(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    tokens = [bytes([i]).decode("latin-1") for i in range(33, 127)]
    tokens += [f"x{i}" for i in range(len(metadata["tokenizer.ggml.tokens"]) - len(tokens))]
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "martian",
        "tokenizer.ggml.tokens": tokens,
    }
    metadata["tokenizer.ggml.merges"] = ["a b"]


def no_layers_key(metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    del metadata["llama.block_count"]


CASES: list[tuple[Change, tuple[str, ...]]] = [
    (unknown_architecture, ("brontosaurus", "installed: ", "a plugin can add it")),
    (missing_tensor, ("blk.1.ffn_up",)),
    (wrong_shape, ("blk.0.attn_k",)),
    (unknown_pre_tokenizer, ("martian",)),
    (no_layers_key, ("block_count",)),
]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(("change", "expected"), CASES, ids=[change.__name__ for change, _ in CASES])
def test_files_that_cannot_run(
    cli: Cli, tmp_path: Path, change: Change, expected: tuple[str, ...], backend: str
) -> None:
    path = rewritten(tmp_path / "m.gguf", change)
    more = ["--backend", "reference"] if backend == "reference" else []
    said = cli("run", path, "hello", "--max-tokens", "2", *more)
    assert said.code == 1 and said.out == ""
    for word in expected:
        assert word in said.error


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def no_gguf(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(100))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def big_endian(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))


@pytest.mark.parametrize(
    "verb", [["run", "{}", "hello"], ["show", "{}"], ["tokenize", "{}", "x"], ["verify", "{}"]]
)
@pytest.mark.parametrize("damage", [truncated, cut_in_the_header, no_gguf, empty, big_endian])
def test_damaged_files(cli: Cli, tmp_path: Path, damage: Callable[[Path], None], verb: list[str]) -> None:
    path = write_llama(tmp_path / "m.gguf")
    damage(path)
    said = cli(*[word.format(path) for word in verb])
    assert said.code == 1 and said.out == ""
    assert "m.gguf" in said.error


def test_a_missing_shard(cli: Cli, tmp_path: Path) -> None:
    path = rewritten(
        tmp_path / "m-00001-of-00002.gguf",
        lambda metadata, tensors: metadata.update({"split.count": 2, "split.no": 0}),
    )
    said = cli("show", path)
    assert said.code == 1 and "m-00002-of-00002.gguf" in said.error and "missing" in said.error


def test_no_such_model(cli: Cli, tmp_path: Path) -> None:
    write_llama(tmp_path / "mistral-small.gguf")
    for args in (["run", "mistal-smal", "hello"], ["show", "mistal-smal"], ["run", "mistal-smal"]):
        said = cli(*args, "--models-dir", tmp_path)
        assert said.code == 1 and "'mistal-smal'" in said.error and "mistral-small" in said.error
    said = cli("run", tmp_path / "no.gguf", "hello")
    assert said.code == 1 and "there is no file or model" in said.error


def test_several_models(cli: Cli, tmp_path: Path) -> None:
    write_llama(tmp_path / "small-a.gguf")
    write_llama(tmp_path / "small-b.gguf")
    for args in (["run", "small", "hello"], ["run", tmp_path, "hello"], ["chat", "small"]):
        said = cli(*args, "--models-dir", tmp_path)
        assert said.code == 1 and "small-a" in said.error and "small-b" in said.error
    assert cli("show", "small-a", "--models-dir", tmp_path).code == 0


def test_an_empty_folder(cli: Cli, tmp_path: Path) -> None:
    said = cli("run", tmp_path, "hello")
    assert said.code == 1 and f"no model in the folder {tmp_path}" in said.error


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--backend", "quantum"], "unknown kernel backend 'quantum'; usable here: "),
        (["--temp", "nan"], "temperature must be a finite"),
        (["--min-p", "2"], "min_p must be at most 1"),
        (["--max-tokens", "0"], "max_tokens must be at least 1"),
        (["--timeout", "0"], "timeout is 0; a positive number of seconds"),
        (["--logit-bias", "x=1"], "logit-bias 'x=1' is malformed"),
        (["--logit-bias", "999999=1"], "999999"),
        (["--ctx", "16"], "the context holds 16"),
    ],
)
def test_bad_options(cli: Cli, tmp_path: Path, args: list[str], expected: str) -> None:
    path = write_llama(tmp_path / "m.gguf")
    said = cli("run", path, "a prompt of more than sixteen tokens", *args)
    assert said.code == 1 and expected in said.error


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["rnu"], "did you mean run?"),
        (["ls"], "did you mean list?"),
        (["Generate"], "did you mean run?"),
        (["version"], "did you mean --version?"),
        (["xyzzy"], "known: run, chat, serve"),
        (["plugins", "lst"], "Did you mean 'list'"),
        (["config", "shwo"], "Did you mean 'show'"),
        (["run", "--temprature", "1", "x"], "'--temperature'"),
        (["quantize", "a", "b", "c", "--imatrx", "f"], "'--imatrix'"),
        (["serve", "--prot", "1"], "'--port'"),
        (["help"], "did you mean --help?"),
        (["plugins", "new", "architectur", "x"], "for 'KIND': 'architectur' is not one of"),
        (["plugins", "new", "architectur", "x"], "; did you mean architecture?"),
        (["plugins", "new", "dialect", "x"], "did you mean chat_dialect?"),
        (["plugins", "new", "sampler-stages", "x"], "did you mean sampler_stage?"),
        (["plugins", "list", "--kind", "architecture"], "did you mean architectures?"),
        (["completion", "bsh"], "did you mean bash"),
        (["run", "m", "x", "--kv-type", "q8"], "did you mean q8_0?"),
    ],
)
def test_wrong_verbs_and_options_get_a_suggestion(cli: Cli, args: list[str], expected: str) -> None:
    said = cli(*args)
    assert said.code == 2 and expected in said.error


def test_other_names_of_verbs_lead_to_verbs() -> None:
    from ggfw.cli.main import OTHERS, VERBS

    assert not set(OTHERS) & set(VERBS) and set(OTHERS.values()) <= {*VERBS, "--help", "--version"}


def test_no_prompt(cli: Cli, tmp_path: Path) -> None:
    said = cli("run", write_llama(tmp_path / "m.gguf"), stdin=b" \n")
    assert said.code == 2 and "there is no prompt" in said.error
    assert cli("run", stdin=b"").code == 2


def test_bad_token_ids(cli: Cli, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    said = cli("logits", path, "--ids", "1,x", "--out", tmp_path / "o.npz")
    assert said.code == 1 and "'x' is no token id" in said.error
    said = cli("logits", path, "--ids", "1,9999", "--out", tmp_path / "o.npz")
    assert said.code == 1 and "9999" in said.error
    said = cli("detokenize", path, "-5")
    assert said.code == 2
    said = cli("detokenize", path, "9999")
    assert said.code == 1 and "9999" in said.error


def test_arrays_go_to_files_only(cli: Cli, tmp_path: Path) -> None:
    said = cli("logits", write_llama(tmp_path / "m.gguf"), "--ids", "1", "--out", "/dev/null")
    assert said.code == 1 and "the name of a file was expected" in said.error


def test_a_text_that_is_none_has_no_perplexity(cli: Cli, tmp_path: Path) -> None:
    """Of 100 MB of another kind, tokens would be made until memory is over."""
    path = write_llama(tmp_path / "m.gguf")
    (tmp_path / "text").write_bytes(b"\xff\x00" * 10)
    said = cli("perplexity", path, tmp_path / "text")
    assert said.code == 1 and "is no text in UTF-8" in said.error
    assert cli("perplexity", path, "-", stdin=b"\xff").code == 1


def test_tools_that_are_no_text(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tools").write_bytes(b"\xff")
    said = cli("run", write_llama(tmp_path / "m.gguf"), "hi", "--tools", tmp_path / "tools")
    assert said.code == 1 and "cannot be read as text" in said.error and "JSON" not in said.error


def test_a_search_that_finds_nothing_says_so(cli: Cli, tmp_path: Path) -> None:
    said = cli("show", write_llama(tmp_path / "m.gguf"), "--find-token", "zzzzqqqq")
    assert said.code == 0 and said.out == "" and "no token contains" in said.err
