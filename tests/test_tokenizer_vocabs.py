"""Published vocabularies: the ids, texts and roles that llama.cpp gives for them (``data/tokenizers``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggfw.gguf import GGUF
from ggfw.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data" / "tokenizers"
TEXTS: dict[str, list[str]] = json.loads((DATA / "texts.json").read_text("utf-8"))
NAMES = sorted(p.stem for p in DATA.glob("*.json") if p.stem != "texts")
MODEL_FIXTURES = {"smollm2": "smollm2_path", "gemma3": "gemma3_path"}
# These bring texts and ids of their own beside the vocabulary file.
UPSTREAM = (
    "bert-bge command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 llama-bpe llama-spm mpt phi-3 qwen2 qwen35 "
    "refact starcoder"
).split()


def _open(path: Path) -> Tokenizer:
    with GGUF.open(path) as gguf:
        return Tokenizer.from_metadata(gguf.metadata)


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[Tokenizer, dict[str, Any]]:
    """A vocabulary and what is expected of it."""
    name = request.param
    if name in MODEL_FIXTURES:
        path = request.getfixturevalue(MODEL_FIXTURES[name])
    else:
        path = request.getfixturevalue("vocab_dir") / f"ggml-vocab-{name}.gguf"
    return _open(path), json.loads((DATA / f"{name}.json").read_text("utf-8"))


def _rows(expected: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    assert len(expected["cases"]) == len(TEXTS["texts"])
    rows = [row + [None] * (6 - len(row)) for row in expected["cases"]]
    return list(zip(TEXTS["texts"], rows, strict=True))


def _bytes(value: Any) -> bytes:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode("utf-8", "surrogatepass")


def test_ids_in_all_four_modes(case: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, expected = case
    wrong = []
    for text, (plain, parsed, plain_bos, parsed_bos, *_) in _rows(expected):
        parsed = plain if parsed is None else parsed
        plain_bos = plain if plain_bos is None else plain_bos
        parsed_bos = parsed if parsed_bos is None else parsed_bos
        modes = (
            (plain, False, False),
            (parsed, False, True),
            (plain_bos, True, False),
            (parsed_bos, True, True),
        )
        for ids, add, parse in modes:
            if tokenizer.encode(text, add_special=add, parse_special=parse) != ids:
                wrong.append((text, add, parse))
    assert wrong == []


def test_detokenized_text(case: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, expected = case
    wrong = []
    for text, (plain, parsed, _, _, printed, shown) in _rows(expected):
        ids = plain if parsed is None else parsed
        for value, special in ((printed, True), (shown, False)):
            want = _bytes(text if value is None else value)
            if tokenizer.detokenize_bytes(ids, special=special, clean=True) != want:
                wrong.append((text, special))
    assert wrong == []


def test_plain_text_has_no_control_ids_and_survives(case: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, _ = case
    escapes = tokenizer.kind.model != "gpt2"
    for text in TEXTS["texts"]:
        ids = tokenizer.encode(text, add_special=False)
        assert not any(map(tokenizer.is_control, ids)), text
        want = text.replace("\u2581", " ") if escapes else text
        if not escapes:  # a few vocabularies have no token for some bytes; those are dropped, as in llama.cpp
            want = "".join(c for c in want if tokenizer.encode(c, add_special=False))
        assert tokenizer.detokenize(ids) == want


def test_ill_formed_utf8(case: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, expected = case
    for data, ids in zip(TEXTS["ill_formed_utf8"], expected["ill_formed_utf8"], strict=True):
        got = tokenizer.encode(bytes.fromhex(data), add_special=False)
        assert all(0 <= i < tokenizer.n_vocab for i in got)
        if ids is not None:
            assert got == ids, data


def test_roles(case: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, expected = case
    info = expected["info"]
    assert tokenizer.n_vocab == info["n_vocab"]
    for role, got in (
        ("bos", tokenizer.bos_id),
        ("eos", tokenizer.eos_id),
        ("eot", tokenizer.eot_id),
        ("nl", tokenizer.nl_id),
    ):
        assert (-1 if got is None else got) == info[role], role
    assert (tokenizer.add_bos, tokenizer.add_eos) == (info["add_bos"], info["add_eos"])
    assert sorted(tokenizer.eog_ids) == info["eog"]


def test_stream_equals_whole(case: tuple[Tokenizer, dict[str, Any]]) -> None:
    tokenizer, _ = case
    for text in TEXTS["texts"]:
        ids = tokenizer.encode(text, parse_special=True)
        decoder = tokenizer.decoder()
        assert "".join([*map(decoder.push, ids), decoder.flush()]) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstream_texts(name: str, vocab_dir: Path) -> None:
    path = vocab_dir / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    ids = [[int(i) for i in line.split()] for line in Path(f"{path}.out").read_text("utf-8").splitlines()]
    tokenizer = _open(path)
    assert len(texts) - 1 <= len(ids) <= len(texts)
    got = [tokenizer.encode(text, add_special=False) for text, _ in zip(texts, ids, strict=False)]
    assert got == ids


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in (*MODEL_FIXTURES, "gemma-4", "llama-spm", "phi-3")]
)
def test_native_engine_agrees(name: str, vocab_dir: Path) -> None:
    """Texts above the limit go to the native engine; lowered to nothing, it has to give the same ids."""
    tokenizer = _open(vocab_dir / f"ggml-vocab-{name}.gguf")
    texts = [*TEXTS["texts"], "\n".join(TEXTS["texts"])]
    want = [tokenizer.encode(text) for text in texts]
    encoder: Any = tokenizer._encoder
    assert encoder.bulk.usable
    encoder.bulk_from = 0
    encoder._cache.clear()
    assert [tokenizer.encode(text) for text in texts] == want
