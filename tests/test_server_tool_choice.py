"""``tool_choice`` of type ``allowed_tools``, and what is said of choices that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from served import HI, TOOLS_CHATML, TWO_CALLS, Served, function

TOOLS = [function("f"), function("g"), function("h")]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(script=TWO_CALLS, template=TOOLS_CHATML, n_ctx=4096) as server:
        yield server


def chat_choice(mode: str | None, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"tools": tools, **({"mode": mode} if mode else {})}}


def responses_choice(mode: str | None, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "tools": tools, **({"mode": mode} if mode else {})}


def ask(served: Served, path: str, choice: dict[str, Any]) -> Any:
    if path == "/v1/responses":
        tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
        return served.http.post(path, json={"input": "hi", "tools": tools, "tool_choice": choice})
    return served.http.post(path, json={"messages": HI, "tools": TOOLS, "tool_choice": choice})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/v1/responses"])
def test_only_allowed_tools_are_offered(served: Served, path: str) -> None:
    made = responses_choice if path == "/v1/responses" else chat_choice
    for mode in ("auto", "required", None):
        response = ask(served, path, made(mode, "g", "f"))
        assert response.status_code == 200, response.text
        prompt = served.prompt()
        assert '"f"' in prompt and '"g"' in prompt and '"h"' not in prompt
        assert (served.seen[-1].constraint is not None) == (mode == "required")
    for wrong in (made("sometimes", "f"), made("auto"), made("auto", "nobody"), {"type": "allowed_tools"}):
        response = ask(served, path, wrong)
        assert response.status_code == 400 and response.json()["error"]["param"] == "tool_choice", wrong


def test_values_are_not_cut_in_the_middle_of_a_word(served: Served) -> None:
    words = " ".join(["incomprehensible"] * 30)
    message = ask(served, "/v1/chat/completions", {"type": words}).json()["error"]["message"]
    value = message.partition("tool_choice is ")[2].partition("; expected")[0]
    assert value.endswith("incomprehensible …") and len(value) <= 122
    assert (
        "tool_choice is 'perhaps';"
        in ask(served, "/v1/chat/completions", "perhaps").json()["error"]["message"]
    )  # type: ignore[arg-type]
