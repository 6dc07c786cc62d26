"""Stop strings over the borders of tokens: text is let through as soon as it can no longer become a stop."""

from __future__ import annotations

from collections.abc import Iterable

from ggfw.errors import InvalidRequest


class _Matcher:
    """Knuth-Morris-Pratt over a stream: ``n`` is how many characters of the stop the stream ends with now."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.n = 0
        self._back = [0] * len(stop)  # longest proper border of stop[: i + 1]
        border = 0
        for i in range(1, len(stop)):
            while border and stop[i] != stop[border]:
                border = self._back[border - 1]
            border += stop[i] == stop[border]
            self._back[i] = border

    def step(self, char: str) -> bool:
        """Take one character; True when the stop is complete."""
        while self.n and char != self.stop[self.n]:
            self.n = self._back[self.n - 1]
        self.n += char == self.stop[self.n]
        return self.n == len(self.stop)


class StopStrings:
    """An incremental filter that ends a text before the first stop string.

    The stop that is complete first wins (of those complete at the same character the longest), so the result does
    not depend on how the text was cut into pieces. Only a tail that is the beginning of a stop is held back.

    Args:
        stops: one string or several; None, also among several, is ignored.

    Raises:
        InvalidRequest: an empty stop or something that is not a string.
    """

    def __init__(self, stops: str | Iterable[str | None] | None = None) -> None:
        if stops is None:
            stops = ()
        elif isinstance(stops, str):
            stops = (stops,)
        self._matchers: list[_Matcher] = []
        try:
            wanted = list(stops)
        except TypeError:
            raise InvalidRequest(
                f"stop must be a string or a list of strings, not {stops!r}", param="stop"
            ) from None
        for stop in wanted:
            if stop is None:
                continue
            if not isinstance(stop, str):
                raise InvalidRequest(f"a stop must be a string, not {stop!r}", param="stop")
            if not stop:
                raise InvalidRequest(
                    "a stop string must not be empty; leave it out to use none", param="stop"
                )
            self._matchers.append(_Matcher(stop))
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
        if not self._matchers:
            return text, False
        start = len(self._held)
        text = self._held + text
        for end in range(start, len(text)):
            complete = [m.stop for m in self._matchers if m.step(text[end])]
            if complete:
                self.matched = max(complete, key=len)
                self._held = ""
                return text[: end + 1 - len(self.matched)], True
        cut = len(text) - max(m.n for m in self._matchers)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The end of the text: gives what was held back, and makes the filter ready for another text."""
        held, self._held = self._held, ""
        for m in self._matchers:
            m.n = 0
        self.matched = None
        return held
