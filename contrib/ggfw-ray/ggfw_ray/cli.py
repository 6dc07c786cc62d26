"""``ggfw-ray serve MODEL``: start (or join) Ray and serve a model on it."""

from __future__ import annotations

import signal
import threading

import click

from ggfw_ray.options import Options


@click.group()
def main() -> None:
    """Serve GGUF models on a Ray cluster."""


@main.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port.")
@click.option(
    "--address", default=None, help="Of a running Ray cluster, or auto; default: a new one on this machine."
)
@click.option(
    "--threads", default=1, show_default=True, help="Threads of each replica, and CPUs reserved for it."
)
@click.option("--slots", default=4, show_default=True, help="Requests that a replica runs at once.")
@click.option("--ctx", type=int, default=None, help="Positions of context per request.")
@click.option("--min-replicas", default=1, show_default=True, help="Replicas at least.")
@click.option("--max-replicas", default=1, show_default=True, help="Replicas at most.")
@click.option("--api-key", multiple=True, help="Requests must carry this key. Repeatable.")
def serve(
    model: str, host: str, port: int, address: str | None, api_key: tuple[str, ...], **settings: int
) -> None:
    """Serve MODEL, a path that is the same on every node, until interrupted."""
    import ray
    from ray import serve as ray_serve

    from ggfw_ray.app import build

    ray.init(address=address, include_dashboard=False, ignore_reinit_error=True)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    ray_serve.start(http_options={"host": host, "port": port})
    options = Options(model, server={"api_keys": list(api_key)} if api_key else {}, **settings)  # type: ignore[arg-type]
    ray_serve.run(build(options), name="ggfw")
    click.echo(f"http://{host}:{port}", err=True)
    over.wait()
    ray_serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
