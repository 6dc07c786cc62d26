"""Small vocabularies made up here, as GGUF metadata, so that tokenizer tests need no model file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ggfw.tokenizer import TokenType
from ggfw.tokenizer.byte_level import BYTE_TO_CHAR, to_byte_alphabet

CHATML = ("<|im_start|>", "<|im_end|>")


def spm(
    pieces: Iterable[str],
    *,
    user_defined: Sequence[str] = (),
    control: Sequence[str] = (),
    more: Sequence[tuple[str, TokenType]] = (),
    **keys: Any,
) -> dict[str, Any]:
    """A ``llama`` vocabulary: unknown, BOS, EOS, 256 byte tokens, then ``pieces`` in order of falling score.

    Args:
        pieces: normal tokens.
        user_defined, control: further tokens of these types.
        more: further tokens with their types.
        keys: ``tokenizer.ggml.`` keys to set.
    """
    rows: list[tuple[str, TokenType, float]] = [
        ("<unk>", TokenType.UNKNOWN, 0.0),
        ("<s>", TokenType.CONTROL, 0.0),
        ("</s>", TokenType.CONTROL, 0.0),
    ]
    rows += [(f"<0x{b:02X}>", TokenType.BYTE, 0.0) for b in range(256)]
    rows += [(p, TokenType.NORMAL, -float(n)) for n, p in enumerate(pieces)]
    rows += [(t, TokenType.USER_DEFINED, 0.0) for t in user_defined]
    rows += [(t, TokenType.CONTROL, 0.0) for t in control]
    rows += [(t, kind, 0.0) for t, kind in more]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [r[0] for r in rows],
        "tokenizer.ggml.token_type": np.array([r[1] for r in rows], np.int32),
        "tokenizer.ggml.scores": np.array([r[2] for r in rows], np.float32),
        **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
    }


def bpe(
    words: Iterable[str] = (),
    *,
    pre: str | None = "gpt-2",
    control: Sequence[str] = CHATML,
    user_defined: Sequence[str] = (),
    **keys: Any,
) -> dict[str, Any]:
    """A byte-level ``gpt2`` vocabulary: 256 byte tokens, merges that build ``words`` from the left, then specials.

    Args:
        words: texts that become tokens.
        pre: pre-tokenizer name, None to leave the key out.
        control, user_defined: special tokens.
        keys: further ``tokenizer.ggml.`` keys.
    """
    tokens = list(BYTE_TO_CHAR)
    merges: list[str] = []
    known = set(tokens)
    for word in words:
        written = to_byte_alphabet(word)
        for cut in range(1, len(written)):
            left, right = written[:cut], written[cut]
            if left + right not in known:
                merges.append(f"{left} {right}")
                tokens.append(left + right)
                known.add(left + right)
    types = [TokenType.NORMAL] * len(tokens)
    types += [TokenType.CONTROL] * len(control) + [TokenType.USER_DEFINED] * len(user_defined)
    tokens += [*control, *user_defined]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata


def raw_bpe(words: Iterable[str], *, model: str = "gemma4", **keys: Any) -> dict[str, Any]:
    """A ``gemma4`` vocabulary: BOS, EOS, byte tokens, characters of ``words``, merges from the left."""
    words = list(words)
    tokens = ["<pad>", "<eos>", "<bos>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [TokenType.CONTROL] * 3 + [TokenType.BYTE] * 256
    merges: list[str] = []
    for char in sorted({c for word in words for c in word}):
        tokens.append(char)
    for word in words:
        for cut in range(1, len(word)):
            joined = word[: cut + 1]
            if joined not in tokens:
                merges.append(f"{word[:cut]} {word[cut]}")
                tokens.append(joined)
    types += [TokenType.NORMAL] * (len(tokens) - len(types))
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        **{f"tokenizer.ggml.{k}": v for k, v in keys.items()},
    }
