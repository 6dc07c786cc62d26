"""Calls as elements: a tag with the function's name, inside it a tag for each argument around its bare value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from ggfw.chat.bodies import MAX_NAME, check_name
from ggfw.chat.reader import Broken, Chars, Reader, Sink
from ggfw.chat.tools import Tool, Tools
from ggfw.chat.typed import is_text, kinds_of, property_of, typed
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.chat.call_grammar import Lark

_CDATA, _CDATA_END = "<![CDATA[", "]]>"


@dataclass(frozen=True)
class TaggedCall:
    """``<function=NAME>`` with ``<parameter=KEY>`` elements of bare text, typed by the tool's schema; or other tags.

    A value that stands on lines of its own loses one line break at each end. It ends at a closing tag behind which the
    call goes on or ends: another one is part of the value. A value in a CDATA section is what stands in it.

    Args:
        call: texts in front of the name, behind it, and at the end of the call.
        argument: the same around the key, and at the end of the value.
        closes: texts that close the block around the call, which end a call, or an argument, whose own closing tag is
            missing.
        opened: the mark of the block is ``call[0]`` itself.
        several: several calls may stand in one block; for grammars, that they do.
        layout: what stands behind the head of a call, behind the head of an argument and in front of its end, and
            behind an argument, as the model was trained; for grammars.
    """

    call: tuple[str, str, str] = ("<function=", ">", "</function>")
    argument: tuple[str, str, str] = ("<parameter=", ">", "</parameter>")
    closes: tuple[str, ...] = ("</tool_call>",)
    opened: bool = False
    several: bool = False
    layout: tuple[str, str, str] = ("\n", "\n", "\n")

    @property
    def listed(self) -> bool:
        """Whether the grammar of the body holds all calls of an answer."""
        return self.several

    def parse(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        """See :class:`ggfw.chat.bodies.Body`."""
        if not self.opened:
            yield from reader.space()
            yield from reader.expect(self.call[0])
        while True:
            yield from self._one(reader, sink, tools)
            if not self.several:
                return
            space = yield from reader.space()
            if not (yield from reader.match(self.call[0])):
                reader.unread(space)
                return

    def _one(self, reader: Reader, sink: Sink, tools: Tools) -> Chars[None]:
        name, _ = yield from reader.until(self.call[1], limit=MAX_NAME)
        name = check_name(name)
        tool = tools.get(name)
        parameters = tool.parameters if tool else {}
        sink.begin(name)
        seen: set[str] = set()
        while True:
            yield from reader.space()
            if (yield from reader.match(self.call[2])) or (yield from self._closed(reader)):
                break
            yield from reader.expect(self.argument[0])
            key, _ = yield from reader.until(self.argument[1], limit=MAX_NAME)
            key = check_name(key)
            if key in seen:
                raise Broken(key)
            sink.arguments(("," if seen else "{") + json.dumps(key, ensure_ascii=False) + ":")
            seen.add(key)
            yield from self._value(reader, sink, kinds_of(property_of(parameters, key), parameters))
        sink.arguments("}" if seen else "{}")
        sink.end()

    def _value(self, reader: Reader, sink: Sink, kinds: frozenset[str]) -> Chars[None]:
        """The text of an argument and its closing tag; text is given out as it comes."""
        live = is_text(kinds)
        held: list[str] = []
        if live:
            sink.arguments('"')
        write = (
            (lambda text: sink.arguments(json.dumps(text, ensure_ascii=False)[1:-1])) if live else held.append
        )
        if not (yield from self._section(reader, write)):
            yield from self._bare(reader, write)
        sink.arguments('"' if live else typed("".join(held), kinds))

    def _bare(self, reader: Reader, write: Callable[[str], object]) -> Chars[None]:
        # On lines of its own, or as it stands, where the family writes values so.
        trimmed = (yield from reader.match("\n")) or bool(self.layout[1])
        end = self.argument[2]
        while True:
            c = yield from reader.read()
            if not c:
                raise Broken("end")
            if c != "\n" and c != end[0]:
                write(c)
                continue
            reader.unread(c)
            got = "\n" if (yield from reader.match("\n")) else ""
            if (yield from reader.match(end)):
                # No value of a forced call holds a closing tag with the layout in front.
                if (yield from self._goes_on(reader, bool(got) or not self.layout[1])):
                    break
                got += end
            elif (yield from self._cut_short(reader)):
                break
            if not got:
                got = yield from reader.read()
            write(got)
        if got and not trimmed:
            write(got)

    def _section(self, reader: Reader, write: Callable[[str], object]) -> Chars[bool]:
        """A CDATA section that is all of the value, if one comes next."""
        if not (yield from reader.match(_CDATA)):
            return False
        while not (yield from reader.match(_CDATA_END)):
            c = yield from reader.read()
            if not c:
                raise Broken("end")
            write(c)
        yield from reader.space()
        yield from reader.expect(self.argument[2])
        return True

    def _closed(self, reader: Reader) -> Chars[bool]:
        """Whether the block ends here, although the call does not; reads nothing."""
        for close in self.closes:
            if (yield from reader.match(close)):
                reader.unread(close)
                return True
        return False

    def _goes_on(self, reader: Reader, laid_out: bool) -> Chars[bool]:
        """Whether another argument or the end of the call comes, or, where laid out, of the block; reads nothing."""
        space = yield from reader.space()
        found = False
        for text in (self.argument[0], self.call[2]):
            if (yield from reader.match(text)):
                reader.unread(text)
                found = True
                break
        found = found or (laid_out and (yield from self._closed(reader))) or not (yield from reader.peek())
        reader.unread(space)
        return found

    def _cut_short(self, reader: Reader) -> Chars[bool]:
        """Whether call and block end here although the argument does not; reads nothing."""
        if not (yield from reader.match(self.call[2])):
            return False
        space = yield from reader.space()
        found = yield from self._closed(reader)
        reader.unread(self.call[2] + space)
        return found

    # -- grammar --------------------------------------------------------------------------------------------------

    def grammar(self, lark: Lark, tools: Tools) -> str:
        """See :class:`ggfw.chat.bodies.Body`."""
        call = lark.rule(" | ".join(self._call_grammar(lark, tool) for tool in tools.callable))
        if not self.several or tools.single:
            return call
        return lark.rule(f"{call} {lark.more(lark.text(self.layout[2]), call)}")

    def _call_grammar(self, lark: Lark, tool: Tool) -> str:
        parameters = tool.parameters
        properties = parameters.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = parameters.get("required")
        required = [k for k in required if isinstance(k, str)] if isinstance(required, list | tuple) else []
        behind, around, after = self.layout
        head = "" if self.opened else self.call[0]
        parts = [lark.text(f"{head}{tool.name}{self.call[1]}{behind}")]
        end = around + self.argument[2]
        for key in [*properties, *(k for k in required if k not in properties)]:
            schema = properties.get(key)
            if is_text(kinds_of(schema, parameters)):
                value = lark.text_value(tool, schema, end)
            else:
                value = f"{lark.value(tool, schema)} {lark.text(end)}"
            begin = lark.text(f"{self.argument[0]}{key}{self.argument[1]}{around}")
            part = f"{begin} {value} {lark.text(after)}"
            parts.append(part if key in required else f"({part})?")
        return " ".join([*parts, lark.text(self.call[2])])
