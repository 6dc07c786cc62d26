"""The tools of one request, checked: what the model may call, whether it must, and whether several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

from ggfw.errors import InvalidRequest, brief
from ggfw.records import dataclass

Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Args:
        name: of the function.
        description: for the model.
        parameters: JSON schema of the arguments, an object.
        strict: the arguments must satisfy the schema.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False

    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI's form, as chat templates get it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters) or {"type": "object", "properties": {}},
            },
        }


@dataclass(frozen=True)
class Tools:
    """The tools of one request. Make one with :meth:`of`.

    Args:
        offered: all tools, in the caller's order.
        choice: ``auto``, ``none`` or ``required``.
        named: the one tool that must be called, with ``choice`` ``required``.
        parallel: whether one answer may hold several calls.
    """

    offered: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    named: str | None = None
    parallel: bool = True

    @classmethod
    def of(
        cls,
        tools: Sequence[Mapping[str, Any]] | None,
        tool_choice: Any = None,
        parallel: bool | None = None,
    ) -> Tools:
        """Check what a caller gave.

        Args:
            tools: ``{"type": "function", "function": {"name", "description", "parameters", "strict"}}``, or the inner
                object alone.
            tool_choice: ``auto`` (the default), ``none``, ``required`` (also ``any``), or
                ``{"type": "function", "function": {"name": …}}``, also with ``name`` outside, or the bare name of a
                tool.
            parallel: ``parallel_tool_calls``; None = True.

        Raises:
            InvalidRequest: a malformed tool, a name that is given twice, an unknown choice or name, a forced call
                without tools.
        """
        offered = _offered(tools)
        names = [tool.name for tool in offered]
        choice, named = _choice(tool_choice, names)
        if choice == "required" and not offered:
            raise InvalidRequest("tool_choice asks for a call, but there are no tools", "tool_choice")
        if named is not None and named not in names:
            raise InvalidRequest(
                f"tool_choice names {named!r}, which is not among the tools ({', '.join(names) or 'none'})",
                "tool_choice",
            )
        if parallel is not None and not isinstance(parallel, bool):
            raise InvalidRequest(
                f"parallel_tool_calls must be true or false, not {brief(parallel)}", "parallel_tool_calls"
            )
        return cls(offered, choice, named, parallel is not False)

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that a call may name."""
        if self.choice == "none":
            return ()
        return tuple(t for t in self.offered if self.named in (None, t.name))

    @property
    def required(self) -> bool:
        """Whether the answer must hold a call."""
        return self.choice == "required"

    @property
    def strict(self) -> bool:
        """Whether arguments of some tool must satisfy its schema."""
        return any(tool.strict for tool in self.callable)

    @property
    def single(self) -> bool:
        """Whether the answer ends with its first call: by the caller's wish, or because one tool was named."""
        return not self.parallel or self.named is not None

    def get(self, name: str) -> Tool | None:
        """The tool of this name among those that may be called."""
        return next((tool for tool in self.callable if tool.name == name), None)

    def __bool__(self) -> bool:
        return bool(self.callable)


def _offered(tools: Any) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequest(f"tools must be a list, not {type(tools).__name__}", "tools")
    out: list[Tool] = []
    for n, given in enumerate(tools):
        tool = _tool(given, f"tools[{n}]")
        if any(tool.name == other.name for other in out):
            raise InvalidRequest(f"tools[{n}] has the name {tool.name!r} of another tool", f"tools[{n}]")
        out.append(tool)
    return tuple(out)


def _tool(given: Any, where: str) -> Tool:
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {type(given).__name__}", where)
    kind = given.get("type", "function")
    if kind != "function":
        raise InvalidRequest(f"{where} is of type {brief(kind)}; tools are functions here", f"{where}.type")
    function = given.get("function", given)
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where}.function must be an object", f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequest(f"{where} has no function name", f"{where}.function.name")
    parameters = function.get("parameters")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, Mapping):
        raise InvalidRequest(
            f"the parameters of the tool {name!r} must be a JSON schema (an object), not {brief(parameters)}",
            f"{where}.function.parameters",
        )
    kind = parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list | tuple) and "object" in kind):
        raise InvalidRequest(
            f"the parameters of the tool {name!r} must be a JSON schema of the type 'object', not {brief(kind)}",
            f"{where}.function.parameters",
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest(
            f"the description of the tool {name!r} must be a text", f"{where}.function.description"
        )
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest(
            f"strict of the tool {name!r} must be true or false, not {brief(strict)}",
            f"{where}.function.strict",
        )
    return Tool(name, description or "", parameters, bool(strict))


def _choice(given: Any, names: list[str]) -> tuple[Choice, str | None]:
    if given is None:
        return "auto", None
    if isinstance(given, str) and given in ("auto", "none"):
        return given, None  # type: ignore[return-value]
    if isinstance(given, str) and given in ("required", "any"):
        return "required", None
    if isinstance(given, Mapping):
        kind = given.get("type")
        function = given.get("function", given)
        name = function.get("name") if isinstance(function, Mapping) else None
        if kind in ("function", "tool") and isinstance(name, str):
            return "required", name
        if kind in ("auto", "none", "required", "any") and name is None:
            return _choice(kind, names)
    elif isinstance(given, str) and given in names:
        return "required", given
    value = brief(given, 240)
    value = value if len(value) <= 120 else f"{value[:120].rpartition(' ')[0]} …"
    raise InvalidRequest(
        f"tool_choice is {value}; expected auto, none, required, or "
        '{"type": "function", "function": {"name": ...}} with the name of a tool',
        "tool_choice",
    )
