"""Long byte-level texts: the ``tokenizers`` library, which merges in native code and lets other threads run.

It is built on the first long text, because building costs up to half a second for the largest vocabularies while
``merging`` needs none of it; short texts are no slower there. Both give the same ids. What the library would treat
otherwise (characters that are no tokens, merges to texts that are none) is given to it as stand-in tokens, whose ids
are replaced afterwards by what ``merging`` makes of such a symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        fallback: ids of a symbol that is no token.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        rule: PreTokenizerRule,
        ranks: Mapping[str, int],
        splitter: Splitter,
        fallback: Callable[[str], list[int]],
    ) -> None:
        self._count = len(vocab)
        self._stand_ins: list[list[int]] = []  # ids for n_vocab, n_vocab + 1, ...
        texts = {text: i for text, i in vocab.index.items() if i not in vocab.not_text}

        def ensure(symbol: str) -> None:
            if symbol not in texts:
                texts[symbol] = self._count + len(self._stand_ins)
                self._stand_ins.append(fallback(symbol))

        for char in BYTE_TO_CHAR:
            ensure(char)
        merges: list[tuple[str, str]] = []
        for stored in sorted(ranks, key=ranks.__getitem__):
            cut = stored.find(" ", 1)
            if cut > 0:
                merges.append((stored[:cut], stored[cut + 1 :]))
        for left, right in merges:
            ensure(left)
            ensure(right)
            ensure(left + right)
        # A whole piece may be a stand-in only if merging would get there, which ignore_merges does not ask.
        certain = not rule.ignore_merges or all(
            len(text) == 1 for text, i in texts.items() if i >= self._count
        )
        self._engine = _build(texts, merges, rule, splitter) if certain else None

    @property
    def usable(self) -> bool:
        """Whether the ids are certain to be those of ``merging``."""
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
        if not self._stand_ins or max(ids, default=0) < self._count:
            return ids
        out: list[int] = []
        for i in ids:
            if i < self._count:
                out.append(i)
            else:
                out += self._stand_ins[i - self._count]
        return out


def _build(
    texts: dict[str, int], merges: list[tuple[str, str]], rule: PreTokenizerRule, splitter: Splitter
) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.pre_tokenizers import Sequence as Steps

    engine = Tokenizer(BPE(texts, merges, ignore_merges=rule.ignore_merges))
    engine.pre_tokenizer = Steps([splitter.native, ByteLevel(add_prefix_space=False, use_regex=False)])
    return engine
