"""Conformance of chat dialects: what their grammar allows is what their parser reads, however a stream is cut."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ggfw.chat.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from ggfw.chat.dialect import Dialect
from ggfw.chat.format import Format
from ggfw.chat.tools import Tools
from ggfw.constraints import Compiler, GrammarConstraint
from ggfw.descriptors import ChatDialect, resolve
from ggfw.testing.checks import Checks, NotApplicable
from ggfw.tokenizer import Tokenizer, TokenType
from ggfw.tokenizer.byte_level import BYTE_TO_CHAR

__all__ = ["ChatDialectChecks"]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
#: What a random walk may write, besides what ends a string.
LETTERS = frozenset('aZ09-.:,;"{}[]()<>/=_|\n `\\u')
ENDS = ('"', '"}', "}", "]", '"}}')
#: Walks that are tried, and how many of them must arrive.
WALKS, ARRIVALS = 12, 2

Parsed = tuple[str, str, list[tuple[str, Any]]]


class ChatDialectChecks(Checks[ChatDialect]):
    """See the methods."""

    kind = ChatDialect
    rules = ("descriptor", "match", "load", "samples", "streams", "text", "reasoning", "grammar", "hostile")

    def match(self) -> None:
        """``match`` gives a whole number of 0 or more for any metadata, also without a template."""
        for metadata in ({}, {"tokenizer.chat_template": ""}, {"tokenizer.chat_template": ["not", "a text"]}):
            score = self.item.match(metadata)
            assert isinstance(score, int) and score >= 0, (
                f"match({metadata}) gives {score!r}, expected 0 or more"
            )

    def load(self) -> None:
        """``load`` makes a ``ggfw.chat.dialect.Dialect`` with a format."""
        self._dialect = resolve(self.item.load)()
        assert isinstance(self._dialect, Dialect), f"load makes {self._dialect!r}, expected a Dialect"
        assert isinstance(self._dialect.format, Format), "format is no ggfw.chat.format.Format"

    def samples(self) -> None:
        """The sample outputs are read as their rows say."""
        for row in self._rows():
            wanted = (
                row.get("text", ""),
                row.get("reasoning", ""),
                [tuple(call) for call in row.get("calls", ())],
            )
            got = self._parse([row["output"]], row.get("prompt", ""), _tools(row))
            assert got == wanted, f"{row['output']!r} is read as {got!r}, expected {wanted!r}"

    def streams(self) -> None:
        """Sample outputs, and what the grammar allows, read alike at every cut (of long ones: at 200)."""
        texts = [(row["output"], row.get("prompt", ""), _tools(row)) for row in self._rows(needed=False)]
        texts += [(text, "", Tools.of(TOOLS)) for text in self._written]
        if not texts:
            raise NotApplicable("there are neither samples nor calls")
        for output, prompt, tools in texts:
            whole = self._parse([output], prompt, tools)
            assert self._parse(list(output), prompt, tools) == whole, (
                f"{output!r} reads differently by characters"
            )
            for at in range(1, len(output), 1 + len(output) // 200):
                got = self._parse([output[:at], output[at:]], prompt, tools)
                assert got == whole, f"{output!r} cut after {output[:at]!r} gives {got!r}, whole {whole!r}"

    def text(self) -> None:
        """Plain text stays as it is."""
        if self._dialect.format.channels is not None:
            raise NotApplicable("all text has headers here")
        for text in ("Hello.", "a < b && c > d", "x = [1, 2]\n", "ü—漢字 🙂"):
            assert self._parse([text], "", Tools()) == (text, "", []), f"{text!r} does not stay text"

    def reasoning(self) -> None:
        """A block of reasoning is told apart from the text behind it, also when the prompt has opened it."""
        blocks = self._dialect.format.reasoning
        if not blocks or self._dialect.format.channels is not None:
            raise NotApplicable("it marks no blocks of reasoning")
        opening, closing = blocks[0]
        for prompt, output in (("", f"{opening}plan{closing}done"), (opening, f"plan{closing}done")):
            got = self._parse([output], prompt, Tools())
            assert got == ("done", "plan", []), f"{output!r} behind {prompt!r} is read as {got!r}"
        found = self._dialect.reasoning(opening)
        assert found is not None and found.inside, (
            "reasoning() does not see that the prompt has opened a block"
        )

    def grammar(self) -> None:
        """Whatever the grammar for forced calls allows is read as calls of the offered tools that fit their schemas."""
        if not self._dialect.format.calls and self._dialect.format.channels is None:
            raise NotApplicable("it has no form for calls")
        assert len(self._written) >= ARRIVALS, (
            f"only {len(self._written)} of {WALKS} random walks through the grammar came to an end; give the "
            "descriptor a sample with the texts that end its values"
        )
        for text in self._written:
            shown, _, calls = self._parse([text], "", Tools.of(TOOLS, "required"), assured=True)
            assert calls and not shown.strip(), f"the grammar allows {text!r}, which is read as text"
            for name, arguments in calls:
                assert name in ("weather", "now"), f"the grammar allows {text!r}, a call of {name!r}"
                if name == "weather":
                    fits = isinstance(arguments, dict) and isinstance(arguments.get("city"), str)
                    fits = (
                        fits
                        and isinstance(arguments.get("days", 0), int)
                        and arguments.get("unit", "C") in "CF"
                    )
                    assert fits, f"the grammar allows {text!r}, whose arguments are read as {arguments!r}"

    def hostile(self) -> None:
        """Marks that are doubled, cut off or in the wrong place raise nothing, and read alike in pieces."""
        marks = self._marks()
        dice = random.Random(5)
        for _ in range(60):
            text = "".join(dice.choice([*marks, "a", " ", "\n", "{", '"', "weather"]) for _ in range(8))
            whole = self._parse([text], "", Tools.of(TOOLS), loose=True)
            pieces = self._parse(list(text), "", Tools.of(TOOLS), loose=True)
            assert whole == pieces, f"{text!r} reads differently by characters: {pieces!r}, whole {whole!r}"

    # -- reading and writing ---------------------------------------------------------------------------------------

    def _rows(self, needed: bool = True) -> Sequence[Mapping[str, Any]]:
        rows = self.sample()
        if rows is None and needed:
            raise NotApplicable("no sample was given to check with")
        return rows or ()

    def _parse(
        self, pieces: Sequence[str], prompt: str, tools: Tools, *, assured: bool = False, loose: bool = False
    ) -> Parsed:
        """(text, reasoning, calls); with ``loose`` arguments that are no JSON stay text."""
        parser = self._dialect.parser(prompt or _prompt(self._dialect), tools, assured=assured)
        deltas: list[Delta] = [d for piece in pieces for d in parser.push(piece)] + parser.finish()
        calls: dict[int, list[str]] = {}
        for d in deltas:
            if isinstance(d, ToolCallDelta) and d.withdrawn:
                del calls[d.index]
            elif isinstance(d, ToolCallDelta):
                call = calls.setdefault(d.index, ["", ""])
                call[0] += d.name
                call[1] += d.arguments
        read: Any = (lambda text: text) if loose else json.loads
        return (
            "".join(d.text for d in deltas if isinstance(d, TextDelta)),
            "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)),
            [(name, read(arguments)) for name, arguments in calls.values()],
        )

    def _marks(self) -> list[str]:
        f = self._dialect.format
        found = [mark for pair in f.reasoning for mark in pair] + list(f.drop)
        found += [mark for form in f.calls for mark in (form.open, *form.close, *form.group)]
        if f.channels is not None:
            found += [*f.channels.begin, f.channels.message, *f.channels.ends]
        for row in self._rows(needed=False):
            found += re.findall(r"<[^<>]*>|\[[A-Z_]+\]", row["output"])
        return sorted({mark for mark in found if mark}) or ["<"]

    def _closing(self) -> list[str]:
        """Texts that may end a value or a call: closing marks, and those of the samples."""
        f = self._dialect.format
        found = [mark for form in f.calls for mark in form.close]
        for row in self._rows(needed=False):
            found += re.findall(r"</[^<>]*>\s*", row["output"])
        return sorted({mark for mark in found if mark})

    @property
    def _written(self) -> list[str]:
        """Texts that random walks through the grammar found."""
        if not hasattr(self, "_walks"):
            f = self._dialect.format
            known = bool(f.calls or f.channels)
            self._walks = list(_walks(self._dialect, self._marks(), self._closing())) if known else []
        return self._walks


def _prompt(dialect: Dialect) -> str:
    channels = dialect.format.channels
    return channels.opened[0] if channels is not None and channels.opened else ""


def _tools(row: Mapping[str, Any]) -> Tools:
    """The tools of a sample row: as given, or ``f``, ``g`` and all that its calls name, with any arguments."""
    given = row.get("tools")
    if given is None:
        given = [
            {"name": name} for name in dict.fromkeys(["f", "g", *(name for name, _ in row.get("calls", ()))])
        ]
    given = [{"name": tool} if isinstance(tool, str) else tool for tool in given]
    return Tools.of(given, row.get("tool_choice"))


@cache
def _vocabulary(control: tuple[str, ...]) -> tuple[Tokenizer, Compiler, np.ndarray]:
    """Bytes, an end token and ``control`` tokens: (tokenizer, compiler, ids that walks choose from)."""
    tokens = [*BYTE_TO_CHAR, "<eos>", *control]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * (1 + len(control))
    tokenizer = Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.eos_token_id": 256,
        }
    )
    likely = [tokenizer.encode(chr(b), add_special=False)[0] for b in range(128) if chr(b) in LETTERS]
    return (
        tokenizer,
        Compiler(tokenizer),
        np.array([*likely, *filter(tokenizer.is_mark, range(257, len(tokens)))]),
    )


def _walks(dialect: Dialect, marks: list[str], closing: list[str]) -> Iterator[str]:
    """Texts that random walks through the grammar arrive at; marks are control tokens where the dialect says so."""
    tokenizer, compiler, likely = _vocabulary(tuple(marks) if dialect.special_tokens else ())

    def control(text: str) -> int | None:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 and tokenizer.is_mark(ids[0]) else None

    tools = Tools.of(TOOLS, "required")
    grammar = dialect.call_grammar(tools, required=True, parallel=True, strict=True, control=control)
    for seed in range(WALKS):
        text = _walk(compiler.compile(grammar), tokenizer, likely, [*ENDS, *closing], random.Random(seed))
        if text is not None:
            yield text


def _walk(
    found: GrammarConstraint, tokenizer: Tokenizer, likely: np.ndarray, ends: list[str], dice: random.Random
) -> str | None:
    """A text that the grammar accepts, or None where the walk loses its way in a long string."""
    ids: list[int] = []
    for _ in range(600):
        if found.accepting and (found.complete or dice.random() < 0.7):
            return tokenizer.decode(ids, special=True)
        step: list[int] = []
        if dice.random() < 0.5:
            choices = (
                tokenizer.encode(end, add_special=False, parse_special=True)
                for end in dice.sample(ends, len(ends))
            )
            step = next((ids for ids in choices if _follows(found, ids)), [])
        if not step:
            mask = found.mask()
            allowed = likely[mask[likely]]
            if not allowed.size:
                allowed = np.array([t for t in np.flatnonzero(mask) if t not in tokenizer.eog_ids])
            if not allowed.size:
                return tokenizer.decode(ids, special=True) if found.accepting else None
            step = [int(dice.choice(allowed.tolist()))]
        for token in step:
            found.accept(token)
        ids += step
    return None


def _follows(found: GrammarConstraint, ids: list[int]) -> bool:
    """Whether all of ``ids`` may come next."""
    ahead = found.copy()
    for token in ids:
        if not ahead.allows(token):
            return False
        ahead.accept(token)
    return True
