"""``--isolate-cache``: what one key evaluated makes no answer to another one faster, in any family."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import COMMAND
from served import Served
from server_process import ServerProcess, write_model
from tiny_models import write_llama

REST = " of the sea and the stars and the hills and the rains"
SAID = [{"role": "user", "content": "tell me" + REST}]
_DETAILS = ("usage", "prompt_tokens_details", "cached_tokens")
#: Path -> (body, where the number of cached tokens stands in the answer). Each prompt begins in its own way.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/v1/chat/completions": ({"messages": SAID, "max_tokens": 2}, _DETAILS),
    "/v1/completions": ({"prompt": "one" + REST, "max_tokens": 2}, _DETAILS),
    "/v1/responses": (
        {"input": "two" + REST, "max_output_tokens": 16},
        ("usage", "input_tokens_details", "cached_tokens"),
    ),
    "/v1/messages": (
        {"messages": [{"role": "user", "content": "three" + REST}], "max_tokens": 2, "model": "m"},
        ("usage", "cache_read_input_tokens"),
    ),
    "/completion": ({"prompt": "four" + REST, "n_predict": 2}, ("tokens_cached",)),
    "/generate": ({"prompt": "five" + REST, "max_tokens": 2}, ("cached_tokens",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", n_vocab=1000)


@pytest.fixture(scope="module")
def isolated(model: Path) -> Iterator[ServerProcess]:
    keys = ("--api-key", "mine", "--api-key", "yours")
    with ServerProcess(model, "--threads", "1", *keys, env={"GGFW_ISOLATE_CACHE": "1"}) as process:
        yield process


def cached(server: ServerProcess, path: str, key: str) -> int:
    body, where = FAMILIES[path]
    answer = server.http.post(path, json=body, headers={"X-Api-Key": key})
    assert answer.status_code == 200, answer.text
    found: Any = answer.json()
    for name in where:
        found = found[name]
    return int(found)


@pytest.mark.parametrize("path", list(FAMILIES))
def test_keys_do_not_share(isolated: ServerProcess, path: str) -> None:
    shared_by_all = cached(isolated, path, "mine")  # what earlier prompts of this key have in common with it
    assert cached(isolated, path, "mine") > max(shared_by_all, 5)
    other = cached(isolated, path, "yours")
    assert other <= shared_by_all and cached(isolated, path, "yours") > other


def test_keys_share_unless_told_otherwise(model: Path) -> None:
    with ServerProcess(model, "--threads", "1", "--api-key", "mine", "--api-key", "yours") as server:
        first = cached(server, "/v1/chat/completions", "mine")
        assert cached(server, "/v1/chat/completions", "yours") > max(first, 5)


def test_who_asks_reaches_the_engine() -> None:
    with Served(script="x", app={"api_keys": ["a", "b"], "isolate_cache": True}) as served:
        for key in "aba":
            body = {"messages": SAID, "n": 2}
            assert served.http.post("/v1/chat/completions", json=body, headers={"X-Api-Key": key}).is_success
            for text in ("x", ["x", "y"]):
                body = {"prompt": text}
                assert served.http.post("/v1/completions", json=body, headers={"X-Api-Key": key}).is_success
        keys = [request.cache_key for request in served.seen]
        assert len(keys) == 15 and len(set(keys)) == 2 and None not in keys
        assert len(set(keys[:5])) == 1 and keys[:5] == keys[10:] != keys[5:10]


def test_without_keys_there_is_nobody_to_tell_apart(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "serve", str(write_llama(tmp_path / "m.gguf")), "--port", "0"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "GGFW_ISOLATE_CACHE": "1"},
    )  # fmt: skip
    assert done.returncode == 1 and "--isolate-cache" in done.stderr and "Traceback" not in done.stderr


def test_the_configuration_file_says_it_too(tmp_path: Path, model: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[serve]\nisolate-cache = true\n")
    done = subprocess.run(
        [*COMMAND, "serve", str(model), "--port", "0"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "GGFW_CONFIG": str(config)},
    )  # fmt: skip
    assert done.returncode == 1 and "--isolate-cache" in done.stderr
