"""Real templates, rendered as Hugging Face's transformers renders them.

The templates are those that llama.cpp collects; they are read when the test runs and are no part of this project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ggfw.chat.template import ChatTemplate
from ggfw.errors import TemplateError

pytestmark = pytest.mark.slow

BOS, EOS = "<s>", "</s>"

PLAIN: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello, who are you?"},
    {"role": "assistant", "content": "I am a model."},
    {"role": "user", "content": "  Name two é rivers.  "},
]


def function(name: str, key: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": f"A {key}"}},
        "required": [key],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": f"Get {name}", "parameters": schema},
    }


def call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"call{number:05d}", "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [function("get_weather", "city"), function("get_time", "zone")]
ROUND_TRIP: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Paris, and the time?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [call(1, "get_weather", {"city": "Paris"}), call(2, "get_time", {"zone": "CET"})],
    },
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 21}'},
    {"role": "tool", "tool_call_id": "call00002", "name": "get_time", "content": "12:00"},
]

#: Where the two differ on purpose, and why.
KNOWN: dict[tuple[str, str], str] = {}


def theirs(source: str, messages: list[dict[str, Any]], tools: Any) -> str | None:
    """What transformers makes of it; None where the template refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=source,
            add_generation_prompt=True,
            bos_token=BOS,
            eos_token=EOS,
        )
    except Exception:
        return None
    return str(rendered[0])


def test_real_templates_render_as_transformers_renders_them(template_dir: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    total, refused, differing = 0, 0, []
    for path in sorted(template_dir.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        template = ChatTemplate(source, bos_token=BOS, eos_token=EOS)
        cases: list[tuple[str, list[dict[str, Any]], Any]] = [("plain", PLAIN, None)]
        if template.capabilities.tools:
            cases.append(("tools", ROUND_TRIP, TOOLS))
        for kind, messages, tools in cases:
            expected = theirs(source, messages, tools)
            if expected is None:
                refused += 1
                continue
            total += 1
            try:
                got = template.render(messages, tools=tools).text
            except TemplateError as error:
                got = f"error: {error}"
            if got != expected:
                at = next(
                    (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(expected)
                )
                differing.append((path.name, kind, got[at - 30 : at + 50], expected[at - 30 : at + 50]))
    for row in differing:
        print(*map(repr, row), sep="\n    ")
    print(f"{total - len(differing)} of {total} renderings equal; {refused} refused by transformers")
    assert total > 80
    assert len(differing) <= 0.05 * total
