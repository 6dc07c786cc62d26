"""Forced calls: every dialect's grammar accepts what the model was trained to write, and only what its parser reads."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_vocabs

from ggfw.chat import ChatTemplate, assistant, normalise, tool, user
from ggfw.chat.call_grammar import MAX_CALLS
from ggfw.chat.deltas import TextDelta, ToolCallDelta
from ggfw.chat.dialect import Dialect
from ggfw.chat.messages import calls_as_text
from ggfw.chat.tools import Tools
from ggfw.constraints import Compiler, Grammar, GrammarConstraint
from ggfw.descriptors import resolve
from ggfw.errors import InvalidRequest
from ggfw.registry import default_registry
from ggfw.tokenizer import Tokenizer

NAMES = sorted(default_registry().chat_dialects)
Calls = list[tuple[str, dict[str, Any]]]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
ONE: Calls = [("weather", {"city": "Zürich"})]
FULL: Calls = [("weather", {"city": 'a"}</b>\n', "days": -3, "unit": "F", "tags": ["x", "y"]})]
TWO: Calls = [("weather", {"city": "Rom", "days": 2}), ("now", {})]

#: Marks that are control tokens in the vocabularies of the families that have them.
CONTROL = (
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<|tool_call|>",
    "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>",
    "<start_function_call>", "<end_function_call>", "<escape>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
    "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>",
    "<|python_tag|>", "<|end_of_text|>",
    "<|START_ACTION|>", "<|END_ACTION|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|/tool_call|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<seed:tool_call>", "</seed:tool_call>",
    "<minimax:tool_call>", "</minimax:tool_call>", "<|tools_prefix|>", "<|tools_suffix|>", "<|function_call|>",
)  # fmt: skip


QUOTE = '<|"|>'


def js(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_json(key: str, calls: Calls) -> list[str]:
    return [f'{{"name": {js(n)}, "{key}": {js(a)}}}' for n, a in calls]


def xml(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f"<parameter={k}>\n{v if isinstance(v, str) else js(v)}\n</parameter>\n" for k, v in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def tags(
    begin: str, behind: str, end: str, key: str, key_end: str, call: tuple[str, Any], line: str = "\n"
) -> str:
    inner = "".join(
        f"{key}{k}{behind}{v if isinstance(v, str) else js(v)}{key_end}{line}" for k, v in call[1].items()
    )
    return f"{begin}{call[0]}{behind}{line}{inner}{end}"


def dsml(block: str, calls: Calls) -> str:
    def parameter(key: str, value: Any) -> str:
        text = isinstance(value, str)
        shown = value if text else js(value)
        return f'<｜DSML｜parameter name="{key}" string="{js(text)}">{shown}</｜DSML｜parameter>\n'

    inner = "".join(
        f'<｜DSML｜invoke name="{n}">\n{"".join(parameter(k, v) for k, v in a.items())}</｜DSML｜invoke>\n'
        for n, a in calls
    )
    return f"<｜DSML｜{block}>\n{inner}</｜DSML｜{block}>"


def gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, list):
        return "[" + ",".join(gemma(v, quote) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma(v, quote)}" for k, v in sorted(value.items())) + "}"
    return js(value)


def deepseek(calls: Calls, fenced: bool) -> str:
    one = "function<｜tool▁sep｜>{}\n```json\n{}\n```" if fenced else "{}<｜tool▁sep｜>{}"
    inner = [f"<｜tool▁call▁begin｜>{one.format(n, js(a))}<｜tool▁call▁end｜>" for n, a in calls]
    joined = ("\n" if fenced else "").join(inner)
    return f"<｜tool▁calls▁begin｜>{joined}<｜tool▁calls▁end｜>"


def write(name: str, calls: Calls) -> str:
    """How the family writes these calls."""
    match name:
        case "hermes" | "generic":
            return "\n".join(f"<tool_call>\n{c}\n</tool_call>" for c in as_json("arguments", calls))
        case "qwen3_coder":
            return "\n".join(xml(n, a) for n, a in calls)
        case "llama3":
            return "; ".join(as_json("parameters", calls))
        case "harmony":
            return "<|call|><|start|>assistant".join(
                f" to=functions.{n}<|channel|>commentary <|constrain|>json<|message|>{js(a)}"
                for n, a in calls
            )
        case "mistral":
            return "".join(f"[TOOL_CALLS]{n}[ARGS]{js(a)}" for n, a in calls)
        case "mistral_list":
            return f"[TOOL_CALLS][{', '.join(as_json('arguments', calls))}]"
        case "nemotron":
            return f"<TOOLCALL>[{', '.join(as_json('arguments', calls))}]</TOOLCALL>"
        case "granite":
            return f"<|tool_call|>[{', '.join(as_json('arguments', calls))}]"
        case "gemma3":
            return "\n".join(f"```tool_code\n{c}\n```" for c in as_json("parameters", calls))
        case "gemma4":
            return "".join(f"<|tool_call>call:{n}{gemma(a, QUOTE)}<tool_call|>" for n, a in calls)
        case "functiongemma":
            return "".join(
                f"<start_function_call>call:{n}{gemma(a, '<escape>')}<end_function_call>" for n, a in calls
            )
        case "deepseek_r1" | "deepseek_v3_1":
            return deepseek(calls, name == "deepseek_r1")
        case "deepseek_v3_2" | "deepseek_v4":
            return dsml("tool_calls" if name == "deepseek_v4" else "function_calls", calls)
        case "cohere":
            inner = [
                f'{{"tool_call_id": "{i}", "tool_name": {js(n)}, "parameters": {js(a)}}}'
                for i, (n, a) in enumerate(calls)
            ]
            return f"<|START_ACTION|>[{', '.join(inner)}]\n<|END_ACTION|>"
        case "lfm2":
            return "".join(
                f"<|tool_call_start|>[{n}({', '.join(f'{k}={js(v)}' for k, v in a.items())})]<|tool_call_end|>"
                for n, a in calls
            )
        case "phi4_mini":
            return f"<|tool_call|>[{', '.join(as_json('arguments', calls))}]<|/tool_call|>"
        case "functools":
            return f"functools[{', '.join(as_json('arguments', calls))}]"
        case "kimi_k2":
            inner = [
                f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{js(a)}<|tool_call_end|>"
                for i, (n, a) in enumerate(calls)
            ]
            return f"<|tool_calls_section_begin|>{''.join(inner)}<|tool_calls_section_end|>"
        case "seed_oss":
            return "\n".join(
                f"<seed:tool_call>\n{tags('<function=', '>', '</function>', '<parameter=', '</parameter>', call)}"
                "\n</seed:tool_call>"
                for call in calls
            )
        case "minimax_m2":
            inner = [
                tags('<invoke name="', '">', "</invoke>", '<parameter name="', "</parameter>", call)
                for call in calls
            ]
            return "<minimax:tool_call>\n" + "\n".join(inner) + "\n</minimax:tool_call>"
        case "minimax_m1":
            return "\n".join(f"<tool_calls>\n{c}\n</tool_calls>" for c in as_json("arguments", calls))
        case "apriel":
            return f"<tool_calls>[{', '.join(as_json('arguments', calls))}]</tool_calls>"
        case "apertus":
            return "<|tools_prefix|>[" + ", ".join(js({n: a}) for n, a in calls) + "]<|tools_suffix|>"
        case "minicpm5":
            return "\n".join(
                tags('<function name="', '">', "</function>", '<param name="', "</param>", call, "")
                for call in calls
            )
        case "gigachat3":
            head = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
            return "".join(head + c for c in as_json("arguments", calls))
        case "gigachat3_1":
            return "".join("<|function_call|>" + c for c in as_json("arguments", calls))
    raise AssertionError(f"{name} has no way to write calls here: add one")


# -- machinery --------------------------------------------------------------------------------------------------------


@cache
def tokenizer(control: bool) -> Tokenizer:
    words = [
        '"name"',
        '": "',
        '", "',
        "arguments",
        "parameters",
        "weather",
        "tool",
        "function",
        "city",
        '"}}',
    ]
    marks = CONTROL if control else ()
    return Tokenizer.from_metadata(
        synthetic_vocabs.bpe(
            words, control=("<eos>", *marks), eos_token_id=_eos(words), eot_token_id=_eos(words)
        )
    )


def _eos(words: list[str]) -> int:
    return synthetic_vocabs.bpe(words, control=("<eos>",))["tokenizer.ggml.tokens"].index("<eos>")


@cache
def compiler(control: bool) -> Compiler:
    return Compiler(tokenizer(control))


def dialect(name: str) -> Dialect:
    return resolve(default_registry().chat_dialects[name].load)()


def constraint(name: str, control: bool, tools: Tools, *, strict: bool = True) -> GrammarConstraint:
    known = tokenizer(control)

    def find(text: str) -> int | None:
        ids = known.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 and known.is_mark(ids[0]) else None

    grammar: Grammar = dialect(name).call_grammar(
        tools, required=tools.required, parallel=not tools.single, strict=strict, control=find
    )
    return compiler(control).compile(grammar)


def accepts(found: GrammarConstraint, control: bool, text: str) -> bool:
    for token in tokenizer(control).encode(text, add_special=False, parse_special=True):
        if not found.allows(token):
            return False
        found.accept(token)
    return found.accepting


PROMPT = {"harmony": "<|start|>assistant"}


def parse(name: str, text: str, tools: Tools, assured: bool = True) -> tuple[str, Calls]:
    parser = dialect(name).parser(PROMPT.get(name, ""), tools, assured=assured)
    deltas = [*parser.push(text), *parser.finish()]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for d in deltas:
        if isinstance(d, ToolCallDelta):
            names[d.index] = names.get(d.index, "") + d.name
            arguments[d.index] = arguments.get(d.index, "") + d.arguments
    calls = [(names[n], json.loads(arguments[n])) for n in sorted(names)]
    return "".join(d.text for d in deltas if isinstance(d, TextDelta)), calls


def several(name: str, control: bool, calls: Calls) -> Calls:
    """As many of the calls as one answer can hold: gpt-oss's ends with the token behind a call."""
    return calls[:1] if name == "harmony" and control else calls


REQUIRED = Tools.of(TOOLS, "required")
both = pytest.mark.parametrize("control", [True, False], ids=["control", "text"])
every = pytest.mark.parametrize("name", NAMES)


@both
@every
@pytest.mark.parametrize("calls", [ONE, FULL, TWO], ids=["one", "full", "two"])
def test_what_the_family_writes_is_accepted_and_read(name: str, control: bool, calls: Calls) -> None:
    calls = several(name, control, calls)
    text = write(name, calls)
    assert accepts(constraint(name, control, REQUIRED), control, text)
    assert parse(name, text, REQUIRED) == ("", calls)
    assert parse(name, text, REQUIRED, assured=False) == ("", calls)


@both
@every
def test_what_is_refused(name: str, control: bool) -> None:
    def refused(text: str, tools: Tools = REQUIRED) -> bool:
        return not accepts(constraint(name, control, tools), control, text)

    assert refused("") and refused("Hello.")
    assert refused(write(name, [("other", {})])), "a tool that was not offered"
    assert refused(write(name, [("weather", {"days": 1})])), "a required argument is missing"
    assert refused(write(name, [("weather", {"city": "a", "days": "two"})])), "a wrong type"
    assert refused(write(name, [("weather", {"city": "a", "unit": "K"})])), "not one of the values"
    assert refused(write(name, [("weather", {"city": "a", "colour": "b"})])), "an unknown argument"
    assert refused(write(name, ONE)[:-1]), "cut off"
    single = Tools.of(TOOLS, "required", parallel=False)
    assert not refused(write(name, ONE), single) and refused(write(name, TWO), single)
    named = Tools.of(TOOLS, {"type": "function", "function": {"name": "now"}})
    assert not refused(write(name, [("now", {})]), named) and refused(write(name, ONE), named)


@both
@every
def test_text_or_calls_when_nothing_is_required(name: str, control: bool) -> None:
    tools = Tools.of(TOOLS)
    before = "" if name in ("llama3", "harmony") else "Let me look.\n"
    calls = several(name, control, TWO)
    text = before + write(name, calls)
    assert accepts(constraint(name, control, tools), control, text)
    assert parse(name, text, tools) == (before.rstrip(), calls)
    assert not accepts(constraint(name, control, tools), control, write(name, [("other", {})]))
    plain = "<|channel|>final<|message|>Hello." if name == "harmony" else "Hello."
    assert accepts(constraint(name, control, tools), control, plain)
    assert parse(name, plain, tools) == ("Hello.", [])


@every
def test_a_cut_shows_no_markup(name: str) -> None:
    """Wherever an answer of forced calls is cut, nothing of it is text, and each call has its whole name."""
    text, one = write(name, TWO), len(write(name, TWO[:1]))
    for end in [*range(0, one + 30), *range(one + 30, len(text), 5)]:
        parser = dialect(name).parser(PROMPT.get(name, ""), REQUIRED, assured=True)
        deltas = [*parser.push(text[:end]), *parser.finish()]
        assert all(isinstance(d, ToolCallDelta) and not d.withdrawn for d in deltas), (text[:end], deltas)
        called = [d.name for d in deltas if isinstance(d, ToolCallDelta) and d.id]
        assert called == [call for call, _ in TWO][: len(called)]


@both
@every
def test_the_number_of_calls_is_bounded(name: str, control: bool) -> None:
    if several(name, control, TWO) != TWO:
        pytest.skip("one call ends its answer")
    found = constraint(name, control, REQUIRED)
    most = [("now", {})] * MAX_CALLS
    assert accepts(found.copy(), control, write(name, most))
    assert not accepts(found.copy(), control, write(name, [*most, ("now", {})]))


#: What a random walk may write: few letters, and what ends a string or a value in some dialect.
LETTERS = frozenset('aZ09-.:,;"{}[]()<>/=_|\n `\\u')
ENDS = (
    *(
        '"',
        '"}',
        '"]',
        "\n</parameter>\n",
        "</param>",
        "</｜DSML｜parameter>\n",
        QUOTE,
        "<escape>",
        "<|end|>",
        "}",
    ),
    "<|tool_calls_section_end|>",
)


@both
@every
@pytest.mark.parametrize("choice", ["required", "named"])
def test_whatever_the_grammar_allows_is_read(name: str, control: bool, choice: str) -> None:
    """Random walks through the grammar: each ends in calls of offered tools whose arguments fit."""
    tools = Tools.of(TOOLS, "weather" if choice == "named" else "required")
    finished = 0
    for seed in range(6):
        text = walk(constraint(name, control, tools), control, random.Random(seed))
        if text is None:
            continue
        finished += 1
        shown, calls = parse(name, text, tools)
        assert not shown and calls, text
        for called, arguments in calls:
            if called != "weather":
                assert called == "now" and choice == "required"
                continue
            assert isinstance(arguments["city"], str) and set(arguments) <= set(WEATHER["properties"])
            assert isinstance(arguments.get("days", 0), int) and arguments.get("unit", "C") in ("C", "F")
            assert all(isinstance(tag, str) for tag in arguments.get("tags", ()))
    assert finished >= 3


@cache
def likely(control: bool) -> np.ndarray:
    known = tokenizer(control)
    pieces = [known.piece(t).decode("utf-8", "replace") for t in range(known.n_vocab)]
    return np.asarray([t for t, piece in enumerate(pieces) if LETTERS >= set(piece) or known.is_mark(t)])


def walk(found: GrammarConstraint, control: bool, dice: random.Random) -> str | None:
    """A text that the grammar accepts, or None where the walk loses its way in a long string."""
    known, ids = tokenizer(control), list[int]()
    for _ in range(800):
        if found.accepting and (found.complete or dice.random() < 0.7):
            return known.decode(ids, special=True)
        wanted = ENDS[-1] if dice.random() < 0.1 else dice.choice(ENDS)
        end = known.encode(wanted, add_special=False, parse_special=True)
        if dice.random() < 0.5 and follows(found, end):
            ids += end
            continue
        mask = found.mask()
        allowed = [int(t) for t in likely(control)[mask[likely(control)]] if t not in known.eog_ids]
        allowed = allowed or [int(t) for t in np.flatnonzero(mask) if t not in known.eog_ids]
        if not allowed:
            return known.decode(ids, special=True) if found.accepting else None
        ids.append(dice.choice(allowed))
        found.accept(ids[-1])
    return None


def follows(found: GrammarConstraint, ids: list[int]) -> bool:
    """Whether all of ``ids`` may come next; then they are taken."""
    ahead = found.copy()
    for token in ids:
        if not ahead.allows(token):
            return False
        ahead.accept(token)
    for token in ids:
        found.accept(token)
    return True


@pytest.mark.parametrize("name", ["gemma3", "generic"])
def test_calls_of_earlier_turns_have_the_form_that_is_asked_for(name: str) -> None:
    """Where the template knows no calls, the dialect writes them into the history."""
    found = dialect(name)
    history = calls_as_text(
        normalise([user("?"), assistant("So.", tool_calls=[{"name": n, "arguments": a} for n, a in TWO])]),
        found.call_text,
        found.result_text,
    )
    assert parse(name, history[1]["content"], REQUIRED, assured=False) == ("So.", TWO)
    asked = found.tool_prompt(REQUIRED)
    assert found.format.calls[0].open in asked and "weather" in asked and "now" in asked


# -- which dialect a file gets ----------------------------------------------------------------------------------------

SELECTED = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "apriel",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "GigaChat3.1-10B-A1.8B": "gigachat3_1",
    "HuggingFaceTB-SmolLM3-3B": "generic",
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "MiniMax-M1": "minimax_m1",
    "MiniMax-M2": "minimax_m2",
    "fireworks-ai-llama-3-firefunction-v2": "functools",
    "moonshotai-Kimi-K2": "kimi_k2",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "unsloth-Apriel-1.5": "apriel",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_r1",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3_1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v3_2",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "google-gemma-2-2b-it": "gemma3",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "llama-cpp-deepseek-r1": "deepseek_r1",
    "llama-cpp-rwkv-world": "generic",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral_list",
    "openai-gpt-oss-120b": "harmony",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}


@pytest.mark.parametrize("template", SELECTED)
def test_the_template_selects_the_dialect(template: str, template_dir: Path) -> None:
    source = (template_dir / f"{template}.jinja").read_text("utf-8")
    found = default_registry().dialect_for({"tokenizer.chat_template": source})
    assert found.name == SELECTED[template]


#: Templates that write no calls, or none that their model writes.
SILENT = {"LFM2-8B-A1B", "google-gemma-2-2b-it", "ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world",
          "microsoft-Phi-3.5-mini-instruct"}  # fmt: skip


@pytest.mark.parametrize("template", sorted(SELECTED.keys() - SILENT))
def test_calls_that_the_template_writes_are_read(template: str, template_dir: Path) -> None:
    source = (template_dir / f"{template}.jinja").read_text("utf-8")
    name = default_registry().dialect_for({"tokenizer.chat_template": source}).name
    chat = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    ids = ("abcdefgh1", "abcdefgh2")
    calls = TWO if chat.capabilities.parallel_tool_calls else ONE
    asked = [{"id": i, "name": n, "arguments": a} for i, (n, a) in zip(ids, calls, strict=False)]
    results = [tool("ok", call_id=i, name=n) for i, (n, _) in zip(ids, calls, strict=False)]
    messages = [user("How is it?"), assistant(tool_calls=asked), *results]
    answer = chat.render(messages, tools=[t.definition() for t in Tools.of(TOOLS).callable]).text.partition(
        "How is it?"
    )[2]
    opening = (*(form.open for form in dialect(name).format.calls), '{"name": "weather"', " to=functions.")
    begin = min(at for at in (answer.find(mark) for mark in opening if mark) if at >= 0)
    assert parse(name, answer[begin:], Tools.of(TOOLS), assured=False)[1] == calls


@pytest.mark.parametrize("name", ["lfm2", "qwen3_coder", "gemma4", "harmony", "deepseek_v3_2"])
def test_names_need_not_be_words(name: str) -> None:
    """Schemas are full of names that no programming language would take."""
    schema = {
        "type": "object",
        "properties": {"from": {"type": "string"}, "user-id": {"type": "integer"}, "a.b": {"const": "x/y"}},
        "required": ["from", "user-id", "a.b"],
        "additionalProperties": False,
    }
    tools = Tools.of([{"name": "get-weather", "parameters": schema}], "required", parallel=False)
    found = 0
    for seed in range(6):
        text = walk(constraint(name, True, tools), True, random.Random(seed))
        if text is None:
            continue
        found += 1
        shown, calls = parse(name, text, tools)
        assert not shown and [called for called, _ in calls] == ["get-weather"], text
        arguments = calls[0][1]
        assert isinstance(arguments["from"], str) and isinstance(arguments["user-id"], int)
        assert arguments["a.b"] == "x/y" and len(arguments) == 3
    assert found


@pytest.mark.parametrize("name", ["qwen3_coder", "minimax_m2", "deepseek_v3_2"])
def test_bare_text_has_the_form_that_its_schema_wants(name: str) -> None:
    def accepted(schema: dict[str, Any], *values: str) -> list[bool]:
        parameters = {
            "type": "object",
            "properties": {"a": schema},
            "required": ["a"],
            "$defs": {"two": {"type": "string", "enum": ["x", "y"]}},
        }
        tools = Tools.of([{"name": "f", "parameters": parameters, "strict": True}], "required")
        return [
            accepts(constraint(name, False, tools, strict=False), False, write(name, [("f", {"a": value})]))
            for value in values
        ]

    assert accepted({"const": "x/y"}, "x/y", "x", "") == [True, False, False]
    assert accepted({"$ref": "#/$defs/two"}, "x", "z") == [True, False]
    assert accepted({"type": "string", "minLength": 2, "maxLength": 3}, "a", "é€", "abc", "abcd") == [
        *(False, True, True, False)
    ]
    assert accepted({"type": "string", "pattern": "^a/[0-9]+$"}, "a/1", "a/", "ba/1") == [True, False, False]
    assert accepted({"type": "string", "pattern": "b[0-9]", "maxLength": 4}, "ab1c", "abcd", "ab1cd") == [
        *(True, False, False)
    ]
    with pytest.raises(InvalidRequest, match="'format'"):
        accepted({"type": "string", "format": "date"}, "x")
