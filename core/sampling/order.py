"""The names of the chain's stages and how an order of them is written: llama.cpp's names, aliases and letters."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from ggfw.errors import InvalidRequest, brief

#: llama.cpp's default order. Logit bias, suppressed tokens and ``min_tokens`` always come before it.
DEFAULT_SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip

#: One letter per stage, as in llama.cpp's ``--sampler-seq``.
LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}

#: Every built-in stage that an order may name.
SAMPLERS = tuple(LETTERS.values())

_ALIASES = {
    **{
        spelling: name
        for name in SAMPLERS
        for spelling in (name, name.replace("_", "-"), name.replace("_", ""))
    },
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical": "typ_p",
    "typical_p": "typ_p",
    "typical-p": "typ_p",
}

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


#: Stages of a chain.
MAX_STAGES = 32


def samplers(name: str, value: Any) -> tuple[str, ...]:
    """The stages that ``value`` names, in its order and under their canonical names; None is the default order.

    Args:
        name: of the parameter, for errors.
        value: a list of names, one string of names separated by ``;`` or ``,``, or llama.cpp's letters (``edkypmxt``).
            Names that are no built-in stage are kept: they may be a plugin's.

    Raises:
        InvalidRequest: something else.
    """
    if value is None:
        return DEFAULT_SAMPLERS
    if isinstance(value, str):
        text = value.strip()
        if text.lower() not in _ALIASES and text and all(letter in LETTERS for letter in text):
            return tuple(LETTERS[letter] for letter in text)
        value = [part for part in re.split("[;,]", text) if part.strip()]
    try:
        items = iter(value)
    except TypeError:  # an array without dimensions is one, too
        raise InvalidRequest(
            f"{name} must be a list of stage names, not {brief(value)}", param=name
        ) from None
    out = tuple(_canonical(name, item) for item in islice(items, MAX_STAGES + 1))
    if len(out) > MAX_STAGES:
        raise InvalidRequest(f"{name} has more than {MAX_STAGES} stages; leave out repetitions", param=name)
    return out


def known_samplers(text: str) -> tuple[str, ...]:
    """The built-in stages of a file's ``general.sampling.sequence`` (``;`` between names); others are left out."""
    return tuple(_ALIASES[item] for part in text.split(";") if (item := part.strip().lower()) in _ALIASES)


def _canonical(name: str, item: Any) -> str:
    if not isinstance(item, str) or not _NAME.fullmatch(item.strip()):
        raise InvalidRequest(
            f"{name} must name stages such as {', '.join(SAMPLERS)}, not {brief(item)}", param=name
        )
    return _ALIASES.get(item.strip().lower(), item.strip())
