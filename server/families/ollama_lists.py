"""Ollama's view of the models: ``/api/tags``, ``/api/ps``, ``/api/show``, ``/api/version``."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json

import ggfw
from ggfw.errors import InvalidRequest
from ggfw.library import Model
from ggfw.server.endpoint import endpoint
from ggfw.server.entries import Entry
from ggfw.server.families.ollama_chat import now
from ggfw.server.families.ollama_fields import LONGEST
from ggfw.server.fields import Body
from ggfw.server.infill import can_infill
from ggfw.server.pool import Pool
from ggfw.server.state import served
from ggfw.server.views import glimpse, with_template

ollama_lists = Blueprint("ollama-lists")

#: The version of Ollama's interface that is spoken here; clients look whether it is new enough.
API_VERSION = "0.13.0"
#: Elements of a list in the metadata up to which it is shown without being asked for.
SHORT = 32


class ShowBody(Body):
    """Body of ``POST /api/show``."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


@endpoint(ollama_lists, "GET HEAD", "/api/version", family="ollama", open=True)
async def version(request: Request) -> HTTPResponse:
    """Give the version of the interface, and ours."""
    return json({"version": API_VERSION, "ggfw": ggfw.__version__})


@endpoint(ollama_lists, "GET HEAD", "/api/tags", family="ollama")
async def tags(request: Request) -> HTTPResponse:
    """List the models."""
    pool = served(request).pool
    await pool.refresh()
    return json({"models": [row(entry) for entry in pool.rows()]})


@endpoint(ollama_lists, "GET HEAD", "/api/ps", family="ollama")
async def ps(request: Request) -> HTTPResponse:
    """List the models that are loaded."""
    pool = served(request).pool
    return json({"models": [_loaded(pool, entry) for entry in pool.loaded()]})


@endpoint(ollama_lists, "POST", "/api/show", family="ollama", body=ShowBody)
async def show(request: Request, body: ShowBody) -> HTTPResponse:
    """Describe a model: its metadata, template, parameters and what it can do."""
    pool = served(request).pool
    entry = await pool.known(named(body.model, body.name))
    own = entry.base or entry
    path = own.facts.get("path")
    if own.slot is None and path:  # looking at a model is no reason to load it
        own.check()
        return json(await asyncio.to_thread(_glimpsed, entry, Path(path), bool(body.verbose)))
    async with pool.lease(entry.id) as lease:
        return json(await asyncio.to_thread(_shown, entry, lease.model, bool(body.verbose)))


def _glimpsed(entry: Entry, path: Path, verbose: bool) -> dict[str, Any]:
    with glimpse(path) as model:
        source = entry.preset.get("template")
        return _shown(entry, with_template(model, source) if source else model, verbose)


def _shown(entry: Entry, model: Model, verbose: bool) -> dict[str, Any]:
    metadata = model.gguf.metadata
    shown = {}
    for key in metadata:
        value = metadata[key]
        long = hasattr(value, "__len__") and not isinstance(value, str) and len(value) > SHORT
        shown[key] = None if long and not verbose else _plain(value)
    options = dict(entry.preset.get("options", {}))
    if entry.preset.get("system"):
        options.pop("system", None)
    parameters = "\n".join(f"{k:<30} {v}" for k, values in options.items() for v in _listed(values))
    return {
        "license": str(metadata.get("general.license", "")),
        "modelfile": _modelfile(entry),
        "parameters": parameters,
        "template": model.template.source,
        "system": entry.preset.get("system", ""),
        "details": details(entry),
        "model_info": shown,
        "capabilities": _capabilities(model),
        "modified_at": now(entry.created),
    }


def named(model: str | None, name: str | None) -> str:
    """The model's name: clients say ``model``, older ones ``name``.

    Raises:
        InvalidRequest: neither.
    """
    found = model or name
    if not found:
        raise InvalidRequest("model is missing", "model")
    return found


def tag(id: str) -> str:
    """A name with a tag."""
    return id if ":" in id else f"{id}:latest"


def row(entry: Entry) -> dict[str, Any]:
    """One model of ``/api/tags``."""
    return {
        "name": tag(entry.id),
        "model": tag(entry.id),
        "modified_at": now(entry.created),
        "size": entry.info.get("size_bytes") or 0,
        "digest": digest(entry),
        "details": details(entry),
    }


def _loaded(pool: Pool, entry: Entry) -> dict[str, Any]:
    assert entry.model is not None
    # "Never" is further away than anybody waits.
    expires = pool.clock() + LONGEST if entry.expires is None else entry.expires
    return {
        **row(entry),
        "expires_at": now(expires),
        "size_vram": 0,
        "context_length": entry.model.n_ctx,
    }


def details(entry: Entry) -> dict[str, Any]:
    """Ollama's ``details``."""
    info = entry.info
    family = str(info.get("architecture") or "")
    return {
        "parent_model": str(entry.preset.get("from", "")),
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": _short(info.get("n_params") or 0),
        "quantization_level": str(info.get("quant") or "unknown"),
    }


def digest(entry: Entry) -> str:
    """Tells models apart; made of name, path and size, since reading gigabytes for a list would be too much."""
    info = entry.info
    text = f"{entry.id}\n{info.get('path')}\n{info.get('size_bytes')}"
    return hashlib.sha256(text.encode()).hexdigest()


def _short(n: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if n >= size:
            return f"{n / size:.1f}{letter}" if n < 100 * size else f"{n / size:.0f}{letter}"
    return str(n)


def _capabilities(model: Any) -> list[str]:
    out = []
    if model.loaded.architecture.causal and model.loaded.architecture.cacheable:
        out.append("completion")
        can = model.template.capabilities
        if can.tools or model.dialect.format.calls:
            out.append("tools")
        if model.dialect.thinks(model.template):
            out.append("thinking")
        if can_infill(model):
            out.append("insert")
    else:
        out.append("embedding")
    return out


def _modelfile(entry: Entry) -> str:
    lines = [f"FROM {entry.preset.get('from') or entry.id}"]
    if entry.preset.get("system"):
        lines.append(f'SYSTEM """{entry.preset["system"]}"""')
    if entry.preset.get("template"):
        lines.append(f'TEMPLATE """{entry.preset["template"]}"""')
    options = entry.preset.get("options", {})
    lines += [f"PARAMETER {name} {value}" for name, values in options.items() for value in _listed(values)]
    return "\n".join(lines) + "\n"


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _plain(value: Any) -> Any:
    """For JSON: arrays become lists, bytes text, numbers without a value null."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return value if value - value == 0 else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | bool) or value is None else str(value)
