"""Dialects: how a model family writes reasoning, tools, calls and results. A dialect is a plugin.

How to write one, in a module that an entry point of the group ``ggfw`` names::

    from ggfw.chat.bodies import JsonCall
    from ggfw.chat.dialect import Dialect, marks
    from ggfw.chat.format import CallForm, Format
    from ggfw.descriptors import ChatDialect
    from ggfw.hookspecs import hookimpl

    GGFW_PLUGIN_API = 1

    class Toy(Dialect):
        format = Format(calls=(CallForm("<call>", JsonCall(), ("</call>",)),))

    @hookimpl
    def ggfw_register_chat_dialects():
        return [ChatDialect(name="toy", match=lambda metadata: marks(metadata, "<call>"), load=Toy)]

``match`` scores a file's metadata (0 = not mine; see :func:`marks`; a form that only this family has: 50 and more, one
that several share: 20 to 40, the generic dialect: 1). ``format`` (:mod:`ggfw.chat.format`) describes the marks and the
bodies of calls (:mod:`ggfw.chat.bodies` has the common ones; a new one is a class with two methods, ``parse``, a
generator over characters, and ``grammar``). From it the base class makes the parser, the grammar for forced calls, and
what constraints need to know about reasoning. Marks that are control tokens need ``special_tokens = True``, which makes
all of them visible; those that mean nothing go into ``Format.drop``. Stop strings go into ``stops``. A family that
needs tools in the prompt although its template has no place for them overrides :meth:`Dialect.tool_prompt`, and with it
``call_text`` and ``result_text``, which write the calls and results of earlier turns.

Each dialect has a table of model outputs, ``tests/data/dialects/NAME.json``, which ``tests/test_dialects.py`` parses
whole and cut at every place. Its rows: ``{"output": …, "text": …, "reasoning": …, "calls": [["name", {arguments}]]}``,
where missing fields are empty; further fields are ``name``, ``prompt`` (end of the prompt), ``tools`` (names, or tools;
default: ``f``, ``g`` with any arguments, and whatever the expected calls name) and ``tool_choice``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ggfw.chat import messages
from ggfw.chat.call_grammar import Control, calls, no_control
from ggfw.chat.deltas import Delta, TextDelta
from ggfw.chat.format import Format
from ggfw.chat.splitter import Splitter
from ggfw.chat.tools import Tools
from ggfw.errors import InvalidRequest
from ggfw.records import dataclass

if TYPE_CHECKING:
    from ggfw.chat.template import ChatTemplate
    from ggfw.constraints import Grammar
    from ggfw.descriptors import ChatDialect


class Parser(Protocol):
    """Takes the answer of one request piece by piece.

    Whatever the pieces' borders, the joined deltas are the same; only what could still become a marker is held back.
    Two attributes are optional: ``in_reasoning``, whether a reasoning block is open, and ``done``, whether the answer
    is over although the model would go on.
    """

    def push(self, text: str) -> list[Delta]:
        """Take the next piece of raw text."""

    def finish(self) -> list[Delta]:
        """The answer is over: give out what was held back."""


@dataclass(frozen=True)
class Reasoning:
    """The block of reasoning with which an answer may begin, as constraints need to know it.

    Args:
        close: the text that ends it; the answer stands behind it.
        inside: whether the prompt has opened it already.
        open: the text that opens it, where the model does that itself.
        forced: what is written in the model's place when the block has had all its tokens: the closing text with the
            layout around it that the family was trained on; empty: ``close`` on a line of its own.
        between: text that may stand between two blocks.
        interrupts: texts that end the block too, where nothing waits for ``close``.
    """

    close: str
    inside: bool
    open: str = ""
    forced: str = ""
    between: str = ""
    interrupts: tuple[str, ...] = ()


class Dialect:
    """Base class of dialects, and how they behave unless they say otherwise; see the module.

    Attributes:
        format: how answers are marked.
        special_tokens: whether the parser needs the text of control tokens (which is dropped otherwise).
        stops: stop strings this family needs besides its end tokens.
        closings: closing text of a reasoning block -> the same with the layout around it that the family was trained
            on, where that is not a line of its own with an empty line behind it. A budget closes blocks with it.
    """

    format: Format = Format()
    special_tokens: bool = False
    stops: tuple[str, ...] = ()
    closings: Mapping[str, str] = MappingProxyType({})

    def template_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Change the variables of the chat template before it is rendered; gives them as they are here."""
        return arguments

    def tool_prompt(self, tools: Tools) -> str:
        """Text for the system message of a model whose template has no place for tools."""
        return tool_prompt(tools)

    def call_text(self, name: str, arguments: str) -> str:
        """A call of an earlier turn, in the form that :meth:`tool_prompt` tells; ``arguments`` is JSON text."""
        return messages.call_text(name, arguments)

    def result_text(self, content: str) -> str:
        """The result of such a call, as text of the user."""
        return messages.result_text(content)

    def turn_of_calls(self, calls: Sequence[tuple[str, str]]) -> tuple[str, str, str] | None:
        """The calls of an earlier turn as the model wrote them, for templates that name the tools but drop the calls.

        Args:
            calls: (name, arguments as JSON text).

        Returns:
            (opening mark, text, closing mark): control tokens in the marks are meant, in the text they stay text.
            None: the calls stay dropped.
        """
        return None

    def format_for(self, prompt: str) -> Format:
        """How the answer to the rendered ``prompt`` is marked; some families' templates know several ways."""
        return self.format

    def parser(self, prompt: str, tools: Tools | None = None, *, assured: bool = False) -> Parser:
        """A parser for one answer.

        Args:
            prompt: the rendered prompt, or its end, which may already have opened a block.
            tools: what may be called; None or empty: nothing is taken for a call.
            assured: a grammar assures that calls parse, so that they can be streamed from the name on.
        """
        return Splitter(self.format_for(prompt), tools, prompt, assured)

    def call_grammar(
        self, tools: Tools, *, required: bool, parallel: bool, strict: bool, control: Control = no_control
    ) -> Grammar:
        """The grammar for an answer with calls; it begins behind the reasoning (:meth:`reasoning_before_calls`).

        Args:
            tools: what may be called, at least one.
            required: the answer is one call or several; else it may also be text, before the calls or alone.
            parallel: several calls are allowed.
            strict: arguments must satisfy the tools' schemas even where a tool does not say ``strict``.
            control: finds the control token that a mark is in this vocabulary.

        Raises:
            InvalidRequest: a schema cannot be used, or this family writes no calls.
        """
        if not self.format.calls:
            raise InvalidRequest("this model's dialect has no form for tool calls", "tools")
        form = self.format.calls[0]
        return calls(form, tools, required=required, parallel=parallel, strict=strict, control=control)

    def thinks(self, template: ChatTemplate) -> bool:
        """Whether models of this template reason: it can switch that, or writes one of the family's marks of it."""
        can = template.capabilities
        if self.format.channels is not None or can.thinking_switch is not None or can.reasoning_effort:
            return True
        return any(mark in template.source for pair in self.format.reasoning for mark in pair)

    def reasoning(self, prompt: str) -> Reasoning | None:
        """The block that may stand in front of the answer to the rendered ``prompt``; None: there is none.

        A constraint on the answer begins behind it.
        """
        form, bare = self.format_for(prompt), prompt.rstrip()
        ends = form.interrupts
        for opening, closing in form.reasoning:
            if bare.endswith(opening):
                return Reasoning(closing, True, forced=self.closings.get(closing, ""), interrupts=ends)
            if bare.endswith(closing):  # the template has switched reasoning off by an empty block
                return None
        for opening, closing in form.reasoning:
            return Reasoning(closing, False, opening, self.closings.get(closing, ""), interrupts=ends)
        return None

    def reasoning_before_calls(self, prompt: str) -> Reasoning | None:
        """The block behind which :meth:`call_grammar` begins; None where the grammar begins with the answer."""
        return self.reasoning(prompt)

    def reasoning_budget(self, prompt: str, *, calls: bool) -> Reasoning | None:
        """The block whose tokens a budget counts, and what closes it (``forced``) when they are used up.

        Args:
            prompt: the rendered prompt.
            calls: whether :meth:`call_grammar` holds for the answer, which what is written then must satisfy.
        """
        return self.reasoning(prompt)


def marks(metadata: Mapping[str, Any], *texts: str, score: int = 50) -> int:
    """``score`` if all ``texts`` stand in the file's chat template, else 0."""
    template = metadata.get("tokenizer.chat_template")
    return score if isinstance(template, str) and all(text in template for text in texts) else 0


def make(descriptor: ChatDialect) -> Dialect:
    """The dialect of a plugin.

    Raises:
        PluginError: it cannot be made, or is none.
    """
    from ggfw.descriptors import resolve
    from ggfw.errors import PluginError, brief, kind_and_text

    try:
        found = resolve(descriptor.load)
        found = found() if isinstance(found, type) else found
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(
            f"the chat dialect {descriptor.name} cannot be made: {kind_and_text(error)}"
        ) from error
    if not isinstance(found, Dialect):
        raise PluginError(
            f"the chat dialect {descriptor.name} is {brief(found)}; a ggfw.chat.dialect.Dialect was expected"
        )
    return found


def tool_prompt(tools: Tools) -> str:
    """The generic way to tell a model about tools: their definitions, and the form of a call that most models know."""
    lines = "\n".join(json.dumps(tool.definition(), ensure_ascii=False) for tool in tools.callable)
    return (
        "You can call functions. These are their definitions, one JSON object a line:\n"
        f"<tools>\n{lines}\n</tools>\n"
        "To call a function, write its name and its arguments as a JSON object between these tags, and nothing behind "
        'it:\n<tool_call>\n{"name": "the name", "arguments": {"argument": "value"}}\n</tool_call>\n'
        "The result comes in the next message. Call a function only if it helps; else answer yourself."
    )


class PlainParser:
    """Everything is text."""

    def push(self, text: str) -> list[Delta]:
        """Pass the piece on."""
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Delta]:
        """Nothing was held back."""
        return []
