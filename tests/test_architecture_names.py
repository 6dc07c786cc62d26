"""Nothing outside a plugin's own file knows what its architecture is called: no comparison, no table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ROOT / "plugins" / "architectures"

#: Tables of tokenizers, rope types, dialects and the catalogue speak of such names by right.
EXEMPT = (
    "core/tokenizer/",
    "core/chat/",
    "plugins/chat_dialects/",
    "core/catalogue.py",
    "core/graph/rope.py",
)

#: Methods of strings and mappings that amount to a comparison or a look-up.
LOOKUPS = {
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "find",
    "index",
    "count",
    "get",
    "pop",
    "setdefault",
}


def names_of(tree: ast.Module) -> set[str]:
    """The strings that a plugin's file assigns to ``gguf_names``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(t, ast.Name) and t.id == "gguf_names" for t in targets) and node.value is not None:
            found |= set(strings(node.value))
    return found


def strings(node: ast.AST) -> Iterator[str]:
    """String literals of an expression, also inside tuples, lists and sets."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def mentions_architecture(node: ast.AST) -> bool:
    """Whether an expression reads ``general.architecture`` or something called architecture."""
    for part in ast.walk(node):
        called = (
            part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""
        )
        if (
            called in ("architecture", "arch")
            or isinstance(part, ast.Constant)
            and part.value == "general.architecture"
        ):
            return True
    return False


def offences(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str]]:
    """(line, what) of each comparison with, and each table over, one of ``names`` or a value of the key."""
    for node in ast.walk(tree):
        literals: set[str] = set()
        asked = False
        if isinstance(node, ast.Compare):
            literals = set(strings(node)) - {"", "general.architecture"}
            asked = mentions_architecture(node)
        elif isinstance(node, ast.Dict):
            literals = {s for key in node.keys if key is not None for s in strings(key)}
        elif isinstance(node, ast.Subscript):
            literals = set(strings(node.slice))
        elif isinstance(node, ast.MatchValue):
            literals = set(strings(node))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKUPS
        ):
            literals = {s for argument in node.args for s in strings(argument)}
            asked = mentions_architecture(node.func.value) and node.func.attr not in (
                "get",
                "pop",
                "setdefault",
            )
        elif isinstance(node, ast.keyword) and node.arg in names:
            literals = {node.arg}
        known = literals & names
        if known or (asked and literals):
            yield getattr(node, "lineno", 0), f"{ast.unparse(node)[:80]!r} knows {sorted(known or literals)}"


def files() -> list[Path]:
    folders = ("core", "plugins", "server", "cli", "kernels_c")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.fixture(scope="module")
def owners() -> dict[str, Path]:
    """Registered name -> the file of its plugin."""
    owners: dict[str, Path] = {}
    for path in sorted(ARCHITECTURES.glob("*.py")):
        for name in names_of(ast.parse(path.read_text(encoding="utf-8"))):
            assert name not in owners, f"{name} is served by {owners[name].name} and {path.name}"
            owners[name] = path
    return owners


def test_the_plugins_are_found(owners: dict[str, Path]) -> None:
    assert {"llama", "qwen3", "gemma4", "gpt-oss"} <= set(owners)


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_foreign_code_knows_an_architecture(path: Path, owners: dict[str, Path]) -> None:
    relative = path.relative_to(ROOT).as_posix()
    if relative.startswith(EXEMPT):
        return
    foreign = {name for name, owner in owners.items() if owner != path}
    found = list(offences(ast.parse(path.read_text(encoding="utf-8")), foreign))
    assert not found, "\n".join(f"{relative}:{line}: {what}" for line, what in found)


@pytest.mark.parametrize(
    "source",
    [
        'if gguf.architecture == "qwen3": pass',
        'x = name in ("llama", "mistral")',
        'TABLE = {"gemma4": 1}',
        'scale = SCALES["gpt-oss"]',
        'if metadata["general.architecture"] != "something-new": pass',
        'if architecture.startswith("qwen"): pass',
        'x = TABLE.get("llama", 0)',
        'match a:\n    case "llama": pass',
        "TABLE = dict(llama=1)",
    ],
)
def test_offences_are_seen(source: str, owners: dict[str, Path]) -> None:
    assert list(offences(ast.parse(source), set(owners)))


@pytest.mark.parametrize(
    "source",
    [
        'label = metadata.get("general.architecture")',
        'if gguf.architecture == "": pass',
        'spec = ArchitectureSpec(name="llama")',
        'print("llama is loaded")',
        'if layer.kind == "norm": pass',
    ],
)
def test_ordinary_code_is_left_alone(source: str, owners: dict[str, Path]) -> None:
    assert not list(offences(ast.parse(source), set(owners)))
