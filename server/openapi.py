"""The OpenAPI document, made of the declared endpoints, and a page that shows it without any outside request."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from sanic import Blueprint, Request
from sanic.response import HTTPResponse, json
from sanic.response import html as html_response

import ggfw
from ggfw.server.endpoint import DECLARED, Endpoint, endpoint

openapi = Blueprint("openapi")

#: Names of the families in the document.
TAGS = {
    "service": "Service",
    "native": "ggfw",
    "llama-server": "llama-server",
    "llama-tools": "llama-server",
    "ollama": "Ollama",
    "anthropic": "Anthropic",
    "openai": "OpenAI",
    "openapi": "Service",
}

ERRORS = {
    "openai": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "anthropic": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    },
    "ollama": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
}

#: The page may style itself, and that is all.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


@endpoint(openapi, "GET", "/openapi.json", family="openai", open=True)
async def document_json(request: Request) -> HTTPResponse:
    """Give the OpenAPI document."""
    return json(document())


@endpoint(openapi, "GET", "/docs", family="openai", open=True)
async def docs(request: Request) -> HTTPResponse:
    """Show the endpoints and the fields of their bodies."""
    headers = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY"}
    return html_response(page(document()), headers=headers)


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {f"Error_{name}": schema for name, schema in ERRORS.items()}
    for blueprint, endpoints in DECLARED.items():
        for one in endpoints:
            path = re.sub(r"<(\w+)(?::\w+)?>", r"{\1}", one.path)
            paths.setdefault(path, {})[one.method.lower()] = _operation(blueprint, one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ggfw",
            "version": ggfw.__version__,
            "description": "Endpoints of OpenAI, Anthropic, Ollama and llama-server over one engine.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(blueprint: str, one: Endpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {"$ref": f"#/components/schemas/Error_{one.family}"}
    out: dict[str, Any] = {
        "operationId": f"{one.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', one.path.lower()).strip('_') or 'root'}",
        "summary": one.summary,
        "tags": [TAGS.get(blueprint) or TAGS.get(blueprint.partition("-")[0], blueprint)],
        "responses": {
            "200": {"description": "the answer"},
            "4XX": {
                "description": "a mistake in the request",
                "content": {"application/json": {"schema": error}},
            },
            "503": {"description": "not ready", "content": {"application/json": {"schema": error}}},
        },
    }
    names = re.findall(r"<(\w+)", one.path)
    if names:
        out["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if one.body is not None:
        schema = one.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        family = "".join(part.title() for part in blueprint.split("-"))
        name = f"{family}{one.body.__name__}"
        schemas[name] = schema
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        out["requestBody"] = {"required": not one.optional, "content": content}
    return out


STYLE = """
:root{color-scheme:light dark;--line:#8884}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;
padding:0 1rem}h2{margin-top:2.5rem;border-bottom:1px solid var(--line)}details{border:1px solid var(--line);
border-radius:6px;margin:.4rem 0;padding:.3rem .7rem}summary{cursor:pointer}code{font:13px ui-monospace,monospace}
.m{display:inline-block;min-width:4rem;font-weight:600}table{border-collapse:collapse;margin:.5rem 0}
td{padding:.15rem 1rem .15rem 0;vertical-align:top;border-top:1px solid var(--line)}
"""


def page(found: dict[str, Any]) -> str:
    """The document as a page."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(_entry(found, path, method, operation))
    sections = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(rows)}" for tag, rows in sorted(by_tag.items()))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>ggfw: endpoints</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>ggfw {html.escape(found['info']['version'])}</h1><p>{html.escape(found['info']['description'])} "
        f'<a href="openapi.json">openapi.json</a></p>{sections}</html>'
    )


def _entry(found: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    head = (
        f'<span class="m">{method.upper()}</span> <code>{html.escape(path)}</code> '
        f"{html.escape(operation['summary'])}"
    )
    body = operation.get("requestBody")
    if body is None:
        return f"<details><summary>{head}</summary><p>No body.</p></details>"
    reference = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = found["components"]["schemas"][reference]
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code>{' *' if name in required else ''}</td>"
        f"<td>{html.escape(', '.join(_types(prop)))}</td></tr>"
        for name, prop in schema.get("properties", {}).items()
    )
    return f"<details><summary>{head}</summary><table>{rows}</table></details>"


def _types(schema: dict[str, Any]) -> Iterable[str]:
    """Names of the types a field may have; that it may be null is said of all and worth nothing."""
    if "anyOf" in schema:
        found = [name for one in schema["anyOf"] for name in _types(one) if name != "null"]
        return dict.fromkeys(found)
    if "$ref" in schema:
        return [str(schema["$ref"]).rpartition("/")[2]]
    if "enum" in schema:
        return [" | ".join(map(str, schema["enum"]))]
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return [f"list of {' or '.join(_types(schema.get('items', {})))}"]
    return [kind]
