"""llama.cpp's GBNF, translated into llguidance's Lark dialect.

llguidance brings a converter, but it makes a lexeme of every literal and class. Lexemes are matched greedily, so
``root ::= [a-z]* "x"`` would never end; it knows no token elements; it recurses as deep as the text nests. Here a
grammar without recursion becomes one regular expression, and in others lexemes are chosen so that greed does no harm.
"""

from __future__ import annotations

from ggfw.constraints.gbnf.emit import emit
from ggfw.constraints.gbnf.layout import Layout
from ggfw.constraints.gbnf.parse import FindToken, parse
from ggfw.constraints.gbnf.rules import cleaned

__all__ = ["to_lark"]


def to_lark(text: str, find_token: FindToken, param: str = "grammar", *, whole: bool = True) -> str:
    """A grammar in llguidance's Lark dialect that accepts the same texts.

    Args:
        text: GBNF; its first symbol is ``root``.
        find_token: gives the single token that a text like ``<think>`` is, or None.
        param: the request parameter, for errors.
        whole: let a grammar without recursion be one regular expression; off, it is divided into lexemes, which is
            possible where that expression would be too large.

    Raises:
        InvalidRequest: malformed, left-recursive, nested too deeply, or without any finite text.
    """
    return emit(Layout(cleaned(parse(text, find_token, param), param), whole))
