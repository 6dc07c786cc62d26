"""A conversation is found again in the tokens that were drawn, however its text is encoded."""

from __future__ import annotations

import codecs
import random
from pathlib import Path
from typing import Any

import pytest
from fake_model import FakeModel
from hypothesis import given
from hypothesis import strategies as st

import ggfw
from ggfw.cache import PAGE_SIZE
from ggfw.engine import Engine
from ggfw.library import Model
from ggfw.request import Request
from ggfw.respelling import MOST_CONVERSATIONS, Respelling
from ggfw.sampling import Params

PIECES = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aa",
    b"abab",
    b"<M>",
    b"<",
    b"\xc3",
    b"\xa9",
    b"\xc3\xa9",
    b"a\xc3",
    b"\xa9b",
]
PIECES += ["\ufffd".encode(), b"\xef", b"\xbf\xbd"]
MARK = PIECES.index(b"<M>")
tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


def respelling(**options: Any) -> Respelling:
    return Respelling(lambda i: PIECES[i], lambda i: i == MARK, **options)


def shown(ids: list[int]) -> tuple[str, ...]:
    """The text of tokens, mark by mark, and the beginning of a character at its end."""
    parts = [b""]
    for token in ids:
        if token == MARK:
            parts.append(b"")
        else:
            parts[-1] += PIECES[token]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = decoder.decode(parts.pop())
    return (*(part.decode("utf-8", "replace") for part in parts), last, decoder.getstate()[0].hex())


def ends(ids: list[int]) -> dict[tuple[str, ...], list[int]]:
    """How many tokens show each beginning of what all of them show."""
    found: dict[tuple[str, ...], list[int]] = {}
    for n in range(len(ids) + 1):
        found.setdefault(shown(ids[:n]), []).append(n)
    return found


@given(st.lists(tokens, min_size=1, max_size=4), tokens)
def test_the_longest_common_text_is_written_as_it_was_drawn(known: list[list[int]], ids: list[int]) -> None:
    spelling = respelling()
    for old in known:
        spelling.remember("k", old)
    got = spelling.respell("k", list(ids))
    assert shown(got) == shown(ids)
    new = ends(ids)
    pairs = [
        (j, [*old[:i], *ids[j:]])
        for old in known
        for text, its in ends(old).items()
        for i in its
        for j in new.get(text, ())
    ]
    longest = max(j for j, _ in pairs)
    assert got in [spelled for j, spelled in pairs if j == longest]
    assert spelling.respell("other", ids) is ids


def test_what_is_remembered_has_bounds() -> None:
    spelling = respelling(most_tokens=1000)
    for n in range(3 * MOST_CONVERSATIONS):
        spelling.remember(None, [n % 3, *(int(d) for d in f"{n:08b}")])
        assert len(spelling) <= MOST_CONVERSATIONS
    spelling.remember(None, [0] * 990)
    assert len(spelling) == 2
    spelling.remember(None, [0] * 995)
    assert len(spelling) == 1, "a conversation that goes on takes the place of its beginning"
    spelling.remember(None, [0] * 2000)
    assert len(spelling) == 0


def test_a_conversation_that_is_used_is_remembered_longest() -> None:
    a, b, ab = PIECES.index(b"a"), PIECES.index(b"b"), PIECES.index(b"ab")
    spelling = respelling()
    spelling.remember(None, [ab, ab])
    for n in range(MOST_CONVERSATIONS - 1):
        spelling.remember(n, [a])
    assert spelling.respell(None, [a, b, a, b]) == [ab, ab]  # a use
    spelling.remember("one", [a])
    assert spelling.respell(None, [a, b, a, b]) == [ab, ab]
    for n in range(MOST_CONVERSATIONS):
        spelling.remember(str(n), [a])
    assert spelling.respell(None, [a, b, a, b]) == [a, b, a, b]


def test_ten_turns_in_tokens_of_the_models_own() -> None:
    """The tokenizer knows bytes only, the model answers in words."""
    model = FakeModel(pieces=["hello ", "world ", "again "], n_ctx=2048, n_parallel=1)
    own = [model.tokenizer.id_of(text) for text in ("hello ", "world ", "again ")]
    script = own * 30
    model._script = script
    engine = Engine(model)
    text, dice, new = "question: " * 9, random.Random(1), 0
    for turn in range(10):
        prompt = model.tokenizer.encode(text)
        asked = Request(prompt, Params(temperature=0), max_tokens=len(script), of_text=True)
        before = model.executor.n_fed
        result = engine.submit(asked).result(10)
        done = model.executor.n_fed - before - (len(result.token_ids) - 1)
        if turn:
            assert done <= new + PAGE_SIZE
            assert result.usage.cached_tokens >= len(asked.prompt) - new - PAGE_SIZE
        assert model.tokenizer.decode(asked.prompt) == text
        more = "and then? " * dice.randrange(1, 4)
        new = len(more)
        text += result.text + more
    engine.close()


@pytest.mark.parametrize("of_text, cache_prompt", [(False, True), (True, False)])
def test_ids_stay_as_they_are_and_so_do_prompts_that_share_nothing(of_text: bool, cache_prompt: bool) -> None:
    model = FakeModel(pieces=["hello "])
    model._script = [model.tokenizer.id_of("hello ")]
    engine = Engine(model)
    first = engine.submit(Request(model.tokenizer.encode("x"), Params(temperature=0))).result(5)
    ids = model.tokenizer.encode("x" + first.text + "y")
    request = Request(list(ids), Params(temperature=0), of_text=of_text, cache_prompt=cache_prompt)
    engine.submit(request).result(5)
    assert request.prompt == ids
    again = Request(list(ids), Params(temperature=0), of_text=True)
    engine.submit(again).result(5)
    # The latest request with these ids has left them to others, unless it stays out of everything.
    assert again.prompt == (ids if cache_prompt else [*ids[:2], *first.token_ids[:1], ids[-1]])
    engine.close()


def talk(model: Model, n_turns: int, n_answer: int, **options: Any) -> None:
    """A conversation by text; each turn evaluates what is new, and at most a page besides."""
    messages = [ggfw.user("Tell me everything that you know about rivers, and about Japanese food.")]
    answered = 0
    for turn in range(n_turns):
        before = model.engine.metrics().prompt_tokens
        request = model.chat_request(messages, max_tokens=n_answer, seed=turn, **options)
        result = model.submit(request).result()
        done = model.engine.metrics().prompt_tokens - before
        if turn:
            assert done <= len(request.prompt) - answered + PAGE_SIZE, turn
        answered = len(request.prompt) + len(result.token_ids)
        messages += [ggfw.assistant(result.text), ggfw.user(f"Go on with part {turn + 2}, please.")]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.8, 1.2])
def test_a_long_conversation_by_text(smollm2_path: Path, temperature: float) -> None:
    with ggfw.load(smollm2_path, ctx=8192) as model:
        talk(model, 10, 700, temperature=temperature)


DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    "file, options, respells",
    [
        ("models/llama.gguf", {}, False),  # float32: bit for bit what a fresh process would say
        ("models/llama.gguf", {"deterministic": False}, True),
        ("quants/q-llama-small-Q8_0.gguf", {}, True),
        ("quants/q-llama-small-Q8_0.gguf", {"deterministic": True}, False),
    ],
)
def test_nothing_is_respelled_where_results_depend_on_the_request_alone(
    file: str, options: dict[str, Any], respells: bool
) -> None:
    with ggfw.load(DATA / file, threads=1, ctx=128, **options) as model:
        assert (model.engine._intake._respelling is not None) == respells


@pytest.mark.slow
def test_asked_for_the_same_bits_a_prompt_is_what_the_tokenizer_says(smollm2_path: Path) -> None:
    with ggfw.load(smollm2_path, ctx=2048, deterministic=True) as model:
        assert model.engine._intake._respelling is None
