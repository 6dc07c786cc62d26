"""Errors name the field as the client sent it, also those of the engine, which has names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import HI, TOOLS_CHATML, Served, function


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(script="a", template=TOOLS_CHATML, n_ctx=512) as server:
        yield server


def error(served: Served, path: str, **body: Any) -> dict[str, Any]:
    response = served.http.post(path, json=body)
    assert response.status_code == 400, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


@pytest.mark.parametrize("n", [1, 3])
def test_inputs_of_embeddings(served: Served, n: int) -> None:
    def ask(bad: Any) -> Any:
        return error(served, "/v1/embeddings", input=bad if n == 1 else [*["x"] * (n - 1), bad])

    name = "input" if n == 1 else "input[2]"
    long = ask("x" * 2000)
    assert (long["param"], long["code"], long["n_ctx"]) == (name, "context_length_exceeded", 512)
    if n > 1:
        assert ask([5, 10**6])["param"] == name
    served.fake.tokenizer.add_bos = False
    assert ask("")["param"] == name
    served.fake.tokenizer.add_bos = True


def test_inputs_of_ollamas_embeddings(served: Served) -> None:
    served.fake.tokenizer.add_bos = False
    response = served.http.post("/api/embed", json={"model": "fake", "input": ["x", ""]})
    assert response.status_code == 400 and "input[1]" in response.json()["error"]
    served.fake.tokenizer.add_bos = True


def test_top_logprobs_without_logprobs(served: Served) -> None:
    found = error(served, "/v1/chat/completions", messages=HI, top_logprobs=2)
    assert found["param"] == "top_logprobs" and "logprobs" in found["message"]


BANNED = [[token, False] for token in range(256)]
FORMS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "response_format", {"response_format": {"type": "json_object"}}),
    ("/v1/chat/completions", "guided_choice", {"guided_choice": ["a"]}),
    ("/v1/chat/completions", "grammar", {"grammar": 'root ::= "a"'}),
    ("/v1/chat/completions", "tool_choice", {"tools": [function("f")], "tool_choice": "required"}),
    ("/v1/completions", "guided_regex", {"guided_regex": "ab"}),
    ("/v1/responses", "text", {"text": {"format": {"type": "json_object"}}}),
    ("/completion", "json_schema", {"json_schema": {"type": "boolean"}}),
]


@pytest.mark.parametrize(("path", "param", "form"), FORMS)
def test_constraints_that_lead_nowhere(served: Served, path: str, param: str, form: dict[str, Any]) -> None:
    ask = {"/v1/chat/completions": {"messages": HI}, "/v1/responses": {"input": "hi"}}.get(
        path, {"prompt": "x"}
    )
    found = error(served, path, **ask, **form, logit_bias=BANNED)
    assert (found["code"], found["param"]) == ("constraint_failed", param)
    if path == "/v1/responses":
        return  # its event of failure has no place for the name
    text = served.http.post(path, json={**ask, **form, "logit_bias": BANNED, "stream": True}).text
    assert f'"param":"{param}"' in text and '"constraint_failed"' in text
