"""Tokenizers built from GGUF metadata: ``Tokenizer.from_metadata(gguf.metadata)``."""

from ggfw.tokenizer.attributes import TokenType
from ggfw.tokenizer.decoding import Decoder
from ggfw.tokenizer.encoder import Encoder
from ggfw.tokenizer.kinds import Kind, register_kind
from ggfw.tokenizer.tokenizer import Tokenizer

__all__ = ["Decoder", "Encoder", "Kind", "TokenType", "Tokenizer", "register_kind"]
