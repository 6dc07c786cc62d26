"""Errors name what they are about as the client has written it, whatever stands in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import HI, Served

BAD = {"role": "robot", "content": "x"}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}, *[
    {"type": "text", "text": "q"}]]}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(script="hello") as server:
        yield server


@pytest.mark.parametrize(
    "path, body, place",
    [
        ("/v1/chat/completions", {"messages": [*HI, BAD]}, "messages[1].role"),
        ("/v1/chat/completions", {"messages": [*HI, BAD], "system_prompt": "s"}, "messages[1].role"),
        ("/v1/chat/completions", {"messages": [], "system_prompt": "s"}, "messages"),
        ("/generate", {"messages": [*HI, BAD], "system_prompt": "s"}, "messages[1].role"),
        ("/v1/responses", {"input": [*HI, BAD]}, "input[1].role"),
        ("/v1/responses", {"input": [*HI, BAD], "instructions": "s"}, "input[1].role"),
        ("/v1/responses", {"input": [], "instructions": "s"}, "input"),
        (
            "/v1/responses",
            {"input": [{"role": "assistant", "content": "a"}, {"type": "function_call", "name": "f"}, BAD]},
            "input[2].role",
        ),
        ("/v1/messages", {"messages": [*HI, BAD], "system": "s"}, "messages[1].role"),
        ("/v1/messages", {"messages": [RESULT, BAD], "system": [{"type": "text", "text": "s"}]}, "messages[1].role"),
        ("/v1/messages", {"messages": [], "system": "s"}, "messages"),
        ("/v1/messages", {"messages": HI, "system": [None]}, "system[0]"),
        ("/v1/messages", {"messages": HI, "system": [{"type": "text", "text": "a"}, {}]}, "system[1]"),
        ("/v1/messages/count_tokens", {"messages": [RESULT, BAD]}, "messages[1].role"),
        ("/v1/chat/completions", {"messages": HI, "repeat_last_n": 10**30}, "repeat_last_n"),
        ("/v1/messages", {"messages": HI, "repeat_last_n": 10**30}, "repeat_last_n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_places(served: Served, path: str, body: dict[str, Any], place: str, stream: bool) -> None:
    response = served.http.post(path, json={"stream": stream, **body})
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["message"].startswith(place)
    if "param" in error:
        assert error["param"] == place


@pytest.mark.parametrize(
    "given", ["1e308", "1e18", "Infinity", "-Infinity", "NaN", '"9999999999999h"', '"nan"', '"-1m"']
)
def test_a_time_to_keep_that_no_calendar_knows(served: Served, given: str) -> None:
    name = served.model.name
    body = f'{{"model": "{name}", "keep_alive": {given}}}'
    response = served.http.post("/api/generate", content=body)
    wrong = any(odd in given.lower() for odd in ("infinity", "nan"))
    assert response.status_code == (400 if wrong else 200), response.text
    assert not wrong or "keep_alive" in response.json()["error"]
    listed = served.http.get("/api/ps")
    assert listed.status_code == 200, listed.text
    assert served.http.post("/api/generate", json={"model": name, "keep_alive": 300}).status_code == 200


def test_ids_have_the_form_of_their_family(served: Served) -> None:
    message = served.http.post("/v1/messages", json={"messages": HI, "max_tokens": 1}).json()
    assert message["id"].startswith("msg_")
    response = served.http.post("/v1/responses", json={"input": "x", "max_output_tokens": 4}).json()
    assert response["id"].startswith("resp_") and response["output"][0]["id"].startswith("msg_")
    chat = served.post(max_tokens=1).json()
    assert chat["id"].startswith("chatcmpl-")


def test_a_prompt_that_is_too_long_is_called_by_its_field(served: Served) -> None:
    name = served.model.name
    body = {"model": name, "prompt": "x" * 50, "options": {"num_ctx": 8}, "stream": False}
    error = served.http.post("/api/generate", json=body).json()
    assert error["n_ctx"] == 8 and error["error"].endswith("ask for a larger num_ctx"), error
    assert error["error"].startswith("the prompt has") and "messages" not in error["error"]
    long = "x" * (served.model.n_ctx + 100)
    for path, field in (("/generate", "prompt"), ("/v1/completions", "prompt"), ("/v1/responses", "input")):
        response = served.http.post(path, json={field: long})
        assert response.status_code == 400 and response.json()["error"]["param"] == field, response.text
    response = served.post(messages=[{"role": "user", "content": long}])
    assert response.json()["error"]["param"] == "messages"
