"""Stop strings over the borders of pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggfw.errors import InvalidRequest
from ggfw.sampling import StopStrings


def run(pieces, stops) -> tuple[str, bool]:
    stop, shown = StopStrings(stops), ""
    for piece in pieces:
        text, stopped = stop.feed(piece)
        shown += text
        if stopped:
            return shown, True
    return shown + stop.flush(), False


@pytest.mark.parametrize(
    ("pieces", "stops", "want"),
    [
        (["MN", "O", "PQ", "R", "S"], ["MNOPQR"], ("", True)),
        (["\nHum", "ble"], ["\nHuman:"], ("\nHumble", False)),
        (["gard", "en"], ["enX"], ("garden", False)),
        (["go ", "halt!"], ["halt"], ("go ", True)),
        (["go ", "halt!"], "halt", ("go ", True)),
        (["abc"], None, ("abc", False)),
        (["abc"], [None], ("abc", False)),
        (["abc"], [], ("abc", False)),
        (["xMNOPQR"], ["MNOPQR", "MNO"], ("x", True)),
        (["aab"], ["ab"], ("a", True)),
        (["aa", "aab"], ["aaab"], ("a", True)),
        (["one two"], ["two", "one"], ("", True)),
    ],
)
def test_cases(pieces, stops, want) -> None:
    assert run(pieces, stops) == want


@pytest.mark.parametrize("stops", ["", [""], ["a", ""], [1], 5, [b"a"]])
def test_bad_stops(stops) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StopStrings(stops)
    assert caught.value.param == "stop"


def test_only_a_possible_beginning_is_held_back() -> None:
    stop = StopStrings(["<end>"])
    assert stop.feed("abc<e") == ("abc", False)
    assert stop.held == "<e"
    assert stop.feed("x") == ("<ex", False)
    assert stop.feed("<<end") == ("<", False)
    assert stop.feed(">rest") == ("", True)
    assert stop.matched == "<end>" and stop.stopped
    assert stop.feed("more") == ("", True)
    assert stop.flush() == "" and not stop.stopped


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """The stop that is complete first ends the text; of several complete at once the longest."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(st.text("ab\n", max_size=30), st.lists(st.text("ab\n", min_size=1, max_size=6), max_size=4), st.data())
def test_every_cut_gives_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    want = reference(text, stops)
    assert run(pieces, stops) == want
    assert run(list(text), stops) == want
    stop, fed, shown = StopStrings(stops), "", ""
    for piece in pieces:
        emitted, stopped = stop.feed(piece)
        fed, shown = fed + piece, shown + emitted
        if stopped:
            break
        # What is held back is the longest tail that begins a stop, no more.
        tails = [fed[i:] for i in range(len(fed) + 1)]
        assert stop.held == next(t for t in tails if not t or any(s.startswith(t) for s in stops))
        assert shown + stop.held == fed
