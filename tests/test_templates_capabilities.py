"""What templates can do, found out by trying, and what is done where they cannot."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fake_model import FakeModel

import ggfw
from ggfw.chat import ChatTemplate, assistant, system, tool, user
from ggfw.errors import InvalidRequest, TemplateError
from ggfw.library import Model

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
OPEN = "{% if add_generation_prompt %}<assistant>{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}({{ c.function.name }}:BODY){% endfor %}"
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALLED = assistant(tool_calls=[{"id": "abcdefgh1", "name": "f", "arguments": {"a": 1}}])
HISTORY = [user("q"), CALLED, tool("r", call_id="abcdefgh1", name="f")]


def with_calls(body: str) -> str:
    inside = "<{{ m.role }}>{{ m.content or '' }}" + CALLS.replace("BODY", body) + "</>"
    return "{{ tools | tojson if tools else '' }}{% for m in messages %}" + inside + "{% endfor %}" + OPEN


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        (TURNS, "system_role", True),
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", "system_role", False),
        ("{{ messages[-1].content }}{{ raise_exception('no') if messages[0].role == 'system' }}", "system_role", False),
        (TURNS, "typed_content", False),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", "typed_content", True),
        (TURNS, "tools", False),
        (with_calls("{{ c.function.arguments | tojson }}"), "tools", True),
        (TURNS + "{{ xml_tools | tojson if xml_tools }}", "tools_variable", "xml_tools"),
        (TURNS + "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}", "needs_tools", False),
        (TURNS + "{% for k in tools + [] %}{{ k.function.name }}{% endfor %}", "needs_tools", True),
        (with_calls("{{ c.function.arguments | tojson }}"), "mapping_arguments", True),
        (with_calls("{{ '' + c.function.arguments }}"), "mapping_arguments", False),
        (with_calls("{{ c.function.arguments }}"), "mapping_arguments", False),
        (TURNS, "tool_calls", False),
        (with_calls("{{ c.function.arguments | tojson }}"), "parallel_tool_calls", True),
        (with_calls("{{ c.function.arguments | tojson }}{% break %}"), "parallel_tool_calls", False),
        (TURNS + "{{ '' if enable_thinking else 'off' }}", "thinking_switch", "enable_thinking"),
        (TURNS + "{{ 'on' if thinking is defined and thinking }}", "thinking_switch", "thinking"),
        (TURNS, "thinking_switch", None),
        (TURNS + "{{ reasoning_effort }}", "reasoning_effort", True),
        (TURNS, "reasoning_history", False),
        (TURNS + "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}", "reasoning_history", True),
        (TURNS, "prefill", True),
        ("{% for m in messages %}{% if not loop.last %}{{ m.content }}{% endif %}{% endfor %}{{ messages[0].content }}",
         "prefill", False),
    ],
)  # fmt: skip
def test_what_is_found(source: str, name: str, value: Any) -> None:
    assert getattr(ChatTemplate(source).capabilities, name) == value


def test_everything_at_once_is_cheap_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(with_calls("{{ c.function.arguments | tojson }}"))
    template.render([user("x")])
    start = time.perf_counter()
    found = template.capabilities.to_dict()
    assert time.perf_counter() - start < 0.5
    monkeypatch.setattr(template, "_render", None)
    assert template.capabilities.to_dict() == found and found["tools"] is True


def test_a_broken_template_can_do_nothing() -> None:
    assert ChatTemplate("{% for %}").capabilities.to_dict()["tools"] is False
    with pytest.raises(TemplateError):
        ChatTemplate(
            "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}"
        ).capabilities.to_dict()


# -- calls of earlier turns ------------------------------------------------------------------------------------------


def test_calls_go_in_as_the_template_reads_them() -> None:
    mapping = ChatTemplate(with_calls("{{ c.function.arguments | tojson }}")).render(HISTORY, tools=[TOOL])
    text = ChatTemplate(with_calls("{{ c.function.arguments }}")).render(HISTORY, tools=[TOOL])
    assert '(f:{"a": 1})' in mapping.text and '(f:{"a": 1})' in text.text
    null = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.arguments.a }}" + (
        "{{ m.tool_calls[0].function.arguments.key5 }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert ChatTemplate(null).capabilities.null_content
    assert ChatTemplate(null).render(HISTORY).text == "q1r"


def test_calls_that_a_template_drops_go_in_as_text() -> None:
    text = ChatTemplate(TURNS).render(HISTORY).text
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<user><tool_response>\nr\n</tool_response></>" in text


# -- the last message ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", ["Once", "Once upon a ", " Once", "a</>b"])
def test_the_last_message_is_continued(begun: str) -> None:
    messages = [user("q"), assistant(begun)]
    prompt = ChatTemplate(TURNS + OPEN).render(messages, continue_final_message=True)
    assert prompt.text == f"<user>q</><assistant>{begun}"
    assert (prompt.parts[-1][0], prompt.parts[-1][1]) == (begun, False)
    closed = ChatTemplate(TURNS + OPEN).render(messages)
    assert closed.text == f"<user>q</><assistant>{begun}</><assistant>"


def test_a_template_that_drops_it_gets_it_behind_the_opened_turn() -> None:
    source = "{% for m in messages if m.role == 'user' %}<{{ m.content }}>{% endfor %}" + OPEN
    text = ChatTemplate(source).render([user("q"), assistant("Once")], continue_final_message=True).text
    assert text == "<q><assistant>Once"


@pytest.mark.parametrize("messages", [[user("q")], [user("q"), CALLED]])
def test_only_text_of_an_assistant_can_be_continued(messages: Any) -> None:
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        ChatTemplate(TURNS).render(messages, continue_final_message=True)


def test_chats_continue_it_unless_told_otherwise() -> None:
    with Model(FakeModel("!", template=TURNS + OPEN)) as model:  # type: ignore[arg-type]
        messages = [ggfw.user("q"), ggfw.assistant("Once")]

        def prompt(**options: Any) -> str:
            ids = model.chat_request(messages, **options).prompt
            return model.tokenizer.detokenize(ids, special=True)

        assert prompt().endswith("<assistant>Once")
        assert prompt(continue_final_message=False).endswith("<assistant>Once</><assistant>")
        assert prompt(template_args={"add_generation_prompt": False}).endswith("<assistant>Once</>")


def test_a_system_message_meets_continuing_and_folding() -> None:
    source = (
        "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}" + OPEN
    )
    messages = [system("S"), user("q"), assistant("Once")]
    text = ChatTemplate(source).render(messages, continue_final_message=True).text
    assert text == "<user>S\n\nq</><assistant>Once"


def test_safe_does_what_jinja_does_with_the_templates_own_text() -> None:
    source = "{{ 'a<b> '|safe + messages[0].content + '<c>' }}|{{ messages[0].content|safe + '<c>' }}"
    assert ChatTemplate(source).render([user('"x"')]).text == 'a<b> &#34;x&#34;&lt;c&gt;|"x"<c>'
