"""No request sees another one's text: not in what the server says of itself, of its models, or to the next client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from served import TOOLS_CHATML, Served

SECRET = "xylophone-quartz-4711"
#: Everything that tells of the server or its models.
SHOWN = (
    "/slots", "/metrics", "/health", "/props", "/v1/models", "/api/tags", "/api/ps", "/api/version", "/openapi.json",
    "/v1/models/fake", "/docs",
)  # fmt: skip
#: Families -> a body with the secret in every place where text goes.
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": SECRET}],
        "user": SECRET, "stop": [SECRET], "metadata": {"a": SECRET}, "chat_template_kwargs": {"a": SECRET},
    },
    "/v1/completions": {"prompt": SECRET, "user": SECRET},
    "/v1/responses": {"input": SECRET, "instructions": SECRET, "store": True},
    "/v1/messages": {"messages": [{"role": "user", "content": SECRET}], "system": SECRET, "max_tokens": 30},
    "/api/chat": {"model": "fake", "messages": [{"role": "user", "content": SECRET}]},
    "/api/generate": {"model": "fake", "prompt": SECRET, "system": SECRET},
    "/completion": {"prompt": SECRET},
    "/infill": {"input_prefix": SECRET},
    "/v1/embeddings": {"input": SECRET},
    "/tokenize": {"content": SECRET},
    "/apply-template": {"messages": [{"role": "user", "content": SECRET}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(script="hello", template=TOOLS_CHATML, n_ctx=512) as made:
        yield made


def shown(served: Served) -> None:
    for path in SHOWN:
        answer = served.http.get(path)
        assert SECRET not in answer.text and SECRET not in str(answer.headers), path
    assert SECRET not in served.http.post("/api/show", json={"model": "fake"}).text
    assert SECRET not in str(served.lines), "the log holds it"


@pytest.mark.parametrize("path", list(ASKED))
def test_what_the_server_tells_of_itself(served: Served, path: str) -> None:
    """While a request runs, and afterwards."""
    body = {
        **ASKED[path],
        "stream": path.endswith(("completions", "completion", "responses", "messages", "chat")),
    }
    asking = threading.Thread(target=lambda: served.http.post(path, json=body))
    asking.start()
    shown(served)
    asking.join(20)
    assert not asking.is_alive()
    shown(served)


def test_a_response_cannot_be_asked_for_by_another_one(served: Served) -> None:
    """Nothing is stored: neither the identifier of a response nor that of an item leads to it."""
    made = served.http.post(
        "/v1/responses", json={"input": SECRET, "store": True, "max_output_tokens": 16}
    ).json()
    for path in (f"/v1/responses/{made['id']}", f"/v1/responses/{made['id']}/input_items"):
        assert served.http.get(path).status_code == 404
    body = {"input": "x", "previous_response_id": made["id"], "max_output_tokens": 16}
    assert served.http.post("/v1/responses", json=body).status_code == 400
    item = {"type": "item_reference", "id": made["output"][0]["id"]}
    assert (
        served.http.post(
            "/v1/responses", json={**body, "previous_response_id": None, "input": [item]}
        ).status_code
        == 400
    )


def test_errors_do_not_quote_what_others_sent(served: Served) -> None:
    for path, body in ASKED.items():
        served.http.post(path, json=body)
        for wrong in ({}, {"messages": 5}, {"prompt": {"a": 1}}, {"model": "nope"}):
            assert SECRET not in served.http.post(path, json=wrong).text
