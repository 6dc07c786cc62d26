"""Hostile templates behind HTTP: every path that renders one answers with an error soon, and nothing else happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served

HI = [{"role": "user", "content": "hi"}]
#: Paths that render a conversation, and a body for each.
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/messages": {"model": "fake", "messages": HI, "max_tokens": 3},
    "/v1/messages/count_tokens": {"model": "fake", "messages": HI},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/api/chat": {"model": "fake", "messages": HI},
    "/api/generate": {"model": "fake", "prompt": "hi"},
    "/generate": {"messages": HI},
    "/apply-template": {"messages": HI},
}
SOURCES = {
    "command": '{{ lipsum.__globals__["os"].system("touch MARKER") }}',
    "append": "{{ messages.append(1) }}",
    "loop": "{% for i in range(10**9) %}x{% endfor %}",
    "giant": "{{ 'a' * 10**10 }}",
    "refusal": "{{ raise_exception('only poems, please') }}",
}


@pytest.fixture(scope="module", params=SOURCES)
def hostile(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Served, Path]]:
    marker = tmp_path_factory.mktemp("hostile") / "was-here"
    with Served(script="x", template=SOURCES[request.param].replace("MARKER", str(marker))) as served:
        yield request.param, served, marker


@pytest.mark.parametrize("path", PATHS)
def test_an_error_soon_and_nothing_else(hostile: tuple[str, Served, Path], path: str) -> None:
    name, served, marker = hostile
    begun = time.process_time()
    response = served.http.post(path, json=PATHS[path])
    spent = (
        time.process_time() - begun
    )  # of this process, the server's threads among it, not of a busy machine
    assert response.status_code == 400, response.text
    assert spent < 2, f"{path} took {spent:.1f} s of CPU"
    assert not marker.exists() and "Traceback" not in response.text
    if name == "refusal":
        assert "only poems, please" in response.text
    assert not served.fake.executor.batches, "nothing was evaluated"


def test_the_server_goes_on(hostile: tuple[str, Served, Path]) -> None:
    _, served, _ = hostile
    assert served.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).status_code == 200
    assert served.http.get("/health").status_code == 200
    served.fake.executor.batches.clear()
