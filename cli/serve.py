"""``ggfw serve [MODEL]``: the HTTP server, in this process."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ggfw.cli import terminal
from ggfw.cli.generating import sampling_options, split_generation_options
from ggfw.cli.loading import COUNT, load_options, model_argument, split_load_options
from ggfw.cli.settings import Choice, setting, verb
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from sanic import Sanic

    from ggfw import Model
    from ggfw.footprint import Footprint
    from ggfw.models import ModelEntry
    from ggfw.server.entries import Entry

__all__ = ["SIZE", "serve_verb"]


class Size(click.ParamType):
    """A number of bytes, also with K, M, G or T (times 1024 each; ``8G``, ``8GB``, ``8GiB`` are the same)."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        found = re.fullmatch(
            r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE
        )
        size = int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")) if found else 0
        if size < 1:
            self.fail(f"{value!r} is no size (such as 8G or 900M)", param, ctx)
        return size


SIZE = Size()


@verb("serve")
@model_argument("models", nargs=-1, metavar="[MODEL]...")
@setting(
    "--host",
    default="127.0.0.1",
    help="Address to listen on: HOST, HOST:PORT or a URL; default: 127.0.0.1.",
)
@setting("--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0: any free one; default: 8080.")
@setting("--unix", metavar="PATH", help="Listen on a Unix socket instead, which only its owner may use.")
@setting("--parallel", type=COUNT, default=4, help="Requests that run at once; default: 4.")
@setting("--max-queue", type=COUNT, default=64, help="Requests that may wait besides; default: 64.")
@setting("--max-body", type=COUNT, default=4, metavar="MIB", help="MiB a request may have; default: 4.")
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
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="Name by which clients on this machine may call the server, * for any; default: localhost. Repeatable.",
)
@setting(
    "--fixed-models",
    is_flag=True,
    help="Requests may not fetch, upload, derive, copy or remove models; none then reaches the network.",
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
@setting(
    "--memory",
    type=SIZE,
    metavar="SIZE",
    help="Memory for all loaded models together (8G, 900M); idle ones make way for others. Default: what is free.",
)
@setting("--no-ui", is_flag=True, help="Serve no chat page.")
@setting("--log-prompts", is_flag=True, help="Write prompts and answers into the log.")
@setting(
    "--log-format",
    type=Choice(["auto", "console", "json", "none"]),
    default="auto",
    help="One line per request on stderr; auto: console on a terminal, else json.",
)
@sampling_options
@load_options
@click.pass_context
def serve_verb(context: click.Context, models: tuple[str, ...], **options: Any) -> None:
    """Serve each MODEL (default: SmolLM2-135M-Instruct) over HTTP until interrupted.

    Those in the model folders are loaded when somebody asks for them. The sampling options are the defaults of requests
    that do not say otherwise.
    """
    from ggfw.cli.listening import listening

    loading = split_load_options(options)
    defaults = split_generation_options(options)
    keys = _keys(options["api_keys"], options["api_key_file"])
    if options["isolate_cache"] and not keys:
        raise InvalidRequest(
            "--isolate-cache tells clients apart by API keys, but there are none; give --api-key or --api-key-file",
            "isolate_cache",
        )
    loading |= {"n_parallel": options["parallel"], "max_queue": options["max_queue"]}
    given = context.get_parameter_source("port") is ParameterSource.COMMANDLINE
    # Bound before models are loaded: a port in use should not cost that time.
    with listening(options["host"], options["port"], options["unix"], port_given=given) as (sock, url):
        served = _Served(models, loading, options)
        try:
            served.load()
            from ggfw.server.app import create_app, serve

            app = create_app(
                pool=served.pool,
                store=served.store,
                defaults=defaults,
                api_keys=keys or None,
                isolate_cache=options["isolate_cache"],
                max_body=options["max_body"] << 20,
                cors=options["cors"] or None,
                hosts=_hosts(options["allow_hosts"], options["host"]),
                skills=_skills(options["skills"]),
                ui=not options["no_ui"],
                log=_logger(options["log_format"]),
                log_prompts=options["log_prompts"],
            )
            # The only application of this process: Sanic may leave the calls of its unused signals out of its methods,
            # one for each piece of a stream.
            app.config.TOUCHUP = True
            terminal.say(served.banner(url))
            with _interrupted_in_good_order(app):
                serve(app, sock=sock)
        finally:
            served.pool.close()


@contextmanager
def _interrupted_in_good_order(app: Sanic) -> Iterator[None]:
    """Let Ctrl-C end ``app`` also while it starts; Sanic, which watches for it later only, would log a traceback."""

    def end(number: int, frame: Any) -> None:
        if not hasattr(app.ctx, "ggfw_starting"):  # nothing to be ended yet
            raise KeyboardInterrupt
        app.stop()  # when it has started

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Served:
    """The models of this server: those that were named, and those in the model folders, for requests that name them.

    Args:
        models: what the user wrote.
        loading: options of :func:`ggfw.load`.
        options: of the verb.
    """

    def __init__(self, models: Sequence[str], loading: dict[str, Any], options: dict[str, Any]) -> None:
        from ggfw.cli.derived import find_preset
        from ggfw.cli.folders import all_models, download_folder, model_folders, ollama_folders
        from ggfw.cli.resolve import find_model
        from ggfw.models import describe
        from ggfw.server.confine import Confined
        from ggfw.server.pool import Pool
        from ggfw.server.store import Store

        self._loading = loading
        if packed_cache := loading.get("packed_cache"):
            packed_cache.settle_at_once = True
        folder = options["models_dir"]
        self.pool = Pool(keep_alive=options["keep_alive"], memory=options["memory"])
        #: (name of a derived model or nothing, what the user wrote, file)
        self._named: list[tuple[str, str | None, Path]] = []
        for name in models or (None,):
            base, preset = find_preset(name, folder)
            path = base if base is not None else find_model(name, folder, ask=True)
            self._named.append((str(preset.get("name") or ""), name, path))
        own = download_folder(folder)
        places = [*model_folders(folder), *ollama_folders(folder), own]
        self._confined = Confined(places, [path for *_, path in self._named])
        for derived, name, path in self._named:
            if not any(Path(e.facts["path"]).samefile(path) for e in self.pool.entries.values()):
                plain = name and not derived and not os.path.exists(name)
                names = {path.name, name or ""} if plain else {path.name}
                self.pool.add(self._entry(path.stem, path, names, describe(path)))
        self._folder = folder
        for found in all_models(folder):
            known = any(
                found.id.lower() in e.names or Path(e.facts["path"]).samefile(found.path)
                for e in self.pool.entries.values()
            )
            if found.state != "ok" or known:
                continue
            if not self._confined.holds(found.path):
                terminal.say(f"ggfw: {found.id} is left out: it leads out of the model folders")
                continue
            self.pool.add(self._entry(found.id, found.path, {found.path.name}, found))
        self.pool.discover = self._discover
        self.store = Store(
            own, self.pool, self._load, self._footprint, fixed=options.get("fixed_models", False)
        )
        for warning in self.store.warnings:
            terminal.say(f"ggfw: {warning}")

    def _entry(self, id: str, path: Path, names: set[str], found: ModelEntry) -> Entry:
        from ggfw.server.entries import Entry

        return Entry(
            id,
            partial(self._load, path),
            aliases=frozenset({*names, found.name} - {""}),
            footprint=partial(self._footprint, path),
            check=partial(self._confined.check, path),
            facts={
                "path": str(path),
                "size_bytes": found.size_bytes,
                "architecture": found.architecture,
                "quant": found.quant,
                "n_ctx_train": found.context,
            },
        )

    def _discover(self) -> list[Entry]:
        """The models that are in the folders now."""
        from ggfw.cli.folders import all_models

        return [
            self._entry(found.id, found.path, {found.path.name}, found)
            for found in all_models(self._folder)
            if found.state == "ok" and self._confined.holds(found.path)
        ]

    def _load(self, path: Path, **more: Any) -> Model:
        import ggfw

        self._confined.check(path)
        return ggfw.load(path, **{**self._loading, **more})

    def _footprint(self, path: Path) -> Footprint:
        from ggfw.footprint import Footprint

        keys = ("ctx", "kv_type", "n_parallel", "draft", "repack")
        return Footprint.of(path, **{key: self._loading[key] for key in keys if key in self._loading})

    def load(self) -> None:
        """Load the models that were named, and make the first one the default.

        Raises:
            MemoryShort: they do not fit; besides the errors of loading.
        """
        from ggfw.cli.progress import waiting
        from ggfw.warm_up import warm_up

        def say(event: str, fields: dict[str, Any]) -> None:
            if event == "context_reduced":
                terminal.say(
                    f"ggfw: {fields['model']} gets a context of {fields['n_ctx']} instead of {fields['n_ctx_train']}: "
                    "more does not fit into memory (--ctx says otherwise)"
                )

        self.pool.log = say
        gc.freeze()  # what stands now stays; models may go
        for _, _, path in self._named:
            entry = next(
                e for e in self.pool.entries.values() if e.base is None and path.samefile(e.facts["path"])
            )
            if entry.slot is None:
                with waiting(f"loading {path.name}"):
                    warm_up(self.pool.load_now(entry))
        if self._named[0][0]:
            self.pool.default = self.pool.find(self._named[0][0])
        gc.enable()  # main() has switched collection off for the start

    def banner(self, url: str) -> str:
        """What is served, and where."""
        parts = []
        for entry in self.pool.loaded():
            info = entry.info
            parts.append(
                f"{info['name']} ({info['architecture']}, backend {info['backend']}, context {info['n_ctx']}, "
                f"{info['n_parallel']} at once)"
            )
        where = url if url.startswith("unix:") else f"{url}/v1"
        return f"ggfw: {', '.join(parts)} on {where} (Ctrl-C ends it)"


def _keys(given: tuple[str, ...], path: str | None) -> list[str]:
    """The keys of the options and of a file."""
    keys = list(given)
    if path is not None:
        keys += Path(path).read_text(encoding="utf-8").split()
        if not keys:
            raise InvalidRequest(f"{path} holds no key; one per line was expected", "api_key_file")
    return keys


def _hosts(given: tuple[str, ...], host: str) -> str | list[str]:
    """Names that the server may be called by: those of the option, and what it was told to listen on."""
    from ggfw.cli.address import Address

    return "*" if "*" in given else [*given, Address.parse(host).host]


def _skills(folders: tuple[str, ...]) -> Any:
    """The skills of the folders and of plugins; files that are none are named on stderr."""
    from ggfw import load_skills

    if not folders:
        return None
    skills = load_skills(*filter(None, folders))
    for warning in skills.warnings:
        terminal.say(f"ggfw: {warning}")
    return skills


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
