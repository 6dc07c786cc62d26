"""``ggfw create NAME -f Modelfile``: another model's file with its own system prompt, options and messages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.client import find_server, local_option
from ggfw.cli.loading import models_dir_option
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

__all__ = ["check_name", "create_verb"]

#: Options that say how a model is loaded, and are not ours to keep.
_LOADING = ("num_gpu", "num_batch", "num_keep", "use_mmap", "use_mlock", "main_gpu", "low_vram")


@verb("create")
@click.argument("name")
@setting(
    "--file",
    "-f",
    "modelfile",
    default="Modelfile",
    type=click.Path(allow_dash=True),
    help="Modelfile; default: Modelfile; - for stdin.",
)
@local_option
@models_dir_option
def create_verb(name: str, modelfile: str, local: bool, models_dir: str | None) -> None:
    """Make the model NAME as a Modelfile says: FROM, PARAMETER, SYSTEM, TEMPLATE, MESSAGE. No weights are copied."""
    from ggfw.cli.modelfile import parse

    found = parse(sys.stdin.read() if modelfile == "-" else _text_of(modelfile), modelfile)
    for key in [key for key in found.options if key in _LOADING]:
        del found.options[key]
        terminal.say(f"ggfw: {key} is left out; `ggfw run --help` lists the options of loading")
    if found.template:
        _check_template(found.template)
    facts: dict[str, Any] = {"options": found.options}
    if (limit := found.options.pop("num_predict", None)) is not None and limit >= 0:
        found.options["max_tokens"] = limit  # -1 and -2 mean to the end, which is the default
    if found.system:
        facts["system"] = found.system
    if found.template:
        facts["template"] = found.template
    if found.messages:
        facts["messages"] = found.messages
    for key in ("num_ctx", "num_thread"):
        if key in found.options:
            facts[key] = _count(key, found.options.pop(key))
    server = find_server(local)
    if server is not None and server.named:
        if "num_thread" in facts:
            terminal.say(
                "ggfw: num_thread is left out: a server has one pool of threads (ggfw serve --threads)"
            )
        parameters = {("num_predict" if key == "max_tokens" else key): v for key, v in found.options.items()}
        parameters |= {"num_ctx": facts["num_ctx"]} if "num_ctx" in facts else {}
        body = {"model": name, "from": found.base, "parameters": parameters, "stream": False}
        server.ask(
            "POST",
            "/api/create",
            {**body, **{k: facts[k] for k in ("system", "messages", "template") if k in facts}},
        )
    else:
        _write(name, found.base, facts, models_dir)
    terminal.say(f"{name} is made from {found.base}")


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is no text in UTF-8; a Modelfile was expected", "modelfile") from None


def _count(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"{key} is {value!r}; a positive whole number was expected", key)
    return value


def _check_template(source: str) -> None:
    """Check that a chat template is none in Go's language and can be compiled."""
    from ggfw.chat.template import ChatTemplate
    from ggfw.errors import TemplateError

    if re.search(r"{{-?\s*(if|range|end|else|\.)", source):
        raise InvalidRequest(
            "TEMPLATE is in Go's language; leave it out (the model has its own), or write one in Jinja",
            "template",
        )
    try:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    except TemplateError as exc:
        if "compiled" in str(exc):  # what it refuses of this message is its own affair
            raise InvalidRequest(f"TEMPLATE: {exc}", "template") from None


def _write(name: str, base: str, facts: dict[str, Any], models_dir: str | None) -> None:
    from ggfw.cli.derived import read_preset, write_preset
    from ggfw.cli.generating import resolved_options
    from ggfw.cli.resolve import find_model
    from ggfw.gguf import GGUF

    check_name(name, models_dir)
    resolved_options(facts["options"])
    if (other := read_preset(base, models_dir)) is not None:  # what the other one adds comes along
        facts = {**other, **facts, "options": {**other.get("options", {}), **facts["options"]}}
        base = other["from"]
    else:
        path = find_model(base, models_dir)  # says that there is none; fetches it where that is needed
        GGUF.open(path).close()  # says that it is no model
        base = base if not Path(base).exists() else str(path.resolve())
    write_preset({**facts, "name": name, "from": base}, models_dir)


def check_name(name: str, models_dir: str | None) -> None:
    """Check that a model may be given a name.

    Raises:
        InvalidRequest: it is malformed, or that of a file.
    """
    from ggfw.cli.folders import all_models

    if len(name) > 200 or not re.fullmatch(
        r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*){0,3}(?::[\w.-]+)?", name
    ):
        raise InvalidRequest(f"{name!r:.80} cannot be a model's name; use letters, digits, - . _ / :", "name")
    if any(entry.id.lower() == name.lower() for entry in all_models(models_dir)):
        raise InvalidRequest(f"there is a file of the name {name!r} already; choose another name", "name")
