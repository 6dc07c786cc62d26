"""Kinds of vocabulary by ``tokenizer.ggml.model``: a table of defaults and builders that others may extend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from ggfw.errors import UnknownPreTokenizer, UnsupportedError, brief
from ggfw.records import dataclass
from ggfw.tokenizer.bytepair import BytePairEncoder, WhitespaceEncoder
from ggfw.tokenizer.encoder import Encoder
from ggfw.tokenizer.pretokenizers import DEFAULT, RULES, PreTokenizerRule
from ggfw.tokenizer.sentencepiece import SentencePieceEncoder
from ggfw.tokenizer.vocabulary import Vocabulary

Build = Callable[[Vocabulary, "Kind", Mapping[str, Any]], Encoder]


@dataclass(frozen=True)
class Kind:
    """One kind of vocabulary.

    Attributes:
        model: value of ``tokenizer.ggml.model``.
        build: makes the encoder from (vocabulary, this kind, metadata).
        roles: default ids for files that name none.
        add_bos, add_eos, add_sep, add_space_prefix: defaults for files that say nothing.
        clean_spaces: whether llama.cpp's detokenizer cleans up spaces.
        pre: None for kinds without pre-tokenizer; ``""`` to read ``tokenizer.ggml.pre``; else the rule's name.
        rule: the pre-tokenizer rule chosen for a file.
        force_bos: BOS is added whatever the file says.
        end_role: the token that closes a text: ``eos`` if the file asks for it, or ``sep`` always.
    """

    model: str
    build: Build
    roles: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False
    pre: str | None = None
    rule: PreTokenizerRule | None = None
    force_bos: bool = False
    end_role: str = "eos"


_KINDS: dict[str, Kind] = {}


def register_kind(kind: Kind) -> None:
    """Add (or replace) a kind of vocabulary."""
    _KINDS[kind.model] = kind


def kind_of(metadata: Mapping[str, Any], pre_override: str | None, warnings: list[str]) -> Kind:
    """The kind of a file's vocabulary with its pre-tokenizer rule filled in.

    Args:
        metadata: of a GGUF file.
        pre_override: use this pre-tokenizer name instead of the file's.
        warnings: receives a sentence if the file names no pre-tokenizer.

    Raises:
        UnsupportedError: no builder for this ``tokenizer.ggml.model``.
        UnknownPreTokenizer: no rule of that name.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise UnsupportedError(
            "the file has no tokenizer.ggml.model, so text cannot be encoded; feed token ids instead"
        )
    kind = _KINDS.get(str(model))
    if kind is None:
        raise UnsupportedError(
            f"no tokenizer for tokenizer.ggml.model = {brief(str(model))} (known: {', '.join(sorted(_KINDS))}); "
            "feed token ids instead, or use a file with one of these vocabularies"
        )
    if kind.pre is None:
        return kind
    name = pre_override or kind.pre or str(metadata.get("tokenizer.ggml.pre") or "")
    if name in ("", "default"):
        said = (
            "names no pre-tokenizer (tokenizer.ggml.pre)"
            if not name
            else "asks for the pre-tokenizer 'default'"
        )
        warnings.append(
            f"the file {said}; the default splitter is used and answers may be worse than they could be"
        )
        rule = DEFAULT
    elif name in RULES:
        rule = RULES[name]
    else:
        key = "pre_override" if pre_override else "tokenizer.ggml.pre"
        raise UnknownPreTokenizer(
            f"unknown pre-tokenizer {key} = {brief(name)}; a later ggfw may know it, and from Python "
            "Tokenizer.from_metadata(..., pre_override=NAME) takes a known one that cuts text the same way, for "
            "example 'llama-bpe', 'qwen2' or 'gpt-2'"
        )
    roles = dict(kind.roles)
    if not rule.default_bos:
        roles.pop("bos", None)
    return replace(
        kind,
        rule=rule,
        roles=roles,
        add_bos=kind.add_bos or rule.add_bos,
        add_sep=kind.add_sep or rule.add_sep,
        clean_spaces=rule.clean_spaces,
        force_bos=rule.force_bos,
    )


def _sentencepiece(vocab: Vocabulary, kind: Kind, metadata: Mapping[str, Any]) -> Encoder:
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", kind.add_space_prefix))
    return SentencePieceEncoder(vocab, space_prefix=prefix)


def _bytepair(vocab: Vocabulary, kind: Kind, metadata: Mapping[str, Any]) -> Encoder:
    assert kind.rule is not None
    return BytePairEncoder(vocab, kind.rule, metadata)


def _wordpiece(vocab: Vocabulary, kind: Kind, metadata: Mapping[str, Any]) -> Encoder:
    from ggfw.tokenizer.wordpiece import WordPieceEncoder  # few files need it, every start would pay

    return WordPieceEncoder(vocab, metadata)


def _whitespace(vocab: Vocabulary, kind: Kind, metadata: Mapping[str, Any]) -> Encoder:
    assert kind.rule is not None
    lowercase = metadata.get("tokenizer.ggml.normalizer.lowercase", kind.rule is not RULES["whitespace"])
    return WhitespaceEncoder(vocab, kind.rule, metadata, lowercase=bool(lowercase))


register_kind(
    Kind("llama", _sentencepiece, {"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True)
)
register_kind(Kind("gpt2", _bytepair, {"bos": 11, "eos": 11}, pre=""))
register_kind(Kind("gemma4", _bytepair, pre="gemma4"))
register_kind(Kind("whitespace", _whitespace, {"bos": 11, "eos": 11}, pre=""))
register_kind(
    Kind(
        "bert",
        _wordpiece,
        {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
        add_bos=True,
        add_sep=True,
        clean_spaces=True,
        force_bos=True,
        end_role="sep",
    )
)
