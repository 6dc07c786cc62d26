"""Constrained answers: JSON schemas, regular expressions, grammars, through llguidance.

>>> grammar = Grammar.json_schema({"type": "integer"})
>>> constraint = Compiler(tokenizer).compile(grammar)      # doctest: +SKIP
"""

from ggfw.constraints.compiler import Compiler
from ggfw.constraints.grammar import Grammar
from ggfw.constraints.matcher import GrammarConstraint
from ggfw.constraints.options import grammar_option
from ggfw.constraints.reasoning import AfterReasoning, after_reasoning

__all__ = ["AfterReasoning", "Compiler", "Grammar", "GrammarConstraint", "after_reasoning", "grammar_option"]
