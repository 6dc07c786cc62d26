"""``ggfw ps`` and ``ggfw stop MODEL…``: what a running server has loaded."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from ggfw.cli import terminal
from ggfw.cli.client import Server, ServerError, facts, find_server
from ggfw.cli.loading import model_argument
from ggfw.cli.settings import setting, verb

__all__ = ["ps_verb", "stop_verb"]

#: Seconds from which on "for ever" is meant.
_EVER = 10 * 365 * 86400


def _server() -> Server:
    server = find_server(False)
    if server is None:
        raise ServerError(
            "no ggfw server answers on the default port; start one with `ggfw serve`, or name it with GGFW_HOST"
        )
    return server


@verb("ps")
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
def ps_verb(as_json: bool) -> None:
    """List the models that the server has loaded (GGFW_HOST names it; default: port 8080 of this machine)."""
    from ggfw.cli.progress import size

    rows = [_row(model) for model in _server().ask("GET", "/api/ps").get("models") or ()]
    if as_json:
        terminal.print_json(rows)
        return
    if not rows:
        terminal.say("no model is loaded")
        return
    terminal.print_table(
        ["name", "size", "quant", "context", "until"],
        [[r["name"], size(r["size_bytes"]), r["quant"], str(r["context"] or ""), r["until"]] for r in rows],
    )


def _row(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": str(model["name"]).removesuffix(":latest"),
        **facts(model),
        "context": model.get("context_length"),
        "expires_at": model.get("expires_at"),
        "until": _until(model.get("expires_at")),
    }


def _until(moment: str | None) -> str:
    """How long a model stays, for people."""
    if not moment:
        return ""
    seconds = datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() - time.time()
    if seconds > _EVER:
        return "for ever"
    return f"{seconds / 60:.0f} minutes from now" if seconds > 90 else f"{max(seconds, 0):.0f} s from now"


@verb("stop")
@model_argument("models", nargs=-1, metavar="[MODEL]...")
@setting("--all", "every", is_flag=True, help="Unload all models.")
def stop_verb(models: tuple[str, ...], every: bool) -> None:
    """Let the server unload models; a request for one loads it again."""
    if not models and not every:
        raise click.UsageError("no model is named; name some, or say --all")
    server = _server()
    loaded = {
        str(row["name"]).removesuffix(":latest") for row in server.ask("GET", "/api/ps").get("models") or ()
    }
    for name in models or sorted(loaded):
        own = server.knows(name)
        if own is not None and own not in loaded:
            terminal.say(f"{own} is not loaded")
            continue
        server.ask("POST", "/api/generate", {"model": own or name, "keep_alive": 0, "stream": False})
        terminal.say(f"{own or name} is unloaded")
