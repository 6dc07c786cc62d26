"""Ollama's Modelfile: ``FROM``, ``PARAMETER``, ``SYSTEM``, ``TEMPLATE``, ``MESSAGE``, ``LICENSE``."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from ggfw.errors import InvalidRequest
from ggfw.records import dataclass

__all__ = ["Modelfile", "parse"]

#: Parameters whose values are words; of all others they are numbers, or true and false.
_WORDS = ("stop", "samplers", "sampling_profile")
#: Parameters that may be given several times.
_SEVERAL = ("stop",)


@dataclass
class Modelfile:
    """What a Modelfile says.

    Args:
        base: behind ``FROM``.
        options: of ``PARAMETER``, under Ollama's names.
        system, template, license: texts, or None.
        messages: of ``MESSAGE``.
    """

    base: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    template: str | None = None
    license: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)


def parse(text: str, name: str = "the Modelfile") -> Modelfile:
    """Read a Modelfile. Instructions may be written in any case; ``#`` begins a comment line.

    Raises:
        InvalidRequest: an unknown instruction, a missing value or FROM, an unclosed quote; with the line.
    """
    found = Modelfile()
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        number, line = at + 1, lines[at].strip()
        at += 1
        if not line or line.startswith("#"):
            continue
        instruction, _, rest = line.partition(" ")
        where = f"line {number} of {name}"
        rest = rest.strip()
        words = instruction.upper()
        if words in ("PARAMETER", "MESSAGE"):
            key, _, rest = rest.partition(" ")
            rest = rest.strip()
        else:
            key = ""
        if rest.startswith('"""'):
            value, at = _block(lines, at, rest[3:], where)
        else:
            value = rest[1:-1] if len(rest) > 1 and rest[0] == rest[-1] == '"' else rest
        if not value and words not in ("SYSTEM", "TEMPLATE"):
            raise InvalidRequest(f"{where}: {instruction} needs a value", "modelfile")
        _take(found, words, key, value, where)
    if not found.base:
        raise InvalidRequest(f"{name} has no FROM line; it names the model to begin with", "modelfile")
    return found


def _block(lines: list[str], at: int, first: str, where: str) -> tuple[str, int]:
    """Return (text between three quotes, index of the line behind it)."""
    taken, line = [], first
    while '"""' not in line:
        if at >= len(lines):
            raise InvalidRequest(f'{where}: """ is not closed', "modelfile")
        taken.append(line)
        line = lines[at]
        at += 1
    taken.append(line[: line.index('"""')])
    return "\n".join(taken).strip("\n"), at


def _take(found: Modelfile, instruction: str, key: str, value: str, where: str) -> None:
    if instruction == "FROM":
        found.base = value
    elif instruction == "SYSTEM":
        found.system = value
    elif instruction == "TEMPLATE":
        found.template = value
    elif instruction == "LICENSE":
        found.license = value
    elif instruction == "MESSAGE":
        if key not in ("system", "user", "assistant"):
            raise InvalidRequest(
                f"{where}: MESSAGE is for system, user or assistant, not {key!r}", "modelfile"
            )
        found.messages.append({"role": key, "content": value})
    elif instruction == "PARAMETER":
        read = _value(key, value, where)
        if key in _SEVERAL:
            found.options.setdefault(key, []).append(read)
        else:
            found.options[key] = read
    elif instruction == "ADAPTER":
        raise InvalidRequest(f"{where}: adapters are not supported; merge them into the model", "modelfile")
    else:
        known = "FROM, PARAMETER, SYSTEM, TEMPLATE, MESSAGE, LICENSE"
        raise InvalidRequest(f"{where}: there is no instruction {instruction!r}; known: {known}", "modelfile")


def _value(key: str, value: str, where: str) -> Any:
    if key in _WORDS:
        return value.replace("\\n", "\n") if key == "stop" else value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        raise InvalidRequest(f"{where}: {key} is {value!r}; a number was expected", "modelfile") from None
