"""Reasoning on, off, and in measure: switches of templates, efforts, budgets that close the block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel, FakeTokenizer

import ggfw
from ggfw.chat.dialect import Reasoning
from ggfw.chat.reasoning import ReasoningOptions
from ggfw.chat.template import ChatTemplate
from ggfw.constraints.budget import ReasoningBudget
from ggfw.errors import InvalidRequest
from ggfw.library import Model
from ggfw.plugins.chat_dialects.harmony import Harmony

ASK = [ggfw.user("q")]
TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
OPENED = TURNS + "<|im_start|>assistant\n<think>\n"
SWITCHED = TURNS + (
    "<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def thinker(template: str, opening: str = "", answer: str = "42", thought: str = "hm ") -> Model:
    """A model that thinks for ever, unless the block is closed; then it answers."""

    def policy(tokens: list[int], n_prompt: int) -> np.ndarray:
        text = fake.tokenizer.decode(tokens, special=True).rpartition("assistant\n")[2]
        begun = "<think>" in text
        if not begun and not text.endswith(opening):
            at = next(n for n in range(len(opening), -1, -1) if text.endswith(opening[:n]))
            wanted = opening[at:]
        elif begun and "</think>" not in text:
            inside = text.partition("<think>")[2].lstrip("\n")
            wanted = thought[len(inside) % len(thought) :]
        else:
            said = text.partition("</think>")[2].lstrip("\n") if begun else text
            wanted = answer[len(said) :]
        logits = np.full(fake.n_vocab, -30.0, np.float32)
        logits[wanted.encode()[0] if wanted else fake.tokenizer.eos_id] = 30.0
        return logits

    fake = FakeModel(policy=policy, template=template, n_ctx=2048)
    return Model(fake)  # type: ignore[arg-type]


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "switch", "limit"),
    [
        ({}, None, None),
        ({"think": True}, True, None),
        ({"think": False}, False, 0),
        ({"effort": "none"}, False, 0),
        ({"effort": "low"}, True, None),
        ({"effort": "low", "budget": 7}, True, 7),
        ({"budget": 0}, False, 0),
        ({"budget": -1}, None, None),
        ({"think": True, "budget": 0}, True, 0),
    ],
)
def test_what_options_mean(options: dict[str, Any], switch: bool | None, limit: int | None) -> None:
    made = ReasoningOptions(**options)
    assert (made.switch, made.limit) == (switch, limit)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"think": "yes"}, "think"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"reasoning_budget": True}, "reasoning_budget"),
        ({"reasoning_budget": 1.5}, "reasoning_budget"),
        ({"think": True, "reasoning_effort": "none"}, "reasoning_effort"),
    ],
)
def test_malformed_options(options: dict[str, Any], param: str) -> None:
    with thinker(OPENED) as model, pytest.raises(InvalidRequest) as caught:
        model.chat_request(ASK, **options)
    assert caught.value.param == param


def test_templates_are_told_in_their_own_words() -> None:
    def said(source: str, **options: Any) -> dict[str, Any]:
        return ReasoningOptions(**options).template_arguments(ChatTemplate(source))

    assert said(SWITCHED, think=False)["enable_thinking"] is False
    assert said(SWITCHED, think=True)["enable_thinking"] is True
    assert said(SWITCHED) == {}
    efforts = "{{ messages[0].content }}{{ reasoning_effort | default('medium') }}"
    assert said(efforts, effort="high")["reasoning_effort"] == "high"
    assert said(efforts, think=False)["reasoning_effort"] == "low", "it has no switch: the least effort"
    assert "reasoning_effort" not in said(SWITCHED, think=False)
    given = ReasoningOptions(think=True).template_arguments(
        ChatTemplate(SWITCHED), {"enable_thinking": False, "x": 1}
    )
    assert given["enable_thinking"] is False and given["x"] == 1, "what the request says itself counts"


def test_reasoning_of_the_history_goes_where_the_template_wants_it() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content or '' }}|{{ m.content }}{% endfor %}"
    history = [ggfw.user("q"), ggfw.assistant("a", reasoning="because"), ggfw.user("r")]
    assert "because|a" in ChatTemplate(source).render(history).text
    assert "because" not in ChatTemplate(TURNS).render(history).text


# -- the budget ------------------------------------------------------------------------------------------------------


def test_an_open_block_is_closed_when_its_tokens_are_used_up() -> None:
    with thinker(OPENED) as model:
        result = model.chat(ASK, reasoning_budget=6, max_tokens=60)
        assert (result.reasoning, result.text, result.finish_reason) == ("hm hm", "42", "stop")
        assert result.usage.completion_tokens == 6 + len("\n</think>\n\n") + len("42") + 1
        whole = model.chat(ASK, max_tokens=60)
        assert whole.finish_reason == "length" and not whole.text
        stream = model.chat_stream(ASK, reasoning_budget=6, max_tokens=60)
        assert "".join(stream) == "42" and stream.result().reasoning == "hm hm"  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("options", [{"reasoning_budget": 0}, {"think": False}, {"reasoning_effort": "none"}])
def test_off_closes_an_open_block_at_once(options: dict[str, Any]) -> None:
    with thinker(OPENED) as model:
        result = model.chat(ASK, max_tokens=60, **options)
        assert (result.reasoning, result.text) == ("", "42")


def test_a_template_with_a_switch_closes_it_itself() -> None:
    with thinker(SWITCHED) as model:
        off, on = (model.chat_request(ASK, think=think) for think in (False, True))
        assert off.constraint is None and on.constraint is None
        text = model.tokenizer.detokenize(off.prompt, special=True)
        assert text.endswith("<think>\n\n</think>\n\n")
        assert model.chat(ASK, think=False, max_tokens=60).text == "42"


def test_a_block_that_is_shorter_is_left_alone() -> None:
    script = "short</think>\n\nyes"
    with Model(FakeModel(script, template=OPENED, n_ctx=2048)) as model:  # type: ignore[arg-type]
        free = model.chat(ASK)
        bound = model.chat(ASK, reasoning_budget=100)
        assert (bound.reasoning, bound.text) == (free.reasoning, free.text) == ("short", "yes")
        assert bound.token_ids == free.token_ids


def test_a_schema_holds_behind_a_closed_block() -> None:
    with thinker(OPENED, answer='{"a": 1}') as model:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        result = model.chat(ASK, reasoning_budget=4, schema=schema, max_tokens=80)
        assert result.text == '{"a": 1}' and result.reasoning == "hm h"


def test_a_constraint_of_ones_own_cannot_be_combined() -> None:
    class Everything:
        def allows(self, token: int) -> bool:
            return True

        def accept(self, token: int) -> None: ...

        def first_bytes(self) -> Any:
            return [True] * 256

        def first_byte(self, token: int) -> int:
            return 0

    with thinker(OPENED) as model:
        with pytest.raises(InvalidRequest, match="reasoning_budget"):
            model.chat_request(ASK, reasoning_budget=4, constraint=Everything())
        assert isinstance(
            model.chat_request(ASK, think=False, constraint=Everything()).constraint, Everything
        )


# -- the constraint itself -------------------------------------------------------------------------------------------


def vocabulary(*pieces: str) -> Any:
    tokenizer = FakeTokenizer(pieces)
    for piece in pieces:
        tokenizer.specials[piece] = tokenizer.id_of(piece)
    return tokenizer


def take(budget: ReasoningBudget, tokenizer: Any, text: str) -> None:
    for token in tokenizer.encode(text, add_special=False, parse_special=True):
        assert budget.allows(token) and budget.mask()[token], text
        budget.accept(token)


def forced(budget: ReasoningBudget, tokenizer: Any) -> str:
    """Follow the budget while it leaves no choice."""
    ids: list[int] = []
    while budget.mask().sum() == 1:
        token = int(np.flatnonzero(budget.mask())[0])
        assert not budget.allows(token - 1) and budget.bitmask()[token >> 5] == 1 << (token & 31)
        budget.accept(token)
        ids.append(token)
    return tokenizer.detokenize(ids, special=True)


def test_a_block_that_the_model_opens_counts_from_there() -> None:
    tokenizer = vocabulary("<think>", "</think>")
    budget = ReasoningBudget(None, tokenizer, Reasoning("</think>", False, "<think>"), 3)
    take(budget, tokenizer, "\n<think>ab")
    assert budget.n_inside == 2 and budget.mask().all()
    copy = budget.copy()
    take(budget, tokenizer, "c")
    assert forced(budget, tokenizer) == "\n</think>\n\n"
    take(budget, tokenizer, "answer with <think> in it, for ever")
    assert copy.n_inside == 2 and copy.mask().all()
    take(copy, tokenizer, "</think>yes, and <think>abcdefg")
    assert copy.n_inside == 2


def test_an_answer_without_a_block_is_free() -> None:
    tokenizer = vocabulary("<think>", "</think>")
    budget = ReasoningBudget(None, tokenizer, Reasoning("</think>", False, "<think>"), 0)
    take(budget, tokenizer, "Hello <think>x")
    assert budget.mask().all()


def test_a_second_block_is_closed_at_once() -> None:
    tokenizer = vocabulary("<think>", "</think>")
    budget = ReasoningBudget(None, tokenizer, Reasoning("</think>", True, "<think>"), 2)
    take(budget, tokenizer, "ab")
    assert forced(budget, tokenizer) == "\n</think>\n\n"
    take(budget, tokenizer, "<think>")
    assert forced(budget, tokenizer) == "\n</think>\n\n"


def test_a_mark_that_was_begun_is_finished() -> None:
    tokenizer = FakeTokenizer()
    block = Reasoning("</think>", True, "<think>")
    budget = ReasoningBudget(None, tokenizer, block, 4)  # type: ignore[arg-type]
    take(budget, tokenizer, "ab</")
    assert forced(budget, tokenizer) == "think>\n\n"


MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>")


@pytest.mark.parametrize("calls", [False, True])
def test_harmony_goes_on_with_the_final_message(calls: bool) -> None:
    tokenizer = vocabulary(*MARKS)
    block = Harmony().reasoning_budget("<|start|>assistant", calls=calls)
    assert block is not None
    budget = ReasoningBudget(None, tokenizer, block, 3)
    take(budget, tokenizer, "<|channel|>analysis<|message|>abc")
    behind = "" if calls else "<|channel|>final<|message|>"
    assert forced(budget, tokenizer) == f"<|end|><|start|>assistant{behind}"


def test_harmony_counts_all_messages_of_reasoning_and_no_calls() -> None:
    tokenizer = vocabulary(*MARKS)
    block = Harmony().reasoning_budget("<|start|>assistant", calls=False)
    assert block is not None
    budget = ReasoningBudget(None, tokenizer, block, 3)
    take(budget, tokenizer, "<|channel|>analysis<|message|>a<|end|><|start|>assistant")
    calling = budget.copy()
    take(budget, tokenizer, "<|channel|>analysis<|message|>bc")
    assert forced(budget, tokenizer).endswith("<|channel|>final<|message|>")
    take(calling, tokenizer, '<|channel|>commentary to=functions.f <|message|>{"a": "long"}')
    assert calling.n_inside == 1 and calling.mask().all()


@pytest.mark.parametrize("inside", [True, False])
def test_calls_may_end_a_block_that_has_a_budget(inside: bool) -> None:
    """They are not cut by the words that close the block."""
    tokenizer = FakeModel().tokenizer
    block = Reasoning("</think>", inside, "<think>", interrupts=("<calls>",))
    budget = ReasoningBudget(None, tokenizer, block, 12)
    take(budget, tokenizer, ("" if inside else "<think>") + "hm <calls> go on for ever")
    assert not budget.forced()
