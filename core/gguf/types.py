"""The tensor types of ggml: id, name, elements per block, bytes per block.

Only sizes live here, so that a file can be listed and checked without any plugin; what the bytes *mean* is the business
of the quant-format plugins. Ids and sizes are facts of ``ggml.h`` / ``ggml-common.h``.
"""

from __future__ import annotations

from typing import NamedTuple


class GGMLType(NamedTuple):
    """One tensor type.

    Attributes:
        id: the number stored in a GGUF tensor record.
        name: ggml's name in capitals, e.g. ``"Q4_K"``.
        block_size: elements per block.
        type_size: bytes per block.
    """

    id: int
    name: str
    block_size: int
    type_size: int


GGML_TYPES: dict[int, GGMLType] = {
    t.id: t
    for t in (
        GGMLType(0, "F32", 1, 4),
        GGMLType(1, "F16", 1, 2),
        GGMLType(2, "Q4_0", 32, 18),
        GGMLType(3, "Q4_1", 32, 20),
        GGMLType(6, "Q5_0", 32, 22),
        GGMLType(7, "Q5_1", 32, 24),
        GGMLType(8, "Q8_0", 32, 34),
        GGMLType(9, "Q8_1", 32, 36),
        GGMLType(10, "Q2_K", 256, 84),
        GGMLType(11, "Q3_K", 256, 110),
        GGMLType(12, "Q4_K", 256, 144),
        GGMLType(13, "Q5_K", 256, 176),
        GGMLType(14, "Q6_K", 256, 210),
        GGMLType(15, "Q8_K", 256, 292),
        GGMLType(16, "IQ2_XXS", 256, 66),
        GGMLType(17, "IQ2_XS", 256, 74),
        GGMLType(18, "IQ3_XXS", 256, 98),
        GGMLType(19, "IQ1_S", 256, 50),
        GGMLType(20, "IQ4_NL", 32, 18),
        GGMLType(21, "IQ3_S", 256, 110),
        GGMLType(22, "IQ2_S", 256, 82),
        GGMLType(23, "IQ4_XS", 256, 136),
        GGMLType(24, "I8", 1, 1),
        GGMLType(25, "I16", 1, 2),
        GGMLType(26, "I32", 1, 4),
        GGMLType(27, "I64", 1, 8),
        GGMLType(28, "F64", 1, 8),
        GGMLType(29, "IQ1_M", 256, 56),
        GGMLType(30, "BF16", 1, 2),
        GGMLType(34, "TQ1_0", 256, 54),
        GGMLType(35, "TQ2_0", 256, 66),
        GGMLType(39, "MXFP4", 32, 17),
        GGMLType(40, "NVFP4", 64, 36),
        GGMLType(41, "Q1_0", 128, 18),
        GGMLType(42, "Q2_0", 64, 18),
    )
}

GGML_TYPE_BY_NAME: dict[str, GGMLType] = {t.name: t for t in GGML_TYPES.values()}


#: ``general.file_type``: llama.cpp's names of the mixtures (``enum llama_ftype``); 4-6 and 33-35 are gone.
FILE_TYPES: dict[int, str] = dict(
    enumerate(
        "F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K "
        "IQ2_XXS IQ2_XS Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - "
        "TQ1_0 TQ2_0 MXFP4_MOE NVFP4 Q1_0 Q2_0".split()
    )
)


def find_type(wanted: int | str) -> GGMLType | None:
    """A tensor type by number or name: one of ggml's, else one that an installed quant format plugin brings."""
    known = GGML_TYPE_BY_NAME.get(wanted) if isinstance(wanted, str) else GGML_TYPES.get(wanted)
    if known is not None:
        return known
    from ggfw.registry import default_registry  # only for files with types that are not ggml's

    for fmt in default_registry().quant_formats.values():
        if wanted in (fmt.ggml_type, fmt.name):
            return GGMLType(fmt.ggml_type, fmt.name, fmt.block_size, fmt.type_size)
    return None


def type_name(type_id: int) -> str:
    """ggml's (or a plugin's) name of a tensor type, or ``"unknown(NN)"``."""
    known = find_type(type_id)
    return known.name if known is not None else f"unknown({type_id})"
