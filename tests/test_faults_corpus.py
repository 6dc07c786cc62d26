"""What fuzzers and floods have found, each with its right behaviour; see tests/data/hostile."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import vocabulary

from ggfw.chat import ChatTemplate
from ggfw.chat.messages import normalise
from ggfw.constraints import Compiler, Grammar
from ggfw.constraints.limits import check_lark
from ggfw.errors import GGUFError, InvalidRequest, TemplateError
from ggfw.gguf import GGUF
from ggfw.logprob_file import LogprobReader
from ggfw.quantize.importance import read_importance
from ggfw.sampling import Params, StopStrings
from ggfw.tokenizer import Tokenizer

HOSTILE = Path(__file__).parent / "data" / "hostile"
REQUESTS: list[dict[str, Any]] = json.loads((HOSTILE / "requests.json").read_text())


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(Tokenizer.from_metadata(vocabulary()))


def written_out(value: Any) -> Any:
    """An input with its ``{"repeat": [[text, times], ...]}`` written out."""
    if isinstance(value, dict) and "repeat" in value:
        return "".join(text * times for text, times in value["repeat"])
    return [written_out(v) for v in value] if isinstance(value, list) else value


def take(what: str, value: Any, compiler: Compiler) -> None:
    """Give an input to whom it is for."""
    if what == "stops":
        StopStrings(value)
    elif what == "breakers":
        Params(dry_sequence_breakers=value)
    elif what == "samplers":
        Params(samplers=value)
    elif what == "arguments":
        call = {"type": "function", "function": {"name": "f", "arguments": value}}
        made = normalise([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}])
        assert made[1]["tool_calls"][0]["function"]["arguments"] == value
    else:
        make = {"schema": Grammar.json_schema, "regex": Grammar.regex, "choice": Grammar.choice}[what]
        compiler.compile(make(value))


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: f"{row['what']}: {row['found'][:40]}")
def test_requests(row: dict[str, Any], compiler: Compiler) -> None:
    given = written_out(row["input"])
    if row["error"] is None:
        take(row["what"], given, compiler)
        return
    with pytest.raises(InvalidRequest, match=row["error"]):
        take(row["what"], given, compiler)


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("imatrix-*")), ids=lambda p: p.name)
def test_importance(path: Path) -> None:
    with pytest.raises(InvalidRequest, match="damaged"):
        read_importance(path)


@pytest.mark.parametrize("path", sorted(HOSTILE.glob("logprobs-*")), ids=lambda p: p.name)
def test_logprobs(path: Path) -> None:
    with pytest.raises(InvalidRequest, match="holds no log-probabilities"):
        LogprobReader(path, np.arange(8, dtype=np.int32).reshape(2, 4), 8, 16)


def test_an_empty_array_without_bound() -> None:
    with pytest.raises(GGUFError, match="more than 2\\^60 elements"):
        GGUF.open(HOSTILE / "empty-without-bound.gguf")


@pytest.mark.parametrize(
    "text",
    ["\n" * 300_000 + "x", "start" + " " * 300_000 + "x", "a" * 300_000, " a" * 150_000, '"' * 300_001, "/" * 300_001,
     "root ::= " + "a" * 300_000, "start: " + "(" * 300_000, "start: x\n" + "a" * 300_000, "%json {" * 40_000,
     "root ::= " + '"' * 300_001, "root ::= [" + "a" * 300_000, "root ::= a" + " \n" * 100_000,
     'start: "' + '\\"' * 150_000, "start: /" + "\\/" * 150_000],
    ids=range(15),
)  # fmt: skip
def test_grammars_are_looked_at_in_linear_time(text: str, compiler: Compiler) -> None:
    begin = time.process_time()
    with pytest.raises(InvalidRequest):
        compiler.compile(Grammar.detect(text))
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    "text", ["Unimplemented keys: [" * 40_000, "Unimplemented keys: [" + "," * 800_000 + "]"]
)
@pytest.mark.parametrize("keyword", ["type", "pattern"])
def test_errors_that_quote_a_schema_are_explained_in_linear_time(
    keyword: str, text: str, compiler: Compiler
) -> None:
    begin = time.process_time()
    with pytest.raises(InvalidRequest):
        compiler.compile(Grammar.json_schema({"type": "string", keyword: "(" + text}))
    assert time.process_time() - begin < 2


def test_names_behind_a_quote_that_is_never_closed_count() -> None:
    chain = "\n".join(f"a{i}: a{i + 1}" for i in range(600))
    for head in ('start: a0 | "', "start: a0 | /x"):
        with pytest.raises(InvalidRequest, match="deep"):
            check_lark(f"{head}\n{chain}\na600: /x/", "grammar")


def test_formats_are_looked_at_in_linear_time() -> None:
    template = ChatTemplate("{{ '{" + ":" * 100_000 + "{}}'.format(1) }}")
    begin = time.process_time()
    with pytest.raises(TemplateError):
        template.render([{"role": "user", "content": "a"}])
    assert time.process_time() - begin < 2
