"""Chat templates of other projects, rendered as Hugging Face's ``transformers`` renders them.

The templates are those that llama.cpp collects; they are read when the test runs and are no part of this project. What
cannot be compared, and why, is in DIFFERENT, which docs/templates.md repeats.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ggfw.chat.template import ChatTemplate

pytestmark = pytest.mark.slow

#: Templates whose text is not that of transformers, and why.
DIFFERENT = {
    "Kimi-K2-Instruct.jinja": "transformers forbids list.append, which the template needs to show a call",
    "Kimi-K2-Thinking.jinja": "transformers forbids list.append, which the template needs to show a call",
    "llama-cpp-deepseek-r1.jinja": "its tools are a generator, which transformers cannot write as JSON",
}


def function(name: str, key: str) -> dict[str, Any]:
    properties = {
        key: {"type": "string", "description": "Where."},
        "n": {"type": "integer", "description": "How many."},
    }
    parameters = {"type": "object", "properties": properties, "required": [key]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Get {name}.", "parameters": parameters},
    }


def called(id: str, name: str, arguments: Any, content: Any = "") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def result(id: str, name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id, "name": name}


TOOLS = [function("get_weather", "city"), function("get_time", "zone")]
SYSTEM = {"role": "system", "content": "Be brief."}
PLAIN = [
    SYSTEM,
    {"role": "user", "content": 'Hi <b>&\'é "q"'},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": " More? "},
]
ROUND_TRIP = [
    {"role": "user", "content": "Weather and time in Paris?"},
    called("abcdefgh1", "get_weather", {"city": "Paris é <x>", "n": 2}),
    result("abcdefgh1", "get_weather", '{"temp": 20}'),
    called("abcdefgh2", "get_time", {"zone": "CET", "n": 1}),
    result("abcdefgh2", "get_time", "12:00"),
]


@pytest.fixture(scope="module")
def sources(template_dir: Path) -> dict[str, str]:
    """The templates by name of file."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(template_dir.glob("*.jinja"))}


def reference(source: str, messages: Any, **variables: Any) -> str | None:
    """What transformers makes of it; None where it or the template refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template(
            conversations=[copy.deepcopy(messages)],
            chat_template=source,
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
            **variables,
        )
    except Exception:
        return None
    return str(texts[0])


def shaped(messages: Any, template: ChatTemplate) -> Any:
    """The conversation in the shape in which this template must be given it, which is the caller's task there."""
    can = template.capabilities
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", ()):
            if not can.mapping_arguments:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            if can.null_content:
                message["content"] = None
        if can.typed_content and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return messages


def compare(name: str, source: str) -> list[str]:
    """What differs: names of conversations."""
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    can = template.capabilities
    extra: dict[str, Any] = {"functions": "[]", "datetime": "today"} if can.needs_functions else {}
    none = [] if can.needs_tools else None
    plain = PLAIN if can.system_role else PLAIN[1:]
    wrong = []
    if template.render(plain, **extra).text != reference(
        source, shaped(plain, template), tools=none, **extra
    ):
        wrong.append("plain chat")
    if can.tools:
        ours = template.render(ROUND_TRIP, tools=TOOLS, **extra).text
        theirs = reference(source, shaped(ROUND_TRIP, template), tools=TOOLS, **extra)
        if ours != theirs:
            wrong.append("round trip")
    return wrong


def test_texts_are_those_of_transformers(sources: dict[str, str]) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    differing = {name: wrong for name, source in sources.items() if (wrong := compare(name, source))}
    with_tools = sum(ChatTemplate(s, bos_token="<s>").capabilities.tools for s in sources.values())
    print(f"{len(sources)} templates, {with_tools} with tools; different: {differing}")
    assert len(sources) > 60
    assert set(differing) <= set(DIFFERENT), differing
    assert len(differing) <= 0.05 * len(sources), differing


def test_every_template_renders(sources: dict[str, str]) -> None:
    for name, source in sources.items():
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        text = template.render(PLAIN).text
        assert "Be brief." in text and "More?" in text, name
        text = template.render(ROUND_TRIP, tools=TOOLS).text
        assert "12:00" in text, name
        if template.capabilities.tool_calls:
            assert "get_time" in text and "CET" in text, name
        begun = template.render(
            [*PLAIN, {"role": "assistant", "content": "It is "}], continue_final_message=True
        )
        assert begun.text.endswith("It is "), name
