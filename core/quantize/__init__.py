"""Writing quantised GGUF files: which tensor gets which format, and the search for its scales."""

from ggfw.quantize.encode import encodable, encode
from ggfw.quantize.files import Quantized, quantize_file
from ggfw.quantize.importance import Importance, read_importance
from ggfw.quantize.recipes import RECIPES, Recipe, recipe

__all__ = [
    "RECIPES",
    "Importance",
    "Quantized",
    "Recipe",
    "encodable",
    "encode",
    "quantize_file",
    "read_importance",
    "recipe",
]
