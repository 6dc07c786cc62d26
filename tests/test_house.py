"""Rules of the house, derived from the tree: what imports what, what is packaged, documented and registered."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
#: Folder at the root -> the package it is.
FOLDERS = {folder: package for package, folder in SETUPTOOLS["package-dir"].items()}
ENTRY_POINTS: dict[str, str] = PROJECT["project"]["entry-points"]["ggfw"]

#: Made by the build, not written by us.
GENERATED = ROOT / "kernels_c" / "lib"

#: Folder -> folders it may import from, besides itself.
MAY_IMPORT = {
    "core": set(),
    "kernels_c": {"core"},
    "plugins": {"core", "kernels_c"},  # kernel backends say where the built-in libraries are
    "server": {"core"},
    "cli": {"core", "server"},
}


@cache
def modules() -> dict[str, Path]:
    """All Python files of the mapped folders, by dotted name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if GENERATED in path.parents:
                continue
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of a module, also those inside functions; relative ones made absolute."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def folder_of(dotted: str) -> str | None:
    """The root folder that a name belongs to, or None if it is not ours."""
    best = max((p for p in FOLDERS.values() if f"{dotted}.".startswith(f"{p}.")), key=len, default=None)
    return next((folder for folder, package in FOLDERS.items() if package == best), None)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_dependencies_point_one_way() -> None:
    assert set(MAY_IMPORT) == set(FOLDERS)
    wrong = []
    for name, path in modules().items():
        own = path.relative_to(ROOT).parts[0]
        for line, target in imports(path, name):
            folder = folder_of(target)
            if folder is not None and folder != own and folder not in MAY_IMPORT[own]:
                wrong.append(f"{where(path, line)} imports {target}")
    assert not wrong


def test_nothing_names_the_built_in_plugins() -> None:
    wrong = []
    for path in modules().values():
        if path.relative_to(ROOT).parts[0] == "plugins":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"ggfw\.plugins\.[\w.]+(:\w+)?", node.value):
                    wrong.append(where(path, node.lineno))
    assert not wrong


def test_nobody_imports_a_bare_folder() -> None:
    wrong = []
    for path in (path for path in sources() if path.suffix == ".py"):
        for line, target in imports(path, "nowhere.module"):
            if target.split(".")[0] in FOLDERS:
                wrong.append(f"{where(path, line)} imports {target}")
    assert not wrong
    # cli and server are common names: only modules out of this checkout count.
    for folder in FOLDERS:
        file = getattr(sys.modules.get(folder), "__file__", None)
        assert file is None or ROOT not in Path(file).parents


def test_every_import_is_a_declared_dependency() -> None:
    """Also means that nothing of contrib/, tests/ or bench/ is imported by what gets installed."""
    project = PROJECT["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["hub"]]
    declared = {re.split(r"[^\w-]", line)[0].replace("-", "_").lower() for line in lines}
    imported_as = {"markdown_it_py": "markdown_it"}  # distributions whose package has another name
    declared = {imported_as.get(name, name) for name in declared}
    exempt = {
        ("kernels_c/build.py", "bindings"),  # its neighbour; the build back end has no package yet
        ("plugins/model_sources/hub.py", "tqdm"),  # comes with huggingface_hub, whose progress it shows
    }
    wrong = []
    for name, path in modules().items():
        for line, target in imports(path, name):
            top = target.split(".")[0]
            if top in sys.stdlib_module_names or top == "ggfw" or top.lower() in declared:
                continue
            if (path.relative_to(ROOT).as_posix(), top) not in exempt:
                wrong.append(f"{where(path, line)} imports {target}")
    assert not wrong


def test_packages_are_the_folders_with_init() -> None:
    have = {name for name, path in modules().items() if path.name == "__init__.py"}
    assert have == set(SETUPTOOLS["packages"])
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])
    lost = {p.parent for p in modules().values()} - {
        p.parent for p in modules().values() if p.name == "__init__.py"
    }
    assert not lost, "folders with modules but without __init__.py are missing from the wheel"


def is_plugin(path: Path) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.name.startswith("ggfw_register_")
        for node in tree(path).body
    )


def test_every_plugin_module_has_an_entry_point() -> None:
    plugins = {
        name for name, path in modules().items() if name.startswith("ggfw.plugins.") and is_plugin(path)
    }
    assert plugins, "the tree has plugins"
    assert plugins == set(ENTRY_POINTS.values())
    for name, module in ENTRY_POINTS.items():
        assert module == f"ggfw.plugins.{name}", "a built-in's entry point is named KIND.MODULE"


def test_the_installed_entry_points_are_those_of_the_tree() -> None:
    installed = {
        ep.name: ep.value for ep in importlib.metadata.distribution("ggfw").entry_points if ep.group == "ggfw"
    }
    assert installed == ENTRY_POINTS, "the installed metadata are old: run `pip install -e .` again"


def test_every_builtin_plugin_loads() -> None:
    from ggfw.registry import Registry

    registry = Registry.load(environ={})
    assert not [
        row for row in registry.rows() if row.distribution == "ggfw" and row.state not in ("ok", "available")
    ]


def test_hooks_are_documented() -> None:
    text = (ROOT / "docs" / "plugins.md").read_text()
    for node in tree(ROOT / "core" / "hookspecs.py").body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("ggfw_register_"):
            assert f"{node.name}() -> {ast.unparse(node.returns)}" in text


def test_every_descriptor_field_is_documented() -> None:
    import dataclasses

    from ggfw.descriptors import KINDS, Descriptor

    text = (ROOT / "docs" / "plugins.md").read_text()
    for cls in (Descriptor, *KINDS.values()):
        for field in dataclasses.fields(cls):
            assert f"`{field.name}`" in text, f"{cls.__name__}.{field.name}"


def test_re_exports_are_declared() -> None:
    wrong = []
    for name, path in modules().items():
        body = tree(path).body
        declared = [
            node
            for node in body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and any(
                getattr(t, "id", "") == "__all__"
                for t in getattr(node, "targets", [getattr(node, "target", None)])
            )
        ]
        from_ours = [
            n for n in body if isinstance(n, ast.ImportFrom) and (n.level or folder_of(n.module or ""))
        ]
        if path.name == "__init__.py" and from_ours and not declared:
            wrong.append(f"{name} re-exports without __all__")
    assert not wrong


def test_every_public_name_exists() -> None:
    for name, path in modules().items():
        if "__all__" in path.read_text():
            module = importlib.import_module(name)
            assert not [n for n in module.__all__ if not hasattr(module, n)], name


# -- docstrings --------------------------------------------------------------------------------------------------

DOCUMENTED = ("core", "server", "cli", "kernels_c")
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def methods(cls: ast.ClassDef) -> dict[str, bool]:
    """Public methods of a class, and whether each has a docstring."""
    functions = [item for item in cls.body if isinstance(item, Function) and not item.name.startswith("_")]
    return {item.name: ast.get_docstring(item) is not None for item in functions}


def base_names(cls: ast.ClassDef) -> list[str]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in cls.bases]
    return [getattr(base, "id", getattr(base, "attr", "")) for base in bases]


def inherits_docs(cls: ast.ClassDef, method: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a class of ours that ``cls`` derives from, or a protocol that it implements, documents the method."""
    parents = [parent for name in base_names(cls) if name not in seen for parent in classes().get(name, [])]
    protocols = [c for found in classes().values() for c in found if "Protocol" in base_names(c)]
    parents += [p for p in protocols if p is not cls and methods(p) and set(methods(p)) <= set(methods(cls))]
    if any(methods(parent).get(method) for parent in parents):
        return True
    return any(inherits_docs(p, method, seen | {p.name}) for p in parents if p.name not in seen)


def undocumented(path: Path) -> Iterator[tuple[int, str]]:
    def visit(body: list[ast.stmt], cls: ast.ClassDef | None) -> Iterator[tuple[int, str]]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    yield node.lineno, node.name
                yield from visit(node.body, node)
            elif isinstance(node, Function) and not node.name.startswith("_") and not ast.get_docstring(node):
                marks = {ast.unparse(d).rpartition(".")[2] for d in node.decorator_list}
                if not marks & {"overload", "setter", "deleter"} and not (
                    cls and inherits_docs(cls, node.name)
                ):
                    yield node.lineno, f"{cls.name}.{node.name}" if cls else node.name

    if not ast.get_docstring(tree(path)) and tree(path).body:
        yield 1, "the module"
    yield from visit(tree(path).body, None)


@pytest.mark.parametrize("folder", DOCUMENTED)
def test_public_names_have_docstrings(folder: str) -> None:
    paths = [path for path in modules().values() if path.relative_to(ROOT).parts[0] == folder]
    assert not [f"{where(p, line)} {what}" for p in paths for line, what in undocumented(p)]


# -- a silent core -----------------------------------------------------------------------------------------------

#: The switches of the plugin door are the core's only look at the environment.
READS_ENVIRONMENT = {"core/registry.py"}
NOT_IN_CORE = {
    "click",
    "rich",
    "sanic",
    "http",
    "urllib",
    "socket",
    "requests",
    "httpx",
    "huggingface_hub",
    "argparse",
}


def test_the_core_is_silent() -> None:
    wrong = []
    for name, path in modules().items():
        relative = path.relative_to(ROOT).as_posix()
        if not relative.startswith("core/"):
            continue
        for line, target in imports(path, name):
            if target.split(".")[0] in NOT_IN_CORE:
                wrong.append(f"{where(path, line)} imports {target}")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                wrong.append(f"{where(path, node.lineno)} prints")
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("environ", "getenv")
                and relative not in READS_ENVIRONMENT
            ):
                wrong.append(f"{where(path, node.lineno)} reads the environment")
    assert not wrong


def test_modules_are_short() -> None:
    long = {name: n for name, path in modules().items() if (n := len(path.read_text().splitlines())) > 600}
    assert not long, "split by 600 lines: one idea per file"


# -- what must not be in the tree ----------------------------------------------------------------------------------

#: Written backwards, so that this file does not contain them.
FORBIDDEN = re.compile(
    "|".join(
        word[::-1]
        for word in ("/krow/", "/toor/", r"/+]z-a[/emoh/", "gro.ipyp", "gro.detsohnohtyp", "gro.naibed")
    )
)
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".c",
    ".h",
    ".inc",
    ".sh",
    ".html",
    ".js",
    ".css",
    ".json",
    ".txt",
    ".in",
    ".cfg",
    "",
}


def sources() -> Iterator[Path]:
    skip = {".git", "build", "dist", "lib", "__pycache__", "peers", ".cache", ".hypothesis"}
    for path in ROOT.rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        if (
            path.is_file()
            and path.suffix in TEXT
            and not parts & skip
            and not any(part.startswith(".venv") or part.endswith((".egg-info", "_cache")) for part in parts)
        ):
            yield path


def test_no_path_of_a_machine_and_no_registry_host() -> None:
    wrong = []
    for path in sources():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if FORBIDDEN.search(line):
                wrong.append(f"{where(path, number)}: {line.strip()[:80]}")
    assert not wrong


# -- quick to start ------------------------------------------------------------------------------------------------

HEAVY = ("numpy", "tokenizers", "jinja2", "sanic", "pydantic", "rich", "cffi", "huggingface_hub", "asyncio")


def test_listing_plugins_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ggfw.registry import default_registry; default_registry().rows(); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
