"""What a token is, beyond its text: type bits, the corrections llama.cpp makes to them, and the end-of-generation list.

GGUF files often mark tokens wrongly (an ``<|im_end|>`` of type normal would be printed, and generation would
run on), so llama.cpp corrects types by the token's text. The lists below are facts about model families,
taken from its loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type`` values."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Bits, since a corrected token is both what the file says and a control token.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, LSTRIP, RSTRIP, PRINTED = (1 << k for k in range(9))
SPECIAL = CONTROL | UNKNOWN  # printed only on request, matched in text only where specials are allowed
MARK = SPECIAL | PRINTED  # matched in text only where specials are allowed, printed or not

_BITS_OF_TYPE = np.zeros(256, np.uint16)
for _type, _bits in (
    (TokenType.NORMAL, NORMAL),
    (TokenType.UNKNOWN, UNKNOWN),
    (TokenType.CONTROL, CONTROL),
    (TokenType.USER_DEFINED, USER_DEFINED),
    (TokenType.UNUSED, UNUSED),
    (TokenType.BYTE, BYTE),
):
    _BITS_OF_TYPE[_type] = _bits

# Texts by which a role is found when the file does not name it.
ROLE_TEXTS: dict[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>",
        "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip

END_OF_GENERATION_TEXTS: tuple[str, ...] = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip

# gpt-oss: llama.cpp makes them user-defined, so that they are printed. But then text of users would become them, and a
# user could end the own message and begin one of the system; here they are recognised as control tokens are.
_ALWAYS_PRINTED = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def bits_of_types(types: NDArray[np.integer] | None, count: int) -> NDArray[np.uint16]:
    """Attribute bits ``(count,)`` of the file's token types; without types every token is normal."""
    if types is None:
        return np.full(count, NORMAL, np.uint16)
    small = np.where((types >= 0) & (types < 256), types, 0).astype(np.uint8)
    return _BITS_OF_TYPE[small]


def correct_attributes(
    bits: NDArray[np.uint16],
    find: Callable[[str], int | None],
    roles: dict[str, int | None],
) -> frozenset[int]:
    """Apply llama.cpp's corrections by token text.

    Args:
        bits: attribute bits per token; changed in place.
        find: id of a token text, or None.
        roles: ids of ``eos eot eom fim_…`` as far as the file names them; missing ones are filled in.

    Returns:
        The ids that end generation.
    """
    for role, texts in ROLE_TEXTS.items():
        if roles.get(role) is None:
            found = [t for t in map(find, texts) if t is not None]
            # llama.cpp takes whichever its hash table yields first; a token that is not EOS already says more.
            token = next((t for t in found if t != roles.get("eos")), found[0] if found else None)
            roles[role] = token
            if token is not None:
                bits[token] |= CONTROL
    ends = {roles[r] for r in ("fim_pad", "fim_rep", "fim_sep")}
    listed: dict[str, int] = {}
    for text in END_OF_GENERATION_TEXTS:
        token = find(text)
        if token is not None:
            listed[text] = token
            bits[token] |= CONTROL
    ends.update(listed.values())
    for text in _ALWAYS_PRINTED:
        token = find(text)
        if token is not None:
            bits[token] = USER_DEFINED | PRINTED
    ends.update(roles.get(r) for r in ("eos", "eot", "eom"))
    # gpt-oss and Solar end a channel, not the answer, with <|end|>.
    calls = "<|call|>" in listed or "<|calls|>" in listed
    if "<|end|>" in listed and calls and ("<|return|>" in listed or "<|flush|>" in listed):
        ends.discard(listed["<|end|>"])
        bits[listed["<|end|>"]] = USER_DEFINED | PRINTED
    # Gemma 4 and PLaMo have a </s> that is plain text.
    eos = roles.get("eos")
    plamo = find("<|plamo:eos|>")
    if "</s>" in listed and ("<|tool_response>" in listed or (plamo is not None and plamo == eos)):
        ends.discard(listed["</s>"])
        bits[listed["</s>"]] = NORMAL
    return frozenset(t for t in ends if t is not None)


def strip_attributes(
    bits: NDArray[np.uint16], find: Callable[[str], int | None], metadata: Mapping[str, object]
) -> None:
    """Mark tokens that swallow white space beside them; files do not say so, llama.cpp goes by names."""
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    arch = str(metadata.get("general.architecture", ""))
    name = str(metadata.get("general.name", "")).lower()
    if any(p in pre for p in ("jina-v2-de", "jina-v2-es", "jina-v2-code")) or any(
        a in arch for a in ("nomic-bert-moe", "jina-bert-v3")
    ):
        mask = find("<mask>")
        if mask is not None:
            bits[mask] |= LSTRIP
    elif "phi-3" in name or "phi3" in name:
        bits[(bits & (CONTROL | USER_DEFINED | UNKNOWN)) != 0] |= RSTRIP
        for text, on in (("</s>", True), ("<unk>", False), ("<s>", False), ("<|endoftext|>", False)):
            token = find(text)
            if token is not None:
                bits[token] = bits[token] | RSTRIP if on else bits[token] & ~np.uint16(RSTRIP)
    elif "modern-bert" in name:
        mask = find("[MASK]")
        if mask is not None:
            bits[mask] |= LSTRIP
