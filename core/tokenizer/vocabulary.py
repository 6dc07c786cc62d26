"""The vocabulary of a GGUF file: texts, types, scores and the ids with a role."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ggfw.errors import ModelFileError, brief
from ggfw.records import dataclass
from ggfw.tokenizer import attributes as attr
from ggfw.tokenizer.specials import SpecialTable, SpecialToken

_PREFIX = "tokenizer.ggml."
# Role -> metadata keys, the first present one counts. "seperator" is how the format spells it.
_ROLE_KEYS: dict[str, tuple[str, ...]] = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id", "separator_token_id"),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("prefix_token_id", "fim_pre_token_id"),
    "fim_suf": ("suffix_token_id", "fim_suf_token_id"),
    "fim_mid": ("middle_token_id", "fim_mid_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}


def text_array(metadata: Mapping[str, Any], key: str) -> list[str] | None:
    """A string array of the metadata as a list, or None if the key is absent.

    Raises:
        ModelFileError: the value is not an array of strings.
    """
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, str | Mapping):
        raise ModelFileError(f"metadata key {key!r} is no array; an array of strings was expected")
    try:
        # An empty array may be of any type: a writer cannot tell from its elements.
        items: list[str] = value.strings() if hasattr(value, "strings") and len(value) else list(value)
    except TypeError as e:
        raise ModelFileError(f"metadata key {key!r} must be an array of strings: {e}") from None
    if wrong := set(map(type, items)) - {str}:
        raise ModelFileError(
            f"metadata key {key!r} must be an array of strings, not of {wrong.pop().__name__}"
        )
    return items


def number_array(metadata: Mapping[str, Any], key: str, count: int | None) -> NDArray[Any] | None:
    """A numeric array of the metadata with one element per token (``count`` None: of any length), or None if the key is
    absent.

    Raises:
        ModelFileError: the value is not numeric, or shorter than the vocabulary.
    """
    value = metadata.get(key)
    if value is None:
        return None
    try:
        numbers = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    except ValueError:  # lists of several lengths
        raise ModelFileError(f"metadata key {key!r} must be an array of numbers") from None
    if numbers.dtype.kind not in "iuf" or numbers.ndim != 1:
        raise ModelFileError(f"metadata key {key!r} must be an array of numbers")
    if count is not None and len(numbers) < count:
        raise ModelFileError(f"metadata key {key!r} has {len(numbers)} elements for {count} tokens")
    return numbers[:count]


@dataclass
class Vocabulary:
    """Tokens of one model.

    Attributes:
        tokens: text of each id, as stored.
        index: id of each text (the last one, should a text come twice).
        bits: attribute bits (see ``attributes``), uint16 ``(n_vocab,)``.
        scores: float32 ``(n_vocab,)``.
        roles: ids of ``bos eos eot eom unk sep pad mask fim_*``; None where there is none.
        eog_ids: ids that end generation.
        suppressed: ids the model must never produce (``suppress_tokens``).
    """

    tokens: list[str]
    index: dict[str, int]
    bits: NDArray[np.uint16]
    scores: NDArray[np.float32]
    roles: dict[str, int | None]
    eog_ids: frozenset[int]
    suppressed: tuple[int, ...]

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], default_roles: Mapping[str, int], warnings: list[str]
    ) -> Vocabulary:
        """Read the vocabulary and apply the corrections of ``attributes``.

        Args:
            metadata: of a GGUF file.
            default_roles: ids used when the file names none (they depend on the kind of vocabulary).
            warnings: receives sentences about doubtful but usable content.

        Raises:
            ModelFileError: no tokens, or arrays that do not fit together.
        """
        tokens = text_array(metadata, _PREFIX + "tokens")
        if not tokens:
            raise ModelFileError(
                "the file has no tokenizer.ggml.tokens, so text cannot be encoded; feed token ids"
            )
        count = len(tokens)
        index = dict(zip(tokens, range(count), strict=True))
        if "" in index:
            for i in [i for i, t in enumerate(tokens) if not t]:
                tokens[i] = f"[EMPTY_{i}]"
                index[tokens[i]] = i
            del index[""]
        if len(index) != count:
            warnings.append(
                f"{count - len(index)} token texts come twice in the vocabulary; the last id of each is used"
            )
        types = number_array(metadata, _PREFIX + "token_type", count)
        bits = attr.bits_of_types(types, count)
        scores = number_array(metadata, _PREFIX + "scores", count)
        roles = _read_roles(metadata, default_roles, count, warnings)
        eog = attr.correct_attributes(bits, index.get, roles)
        attr.strip_attributes(bits, index.get, metadata)
        suppressed = number_array(metadata, _PREFIX + "suppress_tokens", None)
        return cls(
            tokens=tokens,
            index=index,
            bits=bits,
            scores=np.zeros(count, np.float32) if scores is None else np.asarray(scores, np.float32),
            roles=roles,
            eog_ids=eog,
            suppressed=tuple(int(i) for i in suppressed.tolist() if 0 <= i < count)
            if suppressed is not None
            else (),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def not_text(self) -> frozenset[int]:
        """Ids that merging must never produce, because their text is not what they mean: control, unknown, byte."""
        return frozenset(np.flatnonzero(self.bits & (attr.MARK | attr.BYTE)).tolist())

    @cached_property
    def control_table(self) -> SpecialTable:
        """Control, unknown and user-defined tokens, for text in which specials are recognised."""
        return self._table(attr.MARK | attr.USER_DEFINED)

    @cached_property
    def user_table(self) -> SpecialTable:
        """User-defined tokens only."""
        return self._table(attr.USER_DEFINED)

    def _table(self, mask: int) -> SpecialTable:
        # A corrected token may be control and user-defined at once; it counts as control.
        bits = self.bits
        chosen = np.flatnonzero(bits & mask)
        if not mask & attr.MARK:
            chosen = chosen[(bits[chosen] & attr.MARK) == 0]
        return SpecialTable(
            [
                SpecialToken(
                    i, self.tokens[i], bool(b & attr.MARK), bool(b & attr.LSTRIP), bool(b & attr.RSTRIP)
                )
                for i, b in zip(chosen.tolist(), bits[chosen].tolist(), strict=True)
            ]
        )


def _read_roles(
    metadata: Mapping[str, Any], defaults: Mapping[str, int], count: int, warnings: list[str]
) -> dict[str, int | None]:
    roles: dict[str, int | None] = {}
    for role, keys in _ROLE_KEYS.items():
        default = defaults.get(role)
        roles[role] = default if default is not None and default < count else None
        for key in keys:
            value = metadata.get(_PREFIX + key)
            if value is None:
                continue
            if not isinstance(value, int):
                raise ModelFileError(
                    f"metadata key '{_PREFIX}{key}' is {brief(value)}; a token id was expected"
                )
            if 0 <= value < count:
                roles[role] = int(value)
                break
            warnings.append(
                f"{_PREFIX}{key} = {value} is outside the vocabulary of {count} tokens and is not used"
            )
    return roles
