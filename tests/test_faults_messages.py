"""Refusals are short, however long what they refuse is: no value of thousands of digits or characters is sent back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from served import HI, TOOLS_CHATML, Served

LONG = int("9" * 4000)
WRONG: tuple[Any, ...] = (
    LONG, -LONG, "x" * 5000, ["x" * 5000], [LONG], {"x" * 5000: 1}, {"1" * 4000: 1}, [[LONG, "x" * 5000]],
    {"type": "x" * 5000}, [{"type": "x" * 5000, "role": "y" * 5000}], {"5": LONG},
)  # fmt: skip
#: Beside each field, what makes the rest of a body right.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HI},
    "/api/chat": {"model": "fake", "messages": HI, "stream": False},
    "/api/generate": {"model": "fake", "prompt": "x", "stream": False},
    "/api/embed": {"model": "fake", "input": "x"},
    "/completion": {"prompt": "x"},
    "/infill": {"input_prefix": "x"},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": HI},
}
#: Characters of a message; those that list every field or model that there is are the longest.
MOST = 700


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(template=TOOLS_CHATML, n_ctx=512) as made:
        yield made


def said(served: Served, path: str, body: Any) -> str:
    answer = served.http.post(path, content=json.dumps(body).encode())
    assert answer.status_code < 500, answer.text[:500]
    return answer.text if answer.status_code != 200 else ""


def fields_of(served: Served, path: str) -> list[str]:
    document = served.http.get("/openapi.json").json()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema["properties"])


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/chat/completions", {"n": LONG}),
        ("/v1/chat/completions", {"logit_bias": {"1" * 4000: 500}}),
        ("/v1/chat/completions", {"logit_bias": {"x" * 4000: 1}}),
        ("/v1/chat/completions", {"response_format": {"type": "x" * 5000}}),
        ("/v1/embeddings", {"dimensions": LONG}),
        ("/v1/completions", {"best_of": LONG}),
        ("/v1/completions", {"prompt": [LONG]}),
        ("/api/chat", {"options": {"num_ctx": LONG}}),
        ("/detokenize", {"tokens": [LONG]}),
        ("/v1/responses", {"text": {"format": {"type": "x" * 5000}}}),
    ],
)
def test_long_values_are_not_sent_back(served: Served, path: str, wrong: dict[str, Any]) -> None:
    text = said(served, path, BODIES[path] | wrong)
    assert 0 < len(text) <= MOST, text[:300]


@pytest.mark.slow
@pytest.mark.parametrize("path", list(BODIES))
def test_no_field_is_sent_back_at_length(served: Served, path: str) -> None:
    long = {}
    for name in fields_of(served, path):
        for wrong in WRONG:
            for body in ({name: wrong}, {"options": {name: wrong}})[: 2 if path.startswith("/api") else 1]:
                text = said(served, path, BODIES[path] | body)
                if len(text) > MOST:
                    long[name] = text
    assert not long, {name: text[:200] for name, text in long.items()}
