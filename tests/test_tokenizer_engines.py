"""The fast ways of encoding give what the plain algorithm gives."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import regex
import synthetic_vocabs as vocabs
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw.tokenizer import Tokenizer
from ggfw.tokenizer.lenient import lenient_text
from ggfw.tokenizer.merging import NO_MERGE, _merge_by_heap, _merge_by_scan, merge_pairs
from ggfw.tokenizer.pretokenizers import RULES
from ggfw.tokenizer.specials import SpecialTable, SpecialToken
from ggfw.tokenizer.splitter import Splitter

# -- merging


def _slowly(symbols: list[str], key: Any) -> list[str]:
    """The rule itself: of all pairs the smallest key, of equal ones the leftmost."""
    symbols = list(symbols)
    while True:
        pairs = [(key(a, b), i) for i, (a, b) in enumerate(zip(symbols, symbols[1:], strict=False))]
        best = min(pairs, default=(NO_MERGE, 0))
        if best[0] == NO_MERGE:
            return symbols
        i = best[1]
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@given(
    text=st.text("abc", max_size=40),
    pieces=st.lists(st.text("abc", min_size=2, max_size=5), max_size=30),
    levels=st.integers(1, 30),
)
def test_merging_order(text: str, pieces: list[str], levels: int) -> None:
    # Few levels make many ties, in which the leftmost pair has to win.
    ranks = {p: float(n % levels) for n, p in enumerate(pieces)}

    def key(left: str, right: str) -> float:
        return ranks.get(left + right, NO_MERGE)

    want = _slowly(list(text), key)
    assert _merge_by_scan(list(text), key) == want
    assert _merge_by_heap(list(text), key) == want


def test_long_runs_are_not_quadratic() -> None:
    ranks = {"a" * (1 << k): float(k) for k in range(1, 18)}
    symbols = merge_pairs(["a"] * (1 << 17), lambda a, b: ranks.get(a + b, NO_MERGE))
    assert symbols == ["a" * (1 << 17)]


# -- SentencePiece: cutting before spaces, caching


_PIECES = ["▁", "▁▁", "a▁", "▁a", "ab", "▁ab", "b▁▁", "b▁a", "bb", "aa", "aaa", "c", "a", "b", "▁c", "cc▁"]


@given(
    pieces=st.lists(st.sampled_from(_PIECES), unique=True, max_size=16),
    text=st.text("abc d", max_size=60),
    prefix=st.booleans(),
)
def test_sentencepiece_cuts_change_nothing(pieces: list[str], text: str, prefix: bool) -> None:
    metadata = vocabs.spm(pieces, add_space_prefix=prefix)
    tokenizer = Tokenizer.from_metadata(metadata)
    encoder: Any = tokenizer._encoder
    scores = {p: -metadata["tokenizer.ggml.scores"][i] for p, i in tokenizer.vocab.index.items()}

    def key(left: str, right: str) -> float:
        return scores.get(left + right, NO_MERGE)

    whole = list(((" " if prefix else "") + text).replace(" ", "▁")) if text else []
    want: list[int] = []
    for symbol in _slowly(whole, key):
        token = tokenizer.find(symbol)
        want += [token] if token is not None else [3 + b for b in symbol.encode()]
    assert tokenizer.encode(text, add_special=False) == want
    encoder._cutter.pattern  # noqa: B018  (from now on short texts are cut, too)
    encoder._cache.clear()
    assert tokenizer.encode(text, add_special=False) == want
    assert "".join(tokenizer.split(text)) == text.replace(" ", "▁")


@given(
    words=st.lists(st.text("ab▁\n", min_size=1, max_size=5), min_size=1, max_size=12), text=st.text("ab \nz")
)
def test_raw_bytepair_cuts_change_nothing(words: list[str], text: str) -> None:
    tokenizer = Tokenizer.from_metadata(vocabs.raw_bpe([*words, "▁"]))
    encoder: Any = tokenizer._encoder
    want = []
    for piece in re.findall(r"[^\n]+|\n+", text.replace(" ", "▁")):
        whole = tokenizer.find(piece)
        if not piece.strip("\n") and whole is not None:
            want.append(whole)
            continue
        for symbol in _slowly(list(piece), encoder._key):
            token = tokenizer.find(symbol)
            ids = [tokenizer.find(f"<0x{b:02X}>") for b in symbol.encode()] if token is None else [token]
            want += ids
    assert tokenizer.encode(text) == [2, *want]
    encoder._cutter.pattern  # noqa: B018
    encoder._cache.clear()
    assert tokenizer.encode(text) == [2, *want]
    assert tokenizer.decode(want) == text.replace("▁", " ")


# -- the native engine


@settings(max_examples=60)
@given(
    words=st.lists(st.text(st.sampled_from("abé中 .'1"), min_size=2, max_size=6), max_size=12),
    text=st.text(st.one_of(st.sampled_from("abé中 .'1\n"), st.characters())),
    pre=st.sampled_from(["gpt-2", "llama-bpe", "qwen2", "superbpe", "falcon"]),
    dropped=st.sets(st.sampled_from("abĠÃ©."), max_size=2),
)
def test_native_engine_agrees(words: list[str], text: str, pre: str, dropped: set[str]) -> None:
    metadata = vocabs.bpe(words, pre=pre, add_bos_token=False)
    # Vocabularies with holes: characters that are no tokens, merges that need or make what is none.
    keep = [i for i, t in enumerate(metadata["tokenizer.ggml.tokens"]) if t not in dropped]
    metadata["tokenizer.ggml.tokens"] = [metadata["tokenizer.ggml.tokens"][i] for i in keep]
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"][keep]
    tokenizer = Tokenizer.from_metadata(metadata)
    encoder: Any = tokenizer._encoder
    want = tokenizer.encode(text)
    encoder.bulk_from = 0
    assert tokenizer.encode(text) == want
    assert encoder.bulk.usable


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    words = ["the", " quick", " brown", " fox"]
    tokenizer = Tokenizer.from_metadata(vocabs.bpe(words))
    text = "".join(random.Random(1).choices([*words, " x", "\n", " 12"], k=300_000))
    tokenizer.encode(text[:40_000])  # builds the native engine
    ticks, running = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not running.wait(0.0005):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    ids = tokenizer.encode(text)
    seen = ticks - before
    running.set()
    thread.join()
    assert tokenizer.decode(ids) == text
    assert seen > 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_native_engine_after_fork() -> None:
    """A child process goes on encoding, and nobody writes to the terminal."""
    code = (
        "import os, synthetic_vocabs as v; from ggfw.tokenizer import Tokenizer\n"
        "t = Tokenizer.from_metadata(v.bpe(['the', ' quick'])); text = 'the quick ' * 5000\n"
        "want = t.encode(text); pid = os.fork()\n"
        "if not pid: os._exit(0 if t.encode(text) == want else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_one_object_in_four_threads() -> None:
    tokenizer = Tokenizer.from_metadata(vocabs.spm(_PIECES))
    texts = ["".join(random.Random(n).choices("abc  ", k=500)) for n in range(40)]
    want = [tokenizer.encode(t) for t in texts]
    fresh = Tokenizer.from_metadata(vocabs.spm(_PIECES))
    results: dict[int, list[list[int]]] = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: [fresh.encode(t) for t in texts]}))
        for n in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [results[n] for n in range(4)] == [want] * 4


# -- splitting

_CONTRACTION = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
# The patterns as the models' own tokenizers give them.
ORIGINAL = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": rf"(?:{_CONTRACTION})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_ASSIGNED = st.characters(exclude_categories=["Cs", "Cn"])
_WILD = st.text(
    st.one_of(st.sampled_from("aB'sLlreé漢1२ \t\n\r.!\u3000\u0301\u200b\x1c\x85"), _ASSIGNED), max_size=30
)


@pytest.mark.parametrize("pre", ORIGINAL)
@given(text=_WILD)
def test_split_agrees_with_another_regex_engine(pre: str, text: str) -> None:
    assert Splitter(RULES[pre].patterns).split(text) == regex.findall(ORIGINAL[pre], text)


@settings(max_examples=25)
@given(text=st.text(max_size=30))
@pytest.mark.parametrize("pre", sorted({rule.patterns: name for name, rule in RULES.items()}.values()))
def test_pieces_join_to_the_text(pre: str, text: str) -> None:
    assert "".join(Splitter(RULES[pre].patterns).split(text)) == text


@given(text=st.text("12a ½", max_size=30))
def test_digit_groups_from_the_right(text: str) -> None:
    """AFMoE: the first group of a run has one to three digits and keeps what is in front; the others have three."""
    want, rest = [], ""
    for run in re.findall(r"[12½]+|[^12½]+", text):
        if run[0] not in "12½":
            rest += run
            continue
        head = len(run) % 3 or 3
        want += [rest + run[:head], *(run[i : i + 3] for i in range(head, len(run), 3))]
        rest = ""
    want += [rest] if rest else []
    assert Splitter(RULES["afmoe"].patterns[:1]).split(text) == want


@given(text=st.text("12a२", max_size=30))
def test_superbpe_cuts_before_groups_of_three(text: str) -> None:
    want: list[str] = []
    for run in regex.findall(r"\p{N}+|\P{N}+", text):
        cuts = [m.start() for m in re.finditer(r"(?=(?:[0-9]{3})+(?![0-9]))", run) if m.start()]
        want += [run[a:b] for a, b in zip([0, *cuts], [*cuts, len(run)], strict=True)]
    assert Splitter(RULES["superbpe"].patterns).split(text) == want


@pytest.mark.parametrize("pre", ["afmoe", "superbpe", "tiny_aya", "llama-bpe", "exaone-moe", "gpt-4o"])
@pytest.mark.parametrize("unit", ["7", "a", " ", "a ", "!", "\n", "aB", "é", "7 "])
def test_splitting_takes_linear_time(pre: str, unit: str) -> None:
    text = unit * 60_000
    assert "".join(Splitter(RULES[pre].patterns).split(text)) == text


# -- special tokens


def _partition_slowly(text: str, tokens: list[SpecialToken], allowed: list[bool]) -> list[Any]:
    """llama.cpp's way: for each token, longest first, cut every stretch of text that is left at all its places."""
    parts: list[Any] = [(0, len(text))] if text else []
    for token in sorted(tokens, key=lambda t: (-len(t.text.encode()), t.id)):
        done: list[Any] = []
        for part in parts:
            if isinstance(part, int):
                done.append(part)
                continue
            start, end = part
            at = start
            while at < end:
                stop = at + len(token.text)
                free = not token.control or all(allowed[at:stop])
                if text.startswith(token.text, at) and stop <= end and free:
                    left = at
                    while token.strip_left and left > start and text[left - 1] == " ":
                        left -= 1
                    if left > start:
                        done.append((start, left))
                    done.append(token.id)
                    start = stop
                    while token.strip_right and start < end and text[start] == " ":
                        start += 1
                    at = start
                else:
                    at += 1
            if start < end:
                done.append((start, end))
        parts = done
    return parts


@given(
    text=st.text("<a> ", max_size=24),
    names=st.lists(st.text("<a> ", min_size=1, max_size=4), unique=True, max_size=8),
    flags=st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=8, max_size=8),
    ends=st.lists(st.integers(0, 24), max_size=4),
    costly=st.booleans(),
)
def test_partition(text: str, names: list[str], flags: list[Any], ends: list[int], costly: bool) -> None:
    tokens = [SpecialToken(n, name, *flag) for n, (name, flag) in enumerate(zip(names, flags, strict=False))]
    bounds = sorted({min(e, len(text)) for e in ends})
    spans = [(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]
    allowed = [any(a <= i < b for a, b in spans) for i in range(len(text))]
    table = SpecialTable(tokens)
    if costly:  # the other way of finding which tokens occur at all
        table._lengths = {c: lengths * 1000 for c, lengths in table._lengths.items()}
    assert table.partition(text, spans) == _partition_slowly(text, tokens, allowed)
    assert table.partition(text, None) == _partition_slowly(text, tokens, [True] * len(text))


# -- input that is not UTF-8


@given(st.binary(max_size=20))
def test_ill_formed_input_is_never_refused(data: bytes) -> None:
    try:
        assert lenient_text(data) == data.decode()
    except UnicodeDecodeError:
        pass
    for metadata in (vocabs.spm(["▁", "a"]), vocabs.bpe(), vocabs.raw_bpe(["a▁"])):
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = tokenizer.encode(data)
        assert all(0 <= i < tokenizer.n_vocab for i in ids)


@given(st.binary(max_size=20))
def test_byte_tokens_give_the_bytes_back(data: bytes) -> None:
    tokenizer = Tokenizer.from_metadata(vocabs.spm([], add_space_prefix=False, add_bos_token=False))
    if b" " not in data:  # becomes U+2581, which is no token here
        assert tokenizer.decode_bytes(tokenizer.encode(data)) == data


@given(st.text(st.characters(categories=["Cs", "L"]), max_size=10))
def test_lone_surrogates(text: str) -> None:
    for metadata in (vocabs.spm(["▁"]), vocabs.bpe(pre="llama-bpe", bos_token_id=0), vocabs.raw_bpe(["a▁"])):
        tokenizer = Tokenizer.from_metadata(metadata)
        assert tokenizer.encode(text, add_special=False) or not text
