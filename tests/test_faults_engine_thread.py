"""Nothing that takes part in a request ends its engine's thread: the request fails, and the next one is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggfw
from ggfw.errors import GenerationError, InvalidRequest

DATA = Path(__file__).parent / "data" / "models"


class Unreadable(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("nobody may see it")


class Evens:
    """Even tokens only; ``broken`` are its methods that raise."""

    def __init__(self, error: Callable[[], BaseException] = RuntimeError, broken: str = "") -> None:
        self._error, self._broken = error, broken

    def _do(self, name: str) -> None:
        if name == self._broken:
            raise self._error()

    def allows(self, token: int) -> bool:
        self._do("allows")
        return token % 2 == 0

    def accept(self, token: int) -> None:
        self._do("accept")

    def first_bytes(self) -> Any:
        return np.ones(256, bool)

    def first_byte(self, token: int) -> int:
        return 0


class Copied(Evens):
    """One that can be copied, or not."""

    def copy(self) -> Any:
        self._do("copy")
        return Evens()


class Parser:
    """Of the answer; never gets to say a word."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self._error = error

    def push(self, text: str) -> list[Any]:
        raise self._error()

    def finish(self) -> list[Any]:
        raise self._error()


@pytest.fixture(scope="module")
def model() -> Iterator[ggfw.Model]:
    with ggfw.load(DATA / "llama.gguf", ctx=256, threads=1) as loaded:
        yield loaded


def request(model: ggfw.Model, **options: Any) -> Any:
    return model.request([5, 6, 7], max_tokens=8, temperature=0, ignore_eos=True, **options)


@pytest.mark.parametrize("error", [lambda: SystemExit(3), lambda: GeneratorExit(), Unreadable])
@pytest.mark.parametrize("where", ["copy", "allows", "accept", "parser"])
def test_the_thread_lives(model: ggfw.Model, where: str, error: Callable[[], BaseException]) -> None:
    other = model.submit(request(model))
    bad = request(model) if where == "parser" else request(model, constraint=Copied(error, where))
    if where == "parser":
        bad.parser = Parser(error)
    elif where != "copy":
        bad.constraint = Evens(error, where)
    with pytest.raises(GenerationError, match=type(error()).__name__):
        model.submit(bad).result(10)
    assert len(other.result(10).token_ids) == 8
    assert len(model.submit(request(model)).result(10).token_ids) == 8


@pytest.mark.parametrize("copy", [None, 7])
def test_a_copy_that_is_no_constraint_is_not_passed_over(model: ggfw.Model, copy: Any) -> None:
    constraint = Evens()
    constraint.copy = lambda: copy  # type: ignore[attr-defined]
    with pytest.raises(GenerationError, match=r"Evens.*copy"):
        model.submit(request(model, constraint=constraint)).result(10)


def test_an_attribute_copy_is_no_method(model: ggfw.Model) -> None:
    constraint = Evens()
    constraint.copy = 5  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="copy"):
        model.engine.submit_choices([request(model, constraint=constraint) for _ in range(2)])


def test_a_step_that_exits_ends_neither_the_thread_nor_the_caller(
    model: ggfw.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(_: Any) -> Any:
        raise SystemExit(7)

    with monkeypatch.context() as patched:
        patched.setattr(model.loaded.executor, "step", leave)
        for ask in (lambda: model.generate([5, 6], max_tokens=3), lambda: model.logits([5, 6])):
            with pytest.raises(GenerationError, match="SystemExit: 7"):
                ask()
    assert len(model.submit(request(model)).result(10).token_ids) == 8
    assert not model.loaded.cache.n_pages_used()
