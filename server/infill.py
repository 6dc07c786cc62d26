"""Filling in the middle: the prompt that models trained for it want."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ggfw.errors import InvalidRequest
from ggfw.library import Model


def can_infill(model: Model) -> bool:
    """Whether the model's vocabulary has the three marks."""
    return all(model.tokenizer.role(name) is not None for name in ("fim_pre", "fim_suf", "fim_mid"))


def infill_prompt(
    model: Model, prefix: str, suffix: str, *, prompt: str = "", extra: Sequence[Any] = ()
) -> list[int]:
    """Token ids: other files, then prefix mark and text, suffix mark and text, middle mark, what is there already.

    Args:
        prefix, suffix: text before and after the gap, as text only.
        prompt: the beginning of what stands in the gap.
        extra: other files, ``{"filename", "text"}``.

    Raises:
        InvalidRequest: the model has no such marks.
    """
    tokenizer = model.tokenizer
    marks = [tokenizer.role(name) for name in ("fim_pre", "fim_suf", "fim_mid")]
    pre, suf, mid = marks
    if pre is None or suf is None or mid is None:
        raise InvalidRequest(
            f"{model.name} has no tokens for filling in the middle; send what comes before the gap alone",
            "suffix",
        )

    def text(of: str) -> list[int]:
        return tokenizer.encode(of, add_special=False)

    ids: list[int] = []
    repo, separator = tokenizer.role("fim_rep"), tokenizer.role("fim_sep")
    if extra and repo is not None:
        ids += [repo, *text("project\n")]
    for n, file in enumerate(extra):
        if not (isinstance(file, dict) and isinstance(file.get("text"), str)):
            raise InvalidRequest(f"input_extra[{n}] must be an object with a text", "input_extra")
        name = str(file.get("filename") or f"file{n}")
        if separator is not None:
            ids += [separator, *text(f"{name}\n")]
        ids += text(file["text"] + "\n")
    if extra and separator is not None:
        ids += [separator, *text("filename\n")]
    ids += [pre, *text(prefix), suf, *text(suffix), mid, *text(prompt)]
    # BOS where the model asks for it, found by encoding nothing.
    start = [token for token in tokenizer.encode("", add_special=True) if token == tokenizer.bos_id]
    return [*start, *ids]
