"""``ggfw plugins new``: a package of one plugin, ready to be installed, that passes ``ggfw plugins check``.

The files come from ``cli/plugin_templates/KIND``; all kinds share those of ``common``. Words between two ``@``
are filled in (see :func:`files`).
"""

from __future__ import annotations

import json
import keyword
import re
from pathlib import Path

from ggfw.errors import InvalidRequest

__all__ = ["SHORT", "files", "write"]

_TEMPLATES = Path(__file__).with_name("plugin_templates")

#: What a user calls a kind -> the kind; the word in names of distributions.
SHORT = {
    "architecture": ("architectures", "arch"),
    "quant_format": ("quant_formats", "quant"),
    "kernel_backend": ("kernel_backends", "kernels"),
    "chat_dialect": ("chat_dialects", "dialect"),
    "skill": ("skills", "skill"),
    "model_source": ("model_sources", "source"),
    "sampler_stage": ("sampler_stages", "sampler"),
}

_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


def files(kind: str, name: str) -> dict[str, str]:
    """The files of a new package: path inside its folder -> text.

    Args:
        kind: a key of :data:`SHORT`.
        name: small letters, digits, and single ``-`` or ``_`` between them.

    Raises:
        InvalidRequest: the name cannot be a descriptor's, a module's and a distribution's.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > 40:
        raise InvalidRequest(
            f"the name {name!r} cannot be used; small letters, digits and single hyphens between them are expected",
            "name",
        )
    plural, word = SHORT[kind]
    module = f"ggfw_{word}_{name.replace('-', '_')}"
    native = (_TEMPLATES / kind / "kernels.c").is_file()
    modules = [module] + [f"{module}_graph"] * (_TEMPLATES / kind / "graph.py.txt").is_file()
    words = {
        "NAME": name,
        "DIST": module.replace("_", "-"),
        "MODULE": module,
        "CLASS": "".join(part.capitalize() for part in re.split("[-_]", name)),
        "KIND": kind.replace("_", " "),
        "HOOK": f"ggfw_register_{plural}",
        "CHECK": f"check_{kind}",
        "REQUIRES": '"setuptools>=77", "ggfw"' if native else '"setuptools>=77"',
        "PACKAGES": f'packages = ["{module}"]\npackage-data = {{{module} = ["*.c", "*.so"]}}'
        if native
        else f"py-modules = {json.dumps(modules)}",
        "PARAMETER": name.replace("-", "_"),
        "FOLDER": f"{name.upper().replace('-', '_')}_MODELS",
    }
    found: dict[str, str] = {}
    for path in sorted((*(_TEMPLATES / "common").iterdir(), *(_TEMPLATES / kind).iterdir())):
        if path.is_file():
            target = path.name.removesuffix(".txt")
            if target == "plugin.py":
                target = f"{module}/__init__.py" if native else f"{module}.py"
            elif target == "graph.py":
                target = f"{module}_graph.py"
            elif target == "kernels.c":
                target = f"{module}/kernels.c"
            elif target == "test.py":
                target = f"tests/test_{name.replace('-', '_')}.py"
            text = path.read_text(encoding="utf-8")
            found[target] = re.sub(r"@([A-Z]+)@", lambda match: words[match[1]], text)
    return found


def write(kind: str, name: str, folder: Path) -> Path:
    """Write the files of a new package into a new folder, ``folder/DISTRIBUTION``.

    Raises:
        InvalidRequest: a bad name, or the folder is there already.
    """
    made = files(kind, name)
    target = folder / f"ggfw-{SHORT[kind][1]}-{name.replace('_', '-')}"
    try:
        target.mkdir(parents=True)
        for path, text in made.items():
            (target / path).parent.mkdir(exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise InvalidRequest(f"{target} is there already; choose another name or --dir", "name") from None
    except OSError as exc:
        raise InvalidRequest(
            f"{target} cannot be written: {exc.strerror}; choose another --dir", "dir"
        ) from exc
    return target
