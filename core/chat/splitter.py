"""Takes an answer apart: text, reasoning, tool calls. The same for every family; a :class:`Format` says what is what.

The answer is read character by character, so that nothing can depend on how it was cut into pieces. Held back is what
could still become a mark (and white space in front of one, which is layout), and a call until it is certain to be one:
when it is complete, when a grammar assures that it will be, or when so much of its arguments has come that waiting
would be worse (:data:`HOLD` characters); from then on its arguments are streamed as they come. A block that turns out
to be no call is text, marks included, and is looked through once more for calls behind its first mark. A call that
breaks, or is cut, after it was given out is withdrawn (:attr:`ToolCallDelta.withdrawn`) and is text all the same. The
last character of its arguments waits for the end of the call, so that nobody takes them for whole then. Only a call
that a grammar assures stays one when the answer is cut in it: the caller asked for it, and knows that it was cut. Cut
before its name is whole it is nothing: what a grammar makes of calls is never text.
"""

from __future__ import annotations

import os
import string
from collections import deque

from ggfw.chat.bodies import arguments_object
from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.chat.format import CallForm, Format, Route
from ggfw.chat.reader import SPACE, Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tools
from ggfw.records import dataclass

#: Characters of arguments that are held back while a call may still turn out to be text.
HOLD = 256
#: Blocks that turned out to be no calls, after which an answer is not searched for calls any more.
MAX_BROKEN = 32
#: Longest header of a message.
MAX_HEADER = 400
_ALPHABET = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Nine alphanumeric characters: the only form that all chat templates take."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(9))


@dataclass
class _Piece:
    """What is given out, before neighbours are joined: kind, text, place in the raw answer; or a part of a call."""

    kind: str
    text: str
    start: int = 0
    end: int = 0
    index: int = -1
    id: str = ""
    name: str = ""
    withdrawn: bool = False


@dataclass
class _Call:
    """The call that is being read."""

    index: int
    name: str
    held: str = ""
    announced: bool = False


class Splitter:
    """Parser of one answer; see the module.

    Args:
        form: how the family marks things.
        tools: what may be called; none: calls are text.
        prompt: the end of the rendered prompt, which may have opened a reasoning block or a header.
        assured: a grammar assures that calls parse.

    Attributes:
        done: the answer has its only call (``tools.single``); what follows is ignored.
    """

    def __init__(
        self, form: Format, tools: Tools | None = None, prompt: str = "", assured: bool = False
    ) -> None:
        self._form, self._tools, self._assured = form, tools or Tools(), assured
        self.done = False
        self._calls = form.calls if self._tools else ()
        #: Opening texts of calls that end reasoning too, and the closing text that an ended block has not had.
        self._interrupts = form.interrupts if self._calls and not assured else ()
        self._unclosed = ""
        self._known: dict[tuple[bool, bool, str], tuple[str, ...]] = {}
        self._todo: deque[str] = deque()
        self._pos = 0  # of the next character
        self._out: list[_Piece] = []
        self._state = self._in_text
        self._held = ""  # what may become a mark
        self._space = ""  # white space that may turn out to be layout
        self._lead = True  # nothing but blocks came so far, or since the last call
        self._blocks = 0
        self._has_text = False
        self._n_calls = self._n_broken = 0
        self._shown = ""  # kind of the last message that showed something, with headers
        self._fresh = False  # a message has begun and shown nothing yet
        self._begun = False  # whether the reasoning block has shown something
        self._closes: tuple[str, ...] = ()
        self._call: _Call | None = None
        self._opened_by(prompt)

    def _opened_by(self, prompt: str) -> None:
        """Begin where the prompt has left off."""
        channels = self._form.channels
        bare = prompt.rstrip()
        if channels is not None:
            if bare.endswith(channels.opened):
                self._header, self._state = "", self._in_header
                self._given_header = True
                return
            # The prompt may have opened a message too, perhaps with its beginning.
            tail = channels.begin[0] + prompt.rpartition(channels.begin[0])[2]
            header, opened, begun = tail.partition(channels.message)
            if opened and not any(end in begun for end in channels.ends):
                self._route(channels.route(header, self._tools))
                return
        for opening, closing in self._form.reasoning:
            if bare.endswith(opening):
                self._blocks += 1
                self._reason((closing,))

    # -- the protocol of parsers ----------------------------------------------------------------------------------

    @property
    def in_reasoning(self) -> bool:
        """Whether a reasoning block is open."""
        return self._state == self._in_reasoning

    def push(self, text: str) -> list[Delta]:
        """Take the next piece."""
        self._todo.extend(text)
        self._run()
        return self._deltas()

    def finish(self) -> list[Delta]:
        """The answer is over: give out what was held back."""
        # A block that breaks at the end is read again as text, in which other blocks may break.
        while not self.done:
            self._run()
            before = self._state
            self._state("")
            if self._state == before and not self._todo and before != self._in_body:
                break
        return self._deltas()

    def _run(self) -> None:
        todo = self._todo
        while todo and not self.done:
            c = todo.popleft()
            self._pos += 1
            self._state(c)
        if self.done:
            todo.clear()

    def _again(self, text: str) -> None:
        """Read ``text``, the last that came, once more."""
        self._todo.extendleft(reversed(text))
        self._pos -= len(text)

    def _deltas(self) -> list[Delta]:
        out: list[Delta] = []
        pieces, self._out = self._out, []
        for p in pieces:
            if p.kind == "call":
                out.append(ToolCallDelta(p.index, p.id, p.name, p.text, p.withdrawn))
            else:
                kind = TextDelta if p.kind == "text" else ReasoningDelta
                out.append(kind(p.text, span=(p.start, p.end)))
        return out

    def _give(self, kind: str, text: str, end: int) -> None:
        """Give out text that ends at ``end`` of the raw answer."""
        if not text:
            return
        last = self._out[-1] if self._out else None
        if self._fresh and self._shown == kind and self._form.channels is not None:
            self._out.append(_Piece(kind, "\n\n", end - len(text), end - len(text)))
            last = None
        self._shown, self._fresh = kind, False
        if last is not None and last.kind == kind and last.end == end - len(text):
            last.text += text
            last.end = end
        else:
            self._out.append(_Piece(kind, text, end - len(text), end))

    # -- text -----------------------------------------------------------------------------------------------------

    def _marks(self) -> tuple[str, ...]:
        """The marks that may come next."""
        key = (self._lead, self._n_broken <= MAX_BROKEN, self._unclosed)
        found = self._known.get(key)
        if found is None:
            marks = [c.open for c in self._calls if c.open and key[1]]
            marks += [*self._form.drop, *filter(None, [self._unclosed])]
            if self._lead:
                marks += [*(opening for opening, _ in self._form.reasoning), *self._form.lead]
            if self._form.channels is not None:
                marks += [*self._form.channels.begin, *self._form.channels.ends]
            found = self._known[key] = tuple(marks)
        return found

    def _in_text(self, c: str) -> None:
        self._held += c
        while self._held and self._state == self._in_text:
            held, marks = self._held, self._marks()
            mark, longer = "", False
            for one in marks:
                if held.startswith(one):
                    mark = max(mark, one, key=len)
                elif one.startswith(held):
                    longer = True
            if c and longer:
                return
            if not c and longer and self._calls_only:
                self._held = self._space = ""
                return
            if mark:
                self._held = ""
                self._again(held[len(mark) :])
                self._mark(mark)
                return
            self._held = held[1:]
            self._text(held[0], self._pos - len(held) + 1)
        if not c and self._state == self._in_text and self._space:
            if not (self._lead and self._blocks) and not self._calls_only:
                self._give("text", self._space, self._pos)
            self._space = ""

    def _text(self, c: str, end: int) -> None:
        """A character that belongs to no mark; ``end`` is where it ends."""
        if c in SPACE:
            if self._lead and self._blocks and not self._has_text:
                return
            if self._lead or self._calls or self._form.channels:
                self._space += c
            else:
                self._give("text", c, end)
            return
        if self._lead and self._n_broken <= MAX_BROKEN:
            bare = next((f for f in self._calls if not f.open and c in f.starts), None)
            if bare is not None:
                held, self._held = self._held, ""
                self._again(c + held)
                self._enter(bare, "")
                return
        self._give("text", self._space + c, end)
        self._space, self._lead, self._has_text = "", False, True

    def _mark(self, mark: str) -> None:
        """A whole mark has come."""
        form = next((f for f in self._calls if f.open == mark), None)
        channels = self._form.channels
        if form is not None:
            self._enter(form, mark)
        elif channels is not None and mark in channels.begin:
            self._space, self._header, self._given_header = "", mark, False
            self._state = self._in_header
        elif channels is not None and mark in channels.ends:
            self._message_over()
        elif mark == self._unclosed:
            self._unclosed = self._space = ""
            self._lead = True
        elif mark in self._form.drop:
            self._space = ""  # layout too
            if self._lead:
                self._blocks += bool(self._blocks)
        elif mark in self._form.lead:
            self._space = ""
            self._blocks += 1
        else:
            self._blocks += 1
            self._space = ""
            self._reason(tuple(closing for opening, closing in self._form.reasoning if opening == mark))

    # -- reasoning ------------------------------------------------------------------------------------------------

    def _reason(self, closes: tuple[str, ...]) -> None:
        self._state, self._begun, self._space, self._unclosed = self._in_reasoning, False, "", ""
        self._closes = (*closes, *self._interrupts)

    def _in_reasoning(self, c: str) -> None:
        self._held += c
        while self._held:
            held = self._held
            if held in self._closes:
                self._held = self._space = ""
                self._state, self._lead = self._in_text, True
                channels = self._form.channels
                if channels is not None:
                    self._message_over()
                    if held in channels.begin:
                        self._mark(held)
                if held in self._interrupts:
                    self._unclosed = self._closes[0]
                    self._mark(held)
                return
            if c and any(mark.startswith(held) for mark in self._closes):
                return
            self._held = held[1:]
            if held[0] in SPACE:
                self._space += held[0] if self._begun else ""
            else:
                self._give("reasoning", self._space + held[0], self._pos - len(held) + 1)
                self._space, self._begun = "", True

    # -- messages with headers ------------------------------------------------------------------------------------

    _header = ""
    _given_header = False

    def _in_header(self, c: str) -> None:
        channels = self._form.channels
        assert channels is not None
        self._header += c
        if self._header.endswith(channels.message):
            self._route(channels.route(self._header[: -len(channels.message)], self._tools))
            return
        bare = self._header.lstrip()
        likely = ("to=", *channels.begin, channels.message)
        if self._given_header and not any(
            bare.startswith(one[: len(bare)]) or bare.startswith(one) for one in likely
        ):
            # The model does not go on with the header that the prompt has begun: it answers without.
            header, self._header = self._header, ""
            self._state = self._in_text
            self._again(header)
        elif not c or len(self._header) > MAX_HEADER:
            self._header, self._state = "", self._in_text

    def _route(self, route: Route) -> None:
        channels = self._form.channels
        assert channels is not None
        self._header, self._space, self._fresh = "", "", True
        closes = (*channels.ends, *channels.begin)
        if route.kind == "reasoning":
            self._reason(closes)
        elif route.kind == "call" and self._tools:
            self._enter(CallForm("", _Message(route.name), channels.ends), "")
        else:
            self._state, self._lead = self._in_text, False

    def _message_over(self) -> None:
        self._state, self._space, self._lead = self._in_text, "", False

    # -- calls ----------------------------------------------------------------------------------------------------

    def _enter(self, form: CallForm, mark: str) -> None:
        """A block of calls begins behind ``mark``."""
        self._block, self._mark_text, self._raw = form, mark, ""
        self._commit = 0
        self._before = self._space  # is layout if this is a call, else text
        self._n_before = self._n_calls
        self._reader = Reader()
        self._body = self._parse(form)
        self._state = self._in_body
        next(self._body)

    def _parse(self, form: CallForm) -> Chars[None]:
        sink = Sink(self._begin_call, self._arguments, self._end_call)
        yield from form.body.parse(self._reader, sink, self._tools)
        if self._n_calls == self._n_before:
            raise Broken("no call")
        if any(form.close):
            yield from _closing(self._reader, form.close)

    def _in_body(self, c: str) -> None:
        self._raw += c
        try:
            self._body.send(c)
        except StopIteration:
            # What is left when a grammar's answer was cut is the beginning of a mark.
            self._body_over("" if self._assured and not c else self._reader.back)
        except Broken:
            if self._assured and not c:
                if self._call is not None:
                    self._end_call()
                self._body_over("")
            else:
                self._broken()

    @property
    def _calls_only(self) -> bool:
        """Whether a grammar assures that nothing but calls can come."""
        return self._assured and (self._tools.required or self._n_calls > 0)

    def _body_over(self, rest: str) -> None:
        self._again(rest)
        self._call = None
        self._state, self._lead, self._space = self._in_text, True, ""
        self._blocks += 1

    def _broken(self) -> None:
        call, self._call = self._call, None
        if call is not None and call.announced:
            self._out.append(_Piece("call", "", index=call.index, withdrawn=True))
            self._n_calls += 1  # its number is used up
        self._n_broken += 1
        self._state, self._lead, self._space = self._in_text, False, ""
        if self._commit:  # calls before it were good: what follows them is text
            self._again(self._raw[self._commit :])
            return
        mark = self._mark_text or self._raw[:1]
        rest = self._raw[len(mark) - len(self._mark_text) :]
        self._give("text", self._before + mark, self._pos - len(rest))
        self._has_text = self._has_text or bool(mark)
        self._again(rest)

    def _begin_call(self, name: str) -> None:
        self._call = _Call(self._n_calls, name)
        if self._assured:
            self._announce(self._call)

    def _arguments(self, text: str) -> None:
        call = self._call
        assert call is not None
        call.held += text
        if call.announced:
            self._give_arguments(call, call.held[:-1])
            call.held = call.held[-1:]
        elif len(call.held) > HOLD:
            self._announce(call)

    def _end_call(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        if not call.announced:
            self._announce(call)
        self._give_arguments(call, call.held)
        self._n_calls += 1
        self._commit = self._reader.n_read
        self.done = self._tools.single

    def _announce(self, call: _Call) -> None:
        call.announced, self._space = True, ""
        self._out.append(_Piece("call", "", index=call.index, id=new_call_id(), name=call.name))
        self._give_arguments(call, call.held[:-1])
        call.held = call.held[-1:]

    def _give_arguments(self, call: _Call, text: str) -> None:
        if not text:
            return
        last = self._out[-1] if self._out else None
        if last is not None and last.kind == "call" and last.index == call.index and not last.id:
            last.text += text
        else:
            self._out.append(_Piece("call", text, index=call.index))


@dataclass(frozen=True)
class _Message:
    """A message whose header has named the function: the arguments alone."""

    name: str

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        sink.begin(self.name)
        yield from reader.space()
        if (yield from reader.peek()) == "<":  # closed without a word
            sink.arguments("{}")
        else:
            yield from arguments_object(reader, sink)
        sink.end()

    def grammar(self, lark: object, tools: Tools) -> str:
        raise NotImplementedError


def _closing(reader: Reader, closes: tuple[str, ...]) -> Chars[None]:
    """Read a closing mark, if one comes, or its beginning, where the answer is cut in it.

    Some models write a brace too many in front of it.
    """
    got = yield from reader.space()
    for _ in range(3):
        if not (yield from reader.match("}")):
            break
        got += "}" + (yield from reader.space())
    for mark in filter(None, closes):
        if (yield from reader.match(mark)):
            return
    begun = ""
    while any(mark.startswith(begun) for mark in closes):
        c = yield from reader.read()
        if not c and begun:
            return
        begun += c
        if not c:
            break
    reader.unread(got + begun)
