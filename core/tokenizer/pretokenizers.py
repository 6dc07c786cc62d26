"""The pre-tokenizers that ``tokenizer.ggml.pre`` can name: one table.

A byte-level BPE file stores merges but not the pattern that cuts text into the pieces merges work on; it only
stores a name. The patterns are those of the models' own tokenizers in the form in which llama.cpp applies
them, because its ids are what GGUF files are tested against. Where that form differs from the model's
original (all letter categories taken as one, digit groups that stick to the text before them), the table
follows llama.cpp.

Patterns are in Oniguruma's dialect (the engine of the ``tokenizers`` library). A rule applies its patterns
one after the other; each cuts every piece so far into matches and the text between them. Nothing is ever
dropped.
"""

from __future__ import annotations

from dataclasses import replace

from ggfw.records import dataclass


@dataclass(frozen=True)
class PreTokenizerRule:
    """How text is cut, and what else llama.cpp ties to the name.

    Attributes:
        patterns: regular expressions, applied in order.
        byte_level: pieces are written in the byte alphabet before merging; else merges work on characters.
        escape_spaces: spaces become U+2581 before cutting.
        newline_token: a piece of newlines that is itself a token is taken whole.
        ignore_merges: any piece that is itself a token is taken whole.
        clean_spaces: llama.cpp's detokenizer drops spaces before punctuation.
        add_bos: default for files without ``add_bos_token``.
        force_bos: BOS is added even where the file says otherwise.
        add_sep: default for files without ``add_sep_token``.
        default_bos: a file without ``bos_token_id`` still has llama.cpp's default one.
    """

    patterns: tuple[str, ...]
    byte_level: bool = True
    escape_spaces: bool = False
    newline_token: bool = False
    ignore_merges: bool = False
    clean_spaces: bool = True
    add_bos: bool = False
    force_bos: bool = False
    add_sep: bool = False
    default_bos: bool = True


def _class_of(ranges: str) -> str:
    """The inside of a character class from hexadecimal ranges, as in ``41-5A B5``."""
    return "".join("-".join(rf"\x{{{end}}}" for end in part.split("-")) for part in ranges.split())


# Building blocks. "'s|'t|…" without regard to case; English contractions of GPT-2 keep case.
_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"

# Words that begin with capitals or end with small letters; letters without case (and non-ASCII ones) count as both.
_CAPITAL, _SMALL = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}*{_SMALL}+%s|[^\r\n\p{{L}}\p{{N}}]?{_CAPITAL}+{_SMALL}*%s"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_OPTIONAL_CONTRACTION = f"(?:{_CONTRACTION})?"
_TEKKEN = _CASED % ("", "") + r"|\p{N}|" + _CASED_TAIL
_GPT4O = _CASED % (_OPTIONAL_CONTRACTION, _OPTIONAL_CONTRACTION) + r"|\p{N}{1,3}|" + _CASED_TAIL
_ANY_CASE = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"

_CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_ASCII_PUNCTUATION_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3_WORD = _ASCII_PUNCTUATION_WORD + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3_TAIL = _DEEPSEEK3_WORD + r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES

# Letters with case of DeepSeek-LLM, as its tokenizer lists them (code points, hexadecimal).
_DEEPSEEK_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B
1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4
1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113
2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B
2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06
FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF
1E900-1E943
"""
# llama.cpp has rewritten white space by the time it looks for these.
_DEEPSEEK_CJK = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}&&[^\s]]+"

# Han ranges of Kimi-K2 (llama.cpp's list).
_HAN = r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}"
_KIMI = (
    rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_OPTIONAL_CONTRACTION}"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
)
# Digits in groups of three counted from the right; the first group of a run keeps the text in front of it.
# \G and the look-behind keep the work linear: the length of a run is measured once.
_DIGIT_GROUPS = r"\G(?:(?:\P{N}+|(?<!\p{N}))\p{N}{1,2}(?=(?:\p{N}{3})+(?!\p{N}))|\P{N}*\p{N}{1,3})"
_ASIAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
_NEWLINES = r"[^\n]+|\n+"
_PORO = r" ?[^(\s|.,!?…。，、।۔،)]+"

DEFAULT = PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_GPT2_RULE = PreTokenizerRule((_GPT2,))
_DIGITS_GPT2 = PreTokenizerRule((r"\p{N}", _GPT2))
_LLAMA3_RULE = PreTokenizerRule((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULE = PreTokenizerRule((_QWEN2,), clean_spaces=False)
_DEEPSEEK3_RULE = PreTokenizerRule((r"\p{N}{1,3}", _CJK, _DEEPSEEK3_TAIL), clean_spaces=False)
_GPT4O_RULE = PreTokenizerRule((_GPT4O,), clean_spaces=False)
_BAILING_RULE = PreTokenizerRule(
    (
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    clean_spaces=False,
)
_LINES = PreTokenizerRule(
    (_NEWLINES,), byte_level=False, escape_spaces=True, newline_token=True, force_bos=True, add_bos=True
)
_TINY_AYA = PreTokenizerRule(
    (
        _DIGIT_GROUPS,
        rf"{_ANY_CASE}{_OPTIONAL_CONTRACTION}|\p{{N}}{{1,3}}|{_CASED_TAIL}",
    ),
    clean_spaces=False,
)


def _unclean(rule: PreTokenizerRule) -> PreTokenizerRule:
    return replace(rule, clean_spaces=False)


_TABLE: tuple[tuple[str, PreTokenizerRule], ...] = (
    ("default", DEFAULT),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert exaone4",
        _GPT2_RULE,
    ),
    ("mpt olmo jais", _GPT2_RULE),
    ("trillion granite-docling", _unclean(_GPT2_RULE)),
    ("jina-v1-en jina-v2-code roberta-bpe", replace(_GPT2_RULE, add_sep=True)),
    ("starcoder refact codeshell exaone minerva-7b mellum2", _DIGITS_GPT2),
    ("command-r smollm", _unclean(_DIGITS_GPT2)),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3_RULE),
    ("dbrx smaug-bpe", PreTokenizerRule((_LLAMA3,))),
    ("chatglm-bpe", PreTokenizerRule((_LLAMA3,), default_bos=False)),
    ("glm4 glm5", PreTokenizerRule((_LLAMA3,), default_bos=False, ignore_merges=True)),
    (
        "jais-2",
        PreTokenizerRule(
            (
                rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|\s*[\r\n]+"
                + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
                + r"|\s{1,2}(?!\S)|\s",
            )
        ),
    ),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2", _QWEN2_RULE),
    ("stablelm2 megrez", PreTokenizerRule((_QWEN2,))),
    (
        "qwen35",
        PreTokenizerRule(
            (
                rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
            ),
            clean_spaces=False,
        ),
    ),
    ("ufakzeka", PreTokenizerRule((rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}",), clean_spaces=False)),
    ("laguna", PreTokenizerRule((_NEWLINES, _QWEN2), clean_spaces=False)),
    (
        "seed-coder",
        PreTokenizerRule(
            (rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",), clean_spaces=False
        ),
    ),
    (
        "exaone-moe",
        PreTokenizerRule(
            (
                rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "minicpm5",
        PreTokenizerRule(
            (r"\p{N}{1,3}", rf"(?:{_CONTRACTION})|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}"), ignore_merges=True
        ),
    ),
    ("bailingmoe bailingmoe2 llada-moe", _BAILING_RULE),
    (
        "falcon",
        PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ),
    (
        "deepseek-llm",
        PreTokenizerRule(
            (
                r"[\r\n]",
                rf"\s?[{_class_of(_DEEPSEEK_LETTERS)}]+",
                r"\s?[!-/:-~！-／：-～‘-‟、-。]+",
                r"\s+\z",
                _DEEPSEEK_CJK,
                r"\p{N}+",
            ),
            clean_spaces=False,
        ),
    ),
    (
        "deepseek-coder",
        PreTokenizerRule(
            (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"), clean_spaces=False
        ),
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3_RULE),
    (
        "spark2_5",
        PreTokenizerRule(
            (
                r"\p{N}{1,3}",
                _CJK,
                _DEEPSEEK3_WORD + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
                r"\p{N}",
            ),
            clean_spaces=False,
        ),
    ),
    (
        "youtu",
        PreTokenizerRule(
            (
                r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[！…“”‘’—：；，、-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|"
                + _CJK,
                rf"{_ANY_CASE}{_OPTIONAL_CONTRACTION}|\p{{N}}|{_CASED_TAIL}",
            ),
            clean_spaces=False,
            ignore_merges=True,
        ),
    ),
    ("tekken", PreTokenizerRule((_TEKKEN,), clean_spaces=False, ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O_RULE),
    (
        "granite-embed-multi-97m",
        replace(
            _GPT4O_RULE,
            patterns=(_GPT4O.replace(r"(?=\p{L})", r"(?=[\p{L}\p{M}])"),),
            ignore_merges=True,
        ),
    ),
    ("tiny_aya cohere2moe", _TINY_AYA),
    ("afmoe", PreTokenizerRule((_DIGIT_GROUPS, _ASIAN, _DEEPSEEK3_TAIL), clean_spaces=False)),
    ("kimi-k2", PreTokenizerRule((_KIMI,), clean_spaces=False)),
    (
        "superbpe",
        # Words are not cut at all. Number runs are cut before every group of three ASCII digits counted from the
        # right: first at the first such group, then between groups.
        PreTokenizerRule(
            (
                r"\p{N}+",
                r"(?:[0-9]{3})+(?![0-9])[^0-9]*(?:[0-9]{1,2}(?![0-9])[^0-9]*)*(?:[0-9]{1,2}(?=(?:[0-9]{3})+(?![0-9])))?",
                r"[0-9]{3}(?=[0-9]{3})",
            ),
            clean_spaces=False,
        ),
    ),
    ("poro-chat", PreTokenizerRule((_PORO,), clean_spaces=False)),
    ("bloom gpt3-finnish", PreTokenizerRule((_PORO,))),
    ("viking", PreTokenizerRule((_PORO, r"\p{N}"), clean_spaces=False)),
    (
        "chameleon",
        PreTokenizerRule(
            (
                r"<sentinel:[0-9]+>",
                r"(?:IMGIMG)(?:[A-I]{1,4})Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            clean_spaces=False,
            add_bos=True,
        ),
    ),
    ("gemma4 granite-embed-multi-311m", _LINES),
    ("sarvam-moe", replace(_LINES, newline_token=False, force_bos=False, add_bos=False, clean_spaces=False)),
    ("whitespace", PreTokenizerRule((r"\S+",), byte_level=False)),
)

RULES: dict[str, PreTokenizerRule] = {name: rule for names, rule in _TABLE for name in names.split()}
