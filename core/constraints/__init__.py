"""Constrained answers: JSON schemas, regular expressions, grammars, through llguidance.

>>> grammar = Grammar.json_schema({"type": "integer"})
>>> constraint = Compiler(tokenizer).compile(grammar)      # doctest: +SKIP
"""

from ggfw.constraints.compiler import Compiler
from ggfw.constraints.grammar import Grammar
from ggfw.constraints.matcher import GrammarConstraint

__all__ = ["Compiler", "Grammar", "GrammarConstraint"]
