"""Recipes: which tensors of a model are quantised, and to what.

The names, and what they mean, are those of llama.cpp (``llama-quant.cpp``), so that a file called Q4_K_M here is what
people expect of one: the format that most matrices get, and more bits for the matrices that need them most.
"""

from __future__ import annotations

import re
from dataclasses import field

from ggfw.errors import InvalidRequest
from ggfw.gguf import TensorInfo
from ggfw.records import dataclass

#: What takes the place of a format whose blocks do not fit a row: the nearest with blocks of 32.
_NARROW = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
}  # fmt: skip

#: Small matrices on which much depends, and tables that are not multiplied.
_KEPT = re.compile(
    r"_norm|ffn_gate_inp|altup|laurel|per_layer_model_proj|position_embd|token_types|ssm_conv1d|shortconv\.conv|attn_rel_b"
)
_LAYER = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a file of one type is made.

    Args:
        file_type: ``general.file_type`` of the result.
        base: format of most matrices.
        output: format of the output projection (and of a token table that is one as well); None: the base's.
        all_layers: role -> format in all layers; a role is the end of a tensor's name before ``.weight``.
        some_layers: role -> format in the first and last eighth of the layers and every third between.
        first_layers: role -> format in the first eighth of the layers.
    """

    file_type: int
    base: str
    output: str | None = None
    all_layers: dict[str, str] = field(default_factory=dict)
    some_layers: dict[str, str] = field(default_factory=dict)
    first_layers: dict[str, str] = field(default_factory=dict)

    def format_of(self, name: str, n_layer: int, *, is_output: bool) -> str:
        """Format of the matrix ``name``; whether its rows fit is not looked at.

        Args:
            name: of the tensor.
            n_layer: layers of the model.
            is_output: whether it is the output projection.
        """
        if is_output:
            return self.output or self.base
        found = _LAYER.match(name)
        if found is None:
            return self.base
        layer, role = int(found[1]), name[found.end() :].removesuffix(".weight").removesuffix("_exps")
        eighth = n_layer // 8
        if role in self.first_layers and layer < eighth:
            return self.first_layers[role]
        often = layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2
        if role in self.some_layers and often:
            return self.some_layers[role]
        return self.all_layers.get(role, self.base)


def _k_mix(file_type: int, base: str, **roles: dict[str, str]) -> Recipe:
    return Recipe(file_type=file_type, base=base, output="Q6_K", **roles)


RECIPES: dict[str, Recipe] = {
    "F32": Recipe(file_type=0, base="F32"),
    "F16": Recipe(file_type=1, base="F16"),
    "BF16": Recipe(file_type=32, base="BF16"),
    "Q8_0": Recipe(file_type=7, base="Q8_0"),
    "Q4_0": Recipe(file_type=2, base="Q4_0", output="Q6_K"),
    "Q4_1": Recipe(file_type=3, base="Q4_1", output="Q6_K"),
    "Q5_0": Recipe(file_type=8, base="Q5_0", output="Q6_K"),
    "Q5_1": Recipe(file_type=9, base="Q5_1", output="Q6_K"),
    "Q2_K": _k_mix(10, "Q2_K", all_layers={"attn_v": "Q3_K", "attn_output": "Q3_K", "ffn_down": "Q3_K"}),
    "Q3_K_S": _k_mix(11, "Q3_K"),
    "Q3_K_M": _k_mix(
        12,
        "Q3_K",
        all_layers={"attn_v": "Q4_K", "attn_output": "Q4_K", "ffn_down": "Q4_K", "attn_qkv": "Q4_K"},
        first_layers={"ffn_down": "Q5_K", "attn_v": "Q5_K"},
    ),
    "Q3_K_L": _k_mix(
        13,
        "Q3_K",
        all_layers={"attn_v": "Q5_K", "attn_output": "Q5_K", "ffn_down": "Q5_K", "attn_qkv": "Q4_K"},
    ),
    "Q4_K_S": _k_mix(14, "Q4_K", first_layers={"attn_v": "Q5_K", "ffn_down": "Q5_K"}),
    "Q4_K_M": _k_mix(
        15, "Q4_K", some_layers={"attn_v": "Q6_K", "ffn_down": "Q6_K"}, all_layers={"attn_qkv": "Q5_K"}
    ),
    "Q5_K_S": _k_mix(16, "Q5_K"),
    "Q5_K_M": _k_mix(
        17, "Q5_K", some_layers={"attn_v": "Q6_K", "ffn_down": "Q6_K"}, all_layers={"attn_qkv": "Q6_K"}
    ),
    "Q6_K": Recipe(file_type=18, base="Q6_K"),
    "IQ4_NL": _k_mix(25, "IQ4_NL", first_layers={"ffn_down": "Q5_K"}),
    "IQ4_XS": _k_mix(30, "IQ4_XS", first_layers={"ffn_down": "Q5_K"}),
}


def recipe(name: str) -> Recipe:
    """Look a recipe up; ``Q4_K`` and the like mean their ``_M`` form.

    Raises:
        InvalidRequest: there is none of that name; says which there are.
    """
    wanted = name.upper().replace("-", "_")
    found = RECIPES.get(wanted) or RECIPES.get(f"{wanted}_M")
    if found is None:
        from difflib import get_close_matches  # here, because only mistakes need it

        near = get_close_matches(wanted, RECIPES, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(RECIPES)}"
        raise InvalidRequest(f"there is no recipe {name!r} for quantising; {hint}", "type")
    return found


def layer_of(name: str) -> int | None:
    """Number of the layer that a tensor belongs to; None where its name has none."""
    found = _LAYER.match(name)
    return None if found is None else int(found[1])


def quantizable(tensor: TensorInfo) -> bool:
    """Whether a tensor is a matrix that may be stored with less precision."""
    return len(tensor.shape) >= 2 and tensor.name.endswith(".weight") and not _KEPT.search(tensor.name)


def fitting(fmt: str, n_cols: int, block_size_of: dict[str, int]) -> str:
    """``fmt``, or the nearest format whose blocks fit rows of ``n_cols``.

    Args:
        fmt: wanted.
        n_cols: columns of the matrix.
        block_size_of: elements per block of every format.
    """
    for candidate in (fmt, _NARROW.get(fmt, fmt)):
        if n_cols % block_size_of[candidate] == 0:
            return candidate
    return "F16"
