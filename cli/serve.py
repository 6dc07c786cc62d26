"""``ggfw serve [MODEL]``: the HTTP server, in this process."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.generating import sampling_options, split_generation_options
from ggfw.cli.loading import COUNT, load_options, split_load_options
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw import Model
    from ggfw.server.pool import Pool
    from ggfw.server.store import Store

__all__ = ["serve_verb"]


@verb("serve")
@click.argument("model", required=False)
@setting("--host", default="127.0.0.1", help="Address to listen on; default: 127.0.0.1.")
@setting("--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0: any free one; default: 8080.")
@setting("--parallel", type=COUNT, default=4, help="Requests that run at once; default: 4.")
@setting("--max-queue", type=COUNT, default=64, help="Requests that may wait besides; default: 64.")
@setting(
    "--api-key",
    "api_keys",
    multiple=True,
    metavar="KEY",
    help="Requests must carry this key (or one of several). Repeatable.",
)
@setting(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Keys, one per line; keeps them out of the list of processes.",
)
@setting(
    "--isolate-cache",
    is_flag=True,
    help="Share evaluated prompts between requests of the same API key only.",
)
@setting(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Pages of ORIGIN may ask, * for all; default: pages from this machine, or all if there are keys. Repeatable.",
)
@setting(
    "--skills",
    multiple=True,
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="Folder of skills that conversations may load; without DIR: those of plugins. Repeatable.",
)
@setting(
    "--keep-alive", type=float, default=-1.0, metavar="SECONDS", help="How long an idle model stays loaded."
)
@setting("--no-ui", is_flag=True, help="Serve no chat page.")
@setting("--log-prompts", is_flag=True, help="Write prompts and answers into the log.")
@setting(
    "--log-format",
    type=click.Choice(["auto", "console", "json", "none"]),
    default="auto",
    help="One line per request on stderr; auto: console on a terminal, else json.",
)
@sampling_options
@load_options
def serve_verb(model: str | None, **options: Any) -> None:
    """Serve MODEL (default: SmolLM2-135M-Instruct) over HTTP until interrupted.

    The sampling options are the defaults of requests that do not say otherwise.
    """
    from ggfw.cli.loading import load_model
    from ggfw.cli.resolve import find_model

    loading = split_load_options(options)
    defaults = split_generation_options(options)
    keys = _keys(options["api_keys"], options["api_key_file"])
    if options["isolate_cache"] and not keys:
        raise InvalidRequest(
            "--isolate-cache tells clients apart by API keys, but there are none; give --api-key or --api-key-file",
            "isolate_cache",
        )
    # Bound before the model is loaded: a port in use should not cost that time.
    with _listen(options["host"], options["port"]) as sock:
        path = find_model(model, options["models_dir"], ask=True)
        more = {"n_parallel": options["parallel"], "max_queue": options["max_queue"]}
        with load_model(path, loading, **more) as loaded:
            from ggfw.server.app import create_app, serve

            pool = _pool(loaded, path, loading | more, options)
            app = create_app(
                pool=pool,
                store=_store(pool, loading | more, options),
                defaults=defaults,
                api_keys=keys or None,
                isolate_cache=options["isolate_cache"],
                cors=options["cors"] or None,
                skills=_skills(options["skills"]),
                ui=not options["no_ui"],
                log=_logger(options["log_format"]),
                log_prompts=options["log_prompts"],
            )
            terminal.say(_banner(loaded.info, sock))
            serve(app, sock=sock)


def _pool(loaded: Model, path: Path, loading: dict[str, Any], options: dict[str, Any]) -> Pool:
    """The loaded model, and those in the model folders, which are loaded when they are asked for by name."""
    import ggfw
    from ggfw.cli.folders import all_models
    from ggfw.server.pool import Entry, Pool

    pool = Pool(keep_alive=options["keep_alive"])
    first = pool.add_model(loaded, path.stem)
    for found in all_models(options["models_dir"]):
        if found.state != "ok" or found.id.lower() in first.names or Path(found.path).samefile(path):
            continue
        pool.add(
            Entry(
                id=found.id,
                load=partial(ggfw.load, found.path, **loading),
                facts={
                    "path": str(found.path),
                    "size_bytes": found.size_bytes,
                    "architecture": found.architecture,
                },
            )
        )
    return pool


def _store(pool: Pool, loading: dict[str, Any], options: dict[str, Any]) -> Store:
    """The folder that models fetched and made over HTTP go to."""
    import ggfw
    from ggfw.cli.folders import download_folder
    from ggfw.server.store import Store

    store = Store(download_folder(options["models_dir"]), pool, lambda path: ggfw.load(path, **loading))
    for warning in store.warnings:
        terminal.say(f"ggfw: {warning}")
    return store


def _keys(given: tuple[str, ...], path: str | None) -> list[str]:
    """The keys of the options and of a file."""
    keys = list(given)
    if path is not None:
        keys += Path(path).read_text(encoding="utf-8").split()
        if not keys:
            raise InvalidRequest(f"{path} holds no key; one per line was expected", "api_key_file")
    return keys


def _skills(folders: tuple[str, ...]) -> Any:
    """The skills of the folders and of plugins; files that are none are named on stderr."""
    from ggfw import load_skills

    if not folders:
        return None
    skills = load_skills(*filter(None, folders))
    for warning in skills.warnings:
        terminal.say(f"ggfw: {warning}")
    return skills


def _listen(host: str, port: int) -> socket.socket:
    """Open the listening socket."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, UnicodeError) as exc:
        why = getattr(exc, "strerror", None) or str(exc)
        raise InvalidRequest(
            f"cannot listen on {host} port {port}: {why}; choose others with --host and --port", "port"
        ) from exc


def _banner(info: dict[str, Any], sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    return (
        f"ggfw: {info['name']} ({info['architecture']}, backend {info['backend']}, context {info['n_ctx']}, "
        f"{info['n_parallel']} at once) on http://{address}:{port}/v1 (Ctrl-C ends it)"
    )


def _logger(form: str) -> Any:
    """A structlog logger that writes to stderr, or None."""
    if form == "none":
        return None
    import structlog

    console = form == "console" or (form == "auto" and terminal.is_terminal(sys.stderr))
    renderer: Any = structlog.processors.JSONRenderer(ensure_ascii=False)
    if console:
        renderer = structlog.dev.ConsoleRenderer(colors=terminal.coloured(sys.stderr))
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            renderer,
        ],
    )
