"""Data classes with shared functions behave as those of the standard library."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggfw import records


def _classes(decorator: Callable[..., Any]) -> dict[str, type]:
    """The same classes by either decorator."""

    @decorator(frozen=True)
    class Point:
        x: Any
        y: Any = 0
        note: str = dataclasses.field(default="", compare=False)
        secret: str = dataclasses.field(default="s", repr=False)
        table: Any = dataclasses.field(default_factory=dict, repr=False, hash=False)

    @decorator(frozen=True)
    class Farther(Point):
        z: Any = 1

    @decorator(frozen=True, slots=True)
    class One:
        x: Any

    @decorator
    class Open:
        x: Any

    @decorator(eq=False)
    class Same:
        x: Any

    @decorator(frozen=True)
    class Own:
        x: Any

        def __repr__(self) -> str:
            return "mine"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    @decorator(frozen=True)
    class Empty:
        pass

    return {c.__name__: c for c in (Point, Farther, One, Open, Same, Own, Empty)}


OURS, THEIRS = _classes(records.dataclass), _classes(dataclasses.dataclass)
VALUES = st.one_of(st.integers(-2, 2), st.text(max_size=2), st.tuples(st.integers(0, 1)))


@settings(deadline=None)
@given(x=VALUES, y=VALUES, x2=VALUES, y2=VALUES, name=st.sampled_from(["Point", "Farther"]))
def test_comparison_hash_and_representation_are_the_same(x: Any, y: Any, x2: Any, y2: Any, name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert (ours(x, y) == ours(x2, y2, note="n")) is (theirs(x, y) == theirs(x2, y2, note="n"))
    assert hash(ours(x, y)) == hash(theirs(x, y))
    assert repr(ours(x, y)) == repr(theirs(x, y))


@pytest.mark.parametrize("name", ["One", "Open", "Same"])
def test_one_field(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    for a, b in ((1, 1), (1, 2), (float("nan"),) * 2):
        assert (ours(a) == ours(b)) is (theirs(a) == theirs(b))
        assert repr(ours(a)) == repr(theirs(a))
    assert (ours.__hash__ is None) is (theirs.__hash__ is None)


def test_classes_do_not_equal_each_other() -> None:
    assert OURS["Point"](1) != OURS["Farther"](1)
    assert OURS["Point"](1) != (1, 0)
    assert OURS["Empty"]() == OURS["Empty"]()


def test_what_a_class_defines_itself_stays() -> None:
    assert repr(OURS["Own"](1)) == "mine"
    assert OURS["Own"](1) == OURS["Own"](2)
    assert hash(OURS["Own"](1)) == 7


def test_frozen_means_frozen_and_the_librarys_functions_work() -> None:
    one = OURS["Point"](1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 3
    assert dataclasses.replace(one, x=5) == OURS["Point"](5, 2)
    assert dataclasses.asdict(one) == {"x": 1, "y": 2, "note": "", "secret": "s", "table": {}}

    @dataclasses.dataclass(frozen=True)
    class Outside(OURS["Point"]):  # type: ignore[misc]
        w: int = 0

    assert Outside(1, 2, w=3) == Outside(1, 2, w=3) != Outside(1, 2, w=4)


def test_a_value_that_holds_itself_can_be_shown() -> None:
    items: list[Any] = []
    one = OURS["One"](items)
    items.append(one)
    assert "..." in repr(one)


def test_pickle() -> None:
    from ggfw.result import Usage

    usage = Usage(1, 2)
    assert pickle.loads(pickle.dumps(usage)) == usage


def test_a_hash_that_was_asked_for() -> None:
    @records.dataclass(unsafe_hash=True)
    class Changing:
        x: int = 1

    assert hash(Changing()) == hash(Changing()) != hash(Changing(2))
