"""Ids back to text: streams, characters spread over tokens, and llama.cpp's clean-up."""

from __future__ import annotations

import pytest
import synthetic_vocabs as vocabs
from hypothesis import example, given
from hypothesis import strategies as st

from ggfw.tokenizer import Decoder, Tokenizer
from ggfw.tokenizer.decoding import clean_spaces


def _stream(data: list[bytes]) -> list[str]:
    decoder = Decoder(data.__getitem__)
    return [*map(decoder.push, range(len(data))), decoder.flush()]


def test_an_emoji_over_four_tokens_comes_whole() -> None:
    chunks = _stream([b"\xf0", b"\x9f", b"\x98", b"\x80", b"!"])
    assert chunks == ["", "", "", "😀", "!", ""]


def test_cut_inside_a_character() -> None:
    assert _stream([b"\xf0", b"\x9f"]) == ["", "", "\ufffd"]


def test_a_lone_byte_is_not_held_back() -> None:
    assert _stream([b"\xff", b"ok"]) == ["\ufffd", "ok", ""]
    assert (
        _stream([b"\xe0", b"\x80", b"x"])[0] == "" and _stream([b"\xe0", b"\x80", b"x"])[1] == "\ufffd\ufffd"
    )


def test_the_same_through_a_vocabulary() -> None:
    tokenizer = Tokenizer.from_metadata(vocabs.spm(["!"]))
    ids = [3 + b for b in "😀".encode()] + [tokenizer.find("!") or 0]
    decoder = tokenizer.decoder()
    assert [decoder.push(i) for i in ids] == ["", "", "", "😀", "!"] and decoder.flush() == ""
    decoder.push(ids[0])
    assert decoder.pending == b"\xf0"
    assert decoder.flush() == "\ufffd"
    assert decoder.push(ids[-1]) == "!"


@example(data=b"\xed\xa0\x80\xed\xa0", cuts=[1, 2, 4])
@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40)))
def test_every_cut_gives_the_same_text(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    parts = [data[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    assert "".join(_stream(parts)) == data.decode("utf-8", "replace")


@example(data=b"\xed\xa0")
@example(data=b"a\xed\xbf\x80b")
@given(data=st.binary(max_size=20))
def test_nothing_is_held_back_without_need(data: bytes) -> None:
    decoder = Decoder(lambda b: bytes([b]))
    said = ""
    for n, byte in enumerate(data):
        said += decoder.push(byte)
        waiting = decoder.pending
        assert said == data[: n + 1 - len(waiting)].decode("utf-8", "replace")
        if waiting:  # some continuation makes it a character
            assert any(_completes(waiting, second) for second in range(0x80, 0xC0))


def _completes(start: bytes, second: int) -> bool:
    tails = [b"", bytes([second]), bytes([second, 0x80]), bytes([second, 0x80, 0x80])]
    for tail in tails:
        try:
            if len((start + tail).decode()) == 1:
                return True
        except UnicodeDecodeError:
            pass
    return False


def test_control_tokens_are_hidden_or_named() -> None:
    tokenizer = Tokenizer.from_metadata(vocabs.bpe(["hi"]))
    ids = [tokenizer.find("<|im_start|>") or 0, tokenizer.find("hi") or 0]
    assert tokenizer.decode(ids) == "hi" and tokenizer.decode(ids, special=True) == "<|im_start|>hi"
    for special in (False, True):
        decoder = tokenizer.decoder(special=special)
        assert "".join(map(decoder.push, ids)) == tokenizer.decode(ids, special=special)


@given(st.text(max_size=30))
def test_round_trip(text: str) -> None:
    for metadata in (
        vocabs.bpe(["the", " the"], pre="qwen2"),
        vocabs.spm(["▁", "▁the", "t", "h", "e", "th", "the"]),
        vocabs.raw_bpe(["▁the", "\n\n"]),
    ):
        tokenizer = Tokenizer.from_metadata(metadata)
        want = text if metadata["tokenizer.ggml.model"] == "gpt2" else text.replace("▁", " ")
        assert tokenizer.detokenize(tokenizer.encode(text, add_special=False)) == want


def test_the_added_space_is_taken_off_once() -> None:
    tokenizer = Tokenizer.from_metadata(vocabs.spm(["▁", "▁hi", "h", "i", "▁h"]))
    for text in ("hi", " hi", "  hi"):
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.detokenize(ids) == text
        assert tokenizer.decode(ids) == " " + text  # a stream gives what the tokens print


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Hello , world !", "Hello, world!"),
        ("what ?", "what?"),
        (" !x", "!x"),
        ("it 's I 'm we 've they 're", "it's I'm we've they're"),
        ("can 't he 'd we 'll", "can 't he 'd we 'll"),
        ("a ' b", "a'b"),
        ("a  . b", "a . b"),
        ("", ""),
    ],
)
def test_clean_up_of_spaces(text: str, clean: str) -> None:
    assert clean_spaces(text.encode()) == clean.encode()
