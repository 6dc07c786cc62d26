"""Stop strings over the borders of tokens: text is let through as soon as it can no longer become a stop."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ggfw.errors import InvalidRequest, brief

#: Characters that all stops of a request may have together.
MAX_SIZE = 1 << 16


class _Automaton:
    """Aho and Corasick's automaton: all stops are followed at once, whatever their number.

    State 0 is the beginning; every state is a beginning of some stop.

    Attributes:
        depth: characters of the stops' beginning that a state stands for.
        found: length of the longest stop that ends in a state, 0 for none.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: dict[tuple[int, str], int] = {}
        self.depth, self.found = [0], [0]
        children: list[list[tuple[str, int]]] = [[]]
        for stop in stops:
            state = 0
            for char in stop:
                follow = self._next.get((state, char))
                if follow is None:
                    follow = self._next[state, char] = len(self.depth)
                    self.depth.append(self.depth[state] + 1)
                    self.found.append(0)
                    children[state].append((char, follow))
                    children.append([])
                state = follow
            self.found[state] = len(stop)
        self._back = [0] * len(self.depth)  # the longest proper tail that is a beginning of a stop
        level = [child for _, child in children[0]]
        while level:
            below = []
            for state in level:
                self.found[state] = self.found[state] or self.found[self._back[state]]
                for char, child in children[state]:
                    self._back[child] = self.step(self._back[state], char)
                    below.append(child)
            level = below

    def step(self, state: int, char: str) -> int:
        """The state behind one more character."""
        while (follow := self._next.get((state, char))) is None:
            if not state:
                return 0
            state = self._back[state]
        return follow


#: Those of the last requests: all choices of a request share one.
_automaton = lru_cache(maxsize=2)(_Automaton)


class StopStrings:
    """An incremental filter that ends a text before the first stop string.

    The stop that is complete first wins (of those complete at the same character the longest), so the result does
    not depend on how the text was cut into pieces. Only a tail that is the beginning of a stop is held back.

    Args:
        stops: one string or several; None, also among several, is ignored.

    Raises:
        InvalidRequest: an empty stop, something that is not a string, or more than MAX_SIZE characters in all.
    """

    def __init__(self, stops: str | Iterable[str | None] | None = None) -> None:
        if stops is None:
            stops = ()
        elif isinstance(stops, str):
            stops = (stops,)
        texts: list[str] = []
        try:
            wanted = list(stops)
        except TypeError:
            raise InvalidRequest(
                f"stop must be a string or a list of strings, not {brief(stops)}", param="stop"
            ) from None
        for stop in wanted:
            if stop is None:
                continue
            if not isinstance(stop, str):
                raise InvalidRequest(f"a stop must be a string, not {brief(stop)}", param="stop")
            if not stop:
                raise InvalidRequest(
                    "a stop string must not be empty; leave it out to use none", param="stop"
                )
            texts.append(stop)
        if sum(map(len, texts)) > MAX_SIZE:
            raise InvalidRequest(
                f"the stop strings have {sum(map(len, texts))} characters; at most {MAX_SIZE} are allowed",
                "stop",
            )
        self._automaton = _automaton(tuple(dict.fromkeys(texts))) if texts else None
        self._state = 0
        #: The stop string that ended the text, or None.
        self.matched: str | None = None
        self._held = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.matched is not None

    @property
    def held(self) -> str:
        """The tail that is held back because it could become a stop."""
        return self._held

    def feed(self, text: str) -> tuple[str, bool]:
        """Take the next piece; gives (text that may be shown now, whether a stop was found).

        What follows a stop is dropped, in this piece and in all later ones.
        """
        if self.matched is not None:
            return "", True
        automaton = self._automaton
        if automaton is None:
            return text, False
        start = len(self._held)
        text = self._held + text
        for end in range(start, len(text)):
            self._state = automaton.step(self._state, text[end])
            if length := automaton.found[self._state]:
                begin = end + 1 - length
                self.matched = text[begin : end + 1]
                self._held = ""
                return text[:begin], True
        cut = len(text) - automaton.depth[self._state]
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The end of the text: gives what was held back, and makes the filter ready for another text."""
        held, self._held = self._held, ""
        self._state = 0
        self.matched = None
        return held
