"""Long byte-level texts: the ``tokenizers`` library, which merges in native code and lets other threads run meanwhile.

It is built on the first long text, because building costs up to half a second for the largest vocabularies
while ``merging`` needs none of it. Both give the same ids; where a vocabulary has content that the library
would treat otherwise (merges that lead nowhere, bytes that are no tokens), this engine declines and the other
one does all the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ggfw.tokenizer.byte_level import BYTE_TO_CHAR
from ggfw.tokenizer.pretokenizers import PreTokenizerRule
from ggfw.tokenizer.splitter import Splitter
from ggfw.tokenizer.vocabulary import Vocabulary


class BulkEncoder:
    """Native engine of one vocabulary.

    Args:
        vocab: the vocabulary.
        rule: the pre-tokenizer; byte-level.
        ranks: rank of each merge by its stored text.
        splitter: the rule's patterns.
    """

    def __init__(
        self, vocab: Vocabulary, rule: PreTokenizerRule, ranks: Mapping[str, int], splitter: Splitter
    ) -> None:
        self._engine = _build(vocab, rule, ranks, splitter)

    @property
    def usable(self) -> bool:
        """Whether this vocabulary's ids are certain to be the same as those of ``merging``."""
        return self._engine is not None

    def encode(self, text: str) -> list[int] | None:
        """Ids of ``text``, or None if this engine cannot vouch for them."""
        if self._engine is None:
            return None
        try:
            # encode() would hold the interpreter lock all the time; encode_batch() gives it up.
            (encoding,) = self._engine.encode_batch([text], add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # lone surrogates
            return None
        ids: list[int] = encoding.ids
        return ids


def _build(
    vocab: Vocabulary, rule: PreTokenizerRule, ranks: Mapping[str, int], splitter: Splitter
) -> Any | None:
    not_text = vocab.not_text
    texts = {text: i for text, i in vocab.index.items() if i not in not_text}
    if not all(c in texts for c in BYTE_TO_CHAR):
        return None
    merges: list[tuple[str, str]] = []
    for stored in sorted(ranks, key=ranks.__getitem__):
        left, _, right = stored[1:].partition(" ")
        left = stored[0] + left
        if left not in texts or right not in texts or left + right not in texts:
            return None
        merges.append((left, right))
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.pre_tokenizers import Sequence as Steps

    engine = Tokenizer(BPE(texts, merges, ignore_merges=rule.ignore_merges))
    engine.pre_tokenizer = Steps([splitter.native, ByteLevel(add_prefix_space=False, use_regex=False)])
    return engine
