"""The tokenizer of a model: text to ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ggfw.errors import InvalidRequest, brief
from ggfw.tokenizer import attributes as attr
from ggfw.tokenizer.attributes import TokenType
from ggfw.tokenizer.decoding import Decoder, clean_spaces
from ggfw.tokenizer.encoder import Encoder
from ggfw.tokenizer.kinds import Kind, kind_of
from ggfw.tokenizer.specials import Span
from ggfw.tokenizer.vocabulary import Vocabulary

_TYPE_ORDER = (
    (attr.CONTROL, TokenType.CONTROL),
    (attr.UNKNOWN, TokenType.UNKNOWN),
    (attr.USER_DEFINED, TokenType.USER_DEFINED),
    (attr.BYTE, TokenType.BYTE),
    (attr.UNUSED, TokenType.UNUSED),
    (attr.NORMAL, TokenType.NORMAL),
)

#: Characters that are encoded at a time to see whether a text is too long.
_STRETCH = 1 << 15


class Tokenizer:
    """Encodes and decodes with the vocabulary of one GGUF file. Thread-safe.

    Made by :meth:`from_metadata`.

    Attributes:
        kind: defaults and rule of the file's vocabulary.
        vocab: texts, types, scores.
        warnings: sentences about doubtful content of the file, for whoever may print.
        add_bos, add_eos: whether ``add_special`` adds them (WordPiece vocabularies: always BOS and SEP).
        add_sep: whether pairs of texts are joined by SEP.
        add_space_prefix: whether a space is put in front of text.
        eog_ids: ids that end generation.
        suppressed_ids: ids the file says must never be produced.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        kind: Kind,
        encoder: Encoder,
        metadata: Mapping[str, Any],
        warnings: list[str],
    ):
        self.vocab = vocab
        self.kind = kind
        self.warnings = warnings
        self._encoder = encoder
        self.add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", kind.add_bos)) or kind.force_bos
        self.add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", kind.add_eos))
        self.add_space_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", kind.add_space_prefix))
        self.eog_ids = vocab.eog_ids
        self.suppressed_ids = vocab.suppressed
        self._pieces: dict[int, bytes] = {}
        self._shown_pieces: dict[int, bytes] = {}
        self.add_sep = bool(metadata.get("tokenizer.ggml.add_sep_token", kind.add_sep))
        wants_last = self.add_eos or kind.end_role == "sep"
        self._first_id = vocab.roles["bos"] if self.add_bos else None
        self._last_id = vocab.roles[kind.end_role] if wants_last else None
        if self.add_bos and self._first_id is None:
            warnings.append("the file wants a BOS token but names none; none is added")
        if wants_last and self._last_id is None:
            warnings.append(f"the file wants an {kind.end_role.upper()} token but names none; none is added")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, pre_override: str | None = None) -> Tokenizer:
        """Build the tokenizer of a GGUF file.

        Args:
            metadata: key -> value; arrays may be lists, NumPy arrays, or lazy arrays with ``strings()`` / ``numpy()``.
            pre_override: pre-tokenizer rule to use instead of ``tokenizer.ggml.pre``.

        Raises:
            UnsupportedError: unknown ``tokenizer.ggml.model``.
            UnknownPreTokenizer: unknown ``tokenizer.ggml.pre``.
            ModelFileError: tokens, scores, types or merges are missing or do not fit together.
        """
        warnings: list[str] = []
        kind = kind_of(metadata, pre_override, warnings)
        vocab = Vocabulary.from_metadata(metadata, kind.roles, warnings)
        return cls(vocab, kind, kind.build(vocab, kind, metadata), metadata, warnings)

    # -- encoding

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Ids of ``text``.

        Args:
            text: any text; bytes are taken as UTF-8, ill-formed ones as llama.cpp takes them.
            add_special: add BOS / EOS as the file asks, even if the text itself begins with BOS.
            parse_special: recognise control tokens in the text. Off, text never becomes a control token.
        """
        if not isinstance(text, str | bytes | bytearray):
            raise InvalidRequest(f"text is {brief(text)}; a string or bytes were expected", param="text")
        known = text if isinstance(text, str) else self._encoder.text_of(text)
        ids = self._encode(known, None if parse_special else [])
        return self._with_ends(ids) if add_special else ids

    def encode_parts(self, parts: Iterable[tuple[str, bool]], *, add_special: bool = True) -> list[int]:
        """Ids of a text made of trusted and untrusted spans, e.g. a rendered chat template around user content.

        Args:
            parts: (text, parse_special) in order. Control tokens are recognised only inside spans that allow it (they
                may run over neighbouring ones that do); apart from that the text is encoded as one.
            add_special: add BOS / EOS as the file asks, but not a second BOS if the text begins with one.
        """
        texts: list[str] = []
        allowed: list[Span] = []
        at = 0
        for part, parse_special in parts:
            if parse_special and part:
                if allowed and allowed[-1][1] == at:
                    allowed[-1] = (allowed[-1][0], at + len(part))
                else:
                    allowed.append((at, at + len(part)))
            texts.append(part)
            at += len(part)
        ids = self._encode("".join(texts), allowed)
        return self._with_ends(ids, single=True) if add_special else ids

    def counted(self, text: str, most: int) -> int | None:
        """Tokens of the beginning of ``text`` if they are certainly more than ``most``; None if it has to be encoded.

        Texts that may fit cost nothing here: only one of more than eight characters for each token is looked at,
        stretch by stretch, until it is clear. Control tokens are taken for text, which makes no great difference.
        """
        if len(text) <= 8 * most + _STRETCH:
            return None
        n, margin = 0, most // 8 + 64  # what the cuts between stretches may have made of the text
        for at in range(0, len(text), _STRETCH):
            n += len(self._encode(text[at : at + _STRETCH], []))
            if n > most + margin:
                return n
        return None

    def _encode(self, text: str, allowed: Sequence[Span] | None) -> list[int]:
        table = self.vocab.user_table if allowed is not None and not allowed else self.vocab.control_table
        out: list[int] = []
        at_start = True
        for fragment in table.partition(text, allowed):
            if isinstance(fragment, int):
                out.append(fragment)
                at_start = True
            else:
                start, end = fragment
                out += self._encoder.encode(text[start:end], at_start=at_start)
                at_start = False
        return out

    def _with_ends(self, ids: list[int], single: bool = False) -> list[int]:
        first, last = self._first_id, self._last_id
        if first is not None and not (single and ids[:1] == [first]):
            ids.insert(0, first)
        if last is not None and not (single and ids[-1:] == [last]):
            ids.append(last)
        return ids

    def split(self, text: str) -> list[str]:
        """The pieces of ``text`` in which merging happens (the pre-tokenizer's result); joined they are the text.

        Vocabularies that escape spaces show them as U+2581.
        """
        return self._encoder.split(text)

    # -- decoding

    def piece(self, token: int) -> bytes:
        """The bytes that ``token`` stands for; of a control token its name.

        Raises:
            InvalidRequest: no such id.
        """
        found = self._pieces.get(token)
        if found is None:
            self._check(token)
            found = self._pieces[token] = self._encoder.piece(token)
        return found

    def pieces(self) -> list[bytes]:
        """:meth:`piece` of every token, made afresh: for tables over the whole vocabulary."""
        return [self._encoder.piece(token) for token in range(len(self.vocab))]

    def _shown(self, token: int) -> bytes:
        found = self._shown_pieces.get(token)
        if found is None:
            found = self._shown_pieces[token] = b"" if self.is_control(token) else self.piece(token)
        return found

    def decode_bytes(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of all tokens joined; ``special``: with the names of control tokens."""
        try:
            return b"".join(map(self.piece if special else self._shown, ids))
        except (TypeError, IndexError):  # not numbers, or none at all
            raise InvalidRequest(f"ids is {brief(ids)}; token ids were expected", param="ids") from None

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of all tokens, exactly what a :class:`Decoder` fed with them gives; ill-formed bytes are U+FFFD."""
        return self.decode_bytes(ids, special=special).decode("utf-8", "replace")

    def detokenize_bytes(self, ids: Sequence[int], *, special: bool = False, clean: bool = False) -> bytes:
        """The inverse of :meth:`encode` for a whole text: without the space that encoding put in front.

        Args:
            ids: of a whole text.
            special: print control tokens.
            clean: also apply llama.cpp's clean-up of spaces where this vocabulary asks for it (lossy).
        """
        text = self.decode_bytes(ids, special=special)
        if self.add_space_prefix and ids:
            first = self.piece(ids[0]) if special else self._shown(ids[0])
            if first[:1] == b" ":
                text = text[1:]
        return clean_spaces(text) if clean and self.kind.clean_spaces else text

    def detokenize(self, ids: Sequence[int], *, special: bool = False, clean: bool = False) -> str:
        """:meth:`detokenize_bytes` as text; ill-formed bytes are U+FFFD."""
        return self.detokenize_bytes(ids, special=special, clean=clean).decode("utf-8", "replace")

    def decoder(self, *, special: bool = False) -> Decoder:
        """A decoder for a stream of ids; ``special``: it prints control tokens."""
        return Decoder(self.piece if special else self._shown)

    # -- the vocabulary

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocab)

    def find(self, piece: str) -> int | None:
        """The id whose stored text is ``piece``, or None."""
        return self.vocab.index.get(piece)

    def text(self, token: int) -> str:
        """The token as stored in the file (byte alphabet, U+2581), for listings."""
        self._check(token)
        return self.vocab.tokens[token]

    def token_type(self, token: int) -> TokenType:
        """The token's type after corrections."""
        self._check(token)
        bits = int(self.vocab.bits[token])
        return next((t for bit, t in _TYPE_ORDER if bits & bit), TokenType.UNDEFINED)

    def is_control(self, token: int) -> bool:
        """Whether the token is hidden in text (type control or unknown)."""
        self._check(token)
        return bool(self.vocab.bits[token] & attr.SPECIAL)

    def is_mark(self, token: int) -> bool:
        """Whether text becomes the token only where specials are recognised: control tokens, and a few printed ones."""
        self._check(token)
        return bool(self.vocab.bits[token] & attr.MARK)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends generation."""
        return token in self.eog_ids

    def role(self, name: str) -> int | None:
        """Id of ``bos eos eot eom unk sep pad mask fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep``, or None."""
        return self.vocab.roles[name]

    @property
    def bos_id(self) -> int | None:
        """Begin-of-sequence token."""
        return self.vocab.roles["bos"]

    @property
    def eos_id(self) -> int | None:
        """End-of-sequence token."""
        return self.vocab.roles["eos"]

    @property
    def eot_id(self) -> int | None:
        """End-of-turn token."""
        return self.vocab.roles["eot"]

    @property
    def pad_id(self) -> int | None:
        """Padding token."""
        return self.vocab.roles["pad"]

    @property
    def unk_id(self) -> int | None:
        """Unknown token."""
        return self.vocab.roles["unk"]

    @cached_property
    def nl_id(self) -> int | None:
        """The token of a line break: its byte token in SentencePiece vocabularies, else how a lone break is encoded."""
        if self.kind.pre is None:
            return next((i for i in map(self.find, ("<0x0A>", "\n")) if i is not None), self.pad_id)
        ids = self._encoder.encode("\n", at_start=False)
        return ids[0] if ids else self.pad_id

    def _check(self, token: int) -> None:
        if not 0 <= token < len(self.vocab):
            raise InvalidRequest(
                f"token id {brief(token)} is outside the vocabulary of {len(self.vocab)} tokens", param="ids"
            )
