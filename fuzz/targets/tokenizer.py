"""Tokenizers: any text through every kind, and vocabularies that are not what they should be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.choices import Choices
from fuzz.target import Target
from ggfw.errors import GgfwError
from ggfw.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import synthetic_vocabs as vocabs
import tiny_models

_WORDS = ("hello", "world", "the", " the", "ing", "12", "  ", "\n\n", "don't", "ü", "😀", "中文")
_PRES = ("gpt-2", "llama-bpe", "qwen2", "gpt-4o", "deepseek-llm", "tekken", "default", "no-such", "")


def _all() -> list[Tokenizer]:
    made = [Tokenizer.from_metadata(tiny_models.vocabulary())]
    made.append(
        Tokenizer.from_metadata(
            vocabs.spm(["▁the", "▁", "a", "he"], user_defined=["  ", "\t\t"], control=["<|x|>"])
        )
    )
    made += [Tokenizer.from_metadata(vocabs.bpe(_WORDS, pre=pre)) for pre in _PRES[:6]]
    return made


def _check(tokenizer: Tokenizer, c: Choices, text: str) -> None:
    special = c.chance(50)
    ids = tokenizer.encode(text, add_special=c.chance(50), parse_special=special)
    assert all(0 <= i < tokenizer.n_vocab for i in ids)
    decoder = tokenizer.decoder(special=True)
    streamed = "".join(decoder.push(i) for i in ids) + decoder.flush()
    assert streamed == tokenizer.decode(ids, special=True), "streaming decodes differently"
    if not special:
        assert not any(tokenizer.is_control(i) for i in tokenizer.encode(text, add_special=False)), (
            "control tokens from text"
        )


def text() -> Target:
    """Texts and ids."""
    made = _all()

    def run(data: bytes) -> None:
        c = Choices(data)
        tokenizer = made[c.below(len(made))]
        if c.chance(30):
            ids = [c.below(tokenizer.n_vocab) for _ in range(c.below(60))]
            decoder = tokenizer.decoder(special=c.chance(50))
            "".join(decoder.push(i) for i in ids) + decoder.flush()
            return
        given = (
            c.text(200)
            if c.chance(60)
            else c.raw(1 << 16).decode("utf-8", c.pick(("replace", "surrogateescape")))
        )
        _check(tokenizer, c, given)
        if c.chance(10):
            _check(tokenizer, c, (c.text(6) or "a") * 5000)

    return Target(run, [bytes(range(256)), "\u0130 don't 😀".encode() * 9])


def vocabulary() -> Target:
    """Metadata of vocabularies."""

    def run(data: bytes) -> None:
        c = Choices(data)
        base: dict[str, Any] = (
            dict(tiny_models.vocabulary())
            if c.chance(40)
            else dict(vocabs.bpe(_WORDS, pre=c.pick(_PRES) or None))
        )
        for _ in range(c.below(4) + 1):
            key = c.pick(sorted(base))
            value = base[key]
            kind = c.below(7)
            if kind == 0:
                del base[key]
                if not base:
                    return
            elif kind == 1:
                base[key] = c.json(2)
            elif kind == 2 and isinstance(value, list) and value:
                value = list(value)
                value[c.below(len(value))] = c.text(9) if c.chance(80) else value[c.below(len(value))]
                base[key] = value
            elif kind == 3 and isinstance(value, list | np.ndarray):
                base[key] = value[: c.below(len(value) + 1)]
            elif kind == 4 and isinstance(value, np.ndarray) and len(value):
                value = value.copy()
                value[c.below(len(value))] = c.pick((0, 1, 2, 3, 4, 5, 6, 7, 100, -1))
                base[key] = value
            elif kind == 5:
                base[key] = c.edge() * c.pick((1, -1))
            else:
                base["tokenizer.ggml." + c.pick(
                    ("eos_token_id", "bos_token_id", "model", "pre", "add_bos_token", "merges", "precompiled_charsmap",
                     "eot_token_id", "add_space_prefix", "remove_extra_whitespaces", "fim_pre_token_id"))] = c.json(1)  # fmt: skip  # noqa: E501
        for key, value in base.items():  # a file's bytes never become other surrogates than these
            if isinstance(value, list) and all(isinstance(v, str) for v in value):
                base[key] = [v.encode("utf-8", "replace").decode("utf-8", "surrogateescape") for v in value]
        tokenizer = Tokenizer.from_metadata(base)
        ids = tokenizer.encode("hello 12 wörld\n", add_special=True, parse_special=True)
        assert all(0 <= i < tokenizer.n_vocab for i in ids), "an id outside the vocabulary"
        tokenizer.decode(ids)
        tokenizer.pieces()

    return Target(run, [bytes(range(256)), bytes(range(255, -1, -1))], (GgfwError,))
