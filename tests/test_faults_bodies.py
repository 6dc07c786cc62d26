"""What is counted before a body is read, and before a text is encoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import write_llama

import ggfw
from ggfw.errors import ContextLengthExceeded
from ggfw.server.endpoint import few_values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('ab,[{"\\\n'), max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=30,
)


def n_values(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(n_values, value))
    if isinstance(value, dict):
        return 1 + sum(map(n_values, value.values()))
    return 1


@given(JSON, st.booleans())
def test_values_are_counted_outside_of_strings(value: Any, compact: bool) -> None:
    text = json.dumps(value, separators=(",", ":") if compact else None).encode()
    n = n_values(value)
    assert few_values(text, 2 * n)  # an empty list counts twice
    assert not few_values(text, n - 2)


def test_text_full_of_commas_is_one_value() -> None:
    assert few_values(json.dumps([",[{" * 10_000, '\\",\\'] * 3).encode(), 10)
    assert not few_values(b"[" + b'"",' * 4_000 + b"1]", 10)


@pytest.mark.parametrize("text", ["q" * 300_000, "ab cd " * 60_000, "\u0301" * 300_000])
def test_what_is_far_too_long_is_not_encoded(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with ggfw.load(write_llama(tmp_path_factory.mktemp("m") / "m.gguf"), threads=1, ctx=64) as model:
        encoded = 0
        encode = model.tokenizer._encode

        def counting(part: str, allowed: Any) -> list[int]:
            nonlocal encoded
            encoded += len(part)
            return encode(part, allowed)

        monkeypatch.setattr(model.tokenizer, "_encode", counting)
        with pytest.raises(ContextLengthExceeded, match="more than") as caught:
            model.generate(text)
        assert caught.value.n_prompt_tokens > caught.value.n_ctx == 64
        with pytest.raises(ContextLengthExceeded, match="more than"):
            model.chat([{"role": "user", "content": text}])
        assert encoded < 200_000
