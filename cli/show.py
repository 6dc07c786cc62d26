"""``ggfw show MODEL``: what a model file says about itself; no weight is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.loading import COUNT, model_argument, models_dir_option
from ggfw.cli.settings import setting, verb
from ggfw.errors import InvalidRequest

if TYPE_CHECKING:
    from ggfw.gguf import GGUF
    from ggfw.support import Support

__all__ = ["show_verb"]

#: Longer arrays are cut, in JSON as well: a vocabulary has 262,144 strings.
MAX_SHOWN = 16


@verb("show")
@model_argument()
@setting("--tensors", is_flag=True, help="List the tensors.")
@setting("--metadata", is_flag=True, help="List the metadata; long arrays are cut.")
@setting("--template", is_flag=True, help="Print the chat template.")
@setting(
    "--graph",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Draw the architecture into FILE (.svg or .html), layers that compute the same once; without FILE, print the "
    "graph that the architecture describes, and the plan made of it.",
)
@setting("--find-token", metavar="TEXT", help="List the tokens that contain TEXT, exact ones first.")
@setting(
    "--neighbors", metavar="TOKEN", help="List the tokens whose embeddings are nearest to one (id or text)."
)
@setting(
    "--count", "-k", type=COUNT, help="Tokens that --find-token (100) and --neighbors (10) list at most."
)
@setting(
    "--backend", metavar="NAME", help="Kernel backend that the plan is made for; default: the best here."
)
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
def show_verb(
    model: str,
    as_json: bool,
    models_dir: str | None,
    backend: str | None,
    find_token: str | None,
    neighbors: str | None,
    count: int | None,
    graph: str | None,
    **parts: bool,
) -> None:
    """Show what the file of MODEL says about itself: by default a summary, and what it needs to run here.

    Nothing of that has to be installed: what is missing is named.
    """
    from ggfw.cli.facts import facts
    from ggfw.cli.resolve import find_model
    from ggfw.gguf import GGUF
    from ggfw.support import support

    if graph not in (None, "-") and not str(graph).endswith((".svg", ".html")):
        raise click.UsageError(
            f"--graph draws into a file that ends with .svg or .html, and {graph!r} does not"
        )
    with GGUF.open(find_model(model, models_dir)) as gguf:
        found: dict[str, Any] = {}
        if find_token is not None:
            found["found_tokens"] = _found_tokens(gguf, find_token, count or 100)
        if neighbors is not None:
            found["neighbors"] = _neighbors(gguf, neighbors, count or 10)
        if parts["metadata"]:
            found["metadata"] = {key: _shown(value) for key, value in gguf.metadata.items()}
        if parts["tensors"]:
            found["tensor_list"] = _tensors(gguf)
        if parts["template"]:
            found["template_text"] = gguf.get("tokenizer.chat_template")
        if graph == "-":
            found |= _graph(gguf, backend)
        elif graph is not None:
            _draw(gguf, graph)
            if not found and not as_json:
                return
        if as_json or not found:
            needs = support(gguf, backend=backend)
            summary = facts(gguf, needs)
            if as_json:
                terminal.print_json({**summary, "support": needs.to_dict(), **found})
            else:
                _print_summary(summary)
                _print_support(needs, gguf)
            return
        for name, value in found.items():
            _PRINT[name](value, gguf)


def _found_tokens(gguf: GGUF, text: str, limit: int) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from ggfw.token_search import search_tokens
    from ggfw.tokenizer import Tokenizer

    return [asdict(token) for token in search_tokens(Tokenizer.from_metadata(gguf.metadata), text, limit)]


def _neighbors(gguf: GGUF, token: str, k: int) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from ggfw.threads import default_threads
    from ggfw.token_search import nearest_tokens
    from ggfw.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_metadata(gguf.metadata)
    return [asdict(t) for t in nearest_tokens(gguf, tokenizer, token, k, threads=default_threads())]


def _shown(value: Any) -> Any:
    """A metadata value for display: a long array becomes its type, length and beginning."""
    from ggfw.gguf import MetadataArray

    if not isinstance(value, MetadataArray):
        return value
    if len(value) <= MAX_SHOWN:
        return value.list()
    return {"length": len(value), "first": [_plain(value[i]) for i in range(8)]}


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _tensors(gguf: GGUF) -> list[dict[str, Any]]:
    return [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "type": tensor.type_name,
            "n_bytes": tensor.n_bytes,
            "offset": tensor.offset,
            "shard": tensor.shard,
        }
        for tensor in gguf.tensors.values()
    ]


def _graph(gguf: GGUF, backend: str | None) -> dict[str, Any]:
    """The graph and its plan, as lists of lines."""
    from ggfw.execute.kernel_set import KernelSet
    from ggfw.graph.architecture import RunConfig
    from ggfw.graph.lower import make_plan
    from ggfw.model import Described
    from ggfw.registry import default_registry

    n_ctx = int(gguf.arch_get("context_length", 2048))
    described = Described(gguf, RunConfig(n_ctx), default_registry())
    plan = make_plan(described.graph, KernelSet(backend), max_rows=512, max_outputs=512)
    return {"graph": [repr(node) for node in described.graph.nodes], "plan": plan.describe().splitlines()}


def _draw(gguf: GGUF, target: str) -> None:
    """Write a picture of the architecture."""
    from ggfw.cli.progress import size
    from ggfw.gguf import analyze, type_name
    from ggfw.graph.architecture import RunConfig
    from ggfw.graph.drawing import draw, page
    from ggfw.graph.outline import outline
    from ggfw.model import Described
    from ggfw.registry import default_registry

    n_ctx = int(gguf.arch_get("context_length", 2048))
    described = Described(gguf, RunConfig(n_ctx), default_registry())
    about = analyze(gguf)
    title = about.name or Path(gguf.paths[0]).stem
    millions = f"{about.n_parameters / 1e6:,.0f} M parameters"
    facts = f"{about.architecture}, {millions}, {about.quantization}, {size(about.n_bytes)}"
    make = page if target.endswith(".html") else draw
    text = make(outline(described.graph), title, type_name, facts)
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"{target} cannot be written: {exc.strerror}", "graph") from exc
    terminal.say(f"ggfw: {target} written")


def _print_summary(found: dict[str, Any]) -> None:
    from ggfw.cli.progress import size

    experts = found["experts"] and f"{found['experts']}, {found['experts_used']} per token"
    window = found["window"] and f"{found['window']} positions" + (
        f" in {found['window_layers']} layers" if found["window_layers"] is not None else ""
    )
    k, v = found["head_dim"], found["head_dim_v"]
    cache = found["kv_bytes"] or {}
    largest = list(cache.items())[-1:]
    tokenizer, template = found["tokenizer"], found["template"]
    rows: dict[str, Any] = {
        "name": found["name"],
        "architecture": found["architecture"],
        "file": "\n".join(found["paths"]),
        "size": size(found["file_bytes"]),
        "parameters": f"{found['parameters']:,} ({found['bits_per_weight']:.2f} bits per weight)",
        "quantization": found["quantization"],
        "layers": found["layers"],
        "embedding": found["embedding"],
        "feed forward": found["ffn"],
        "heads": found["heads"],
        "KV heads": found["heads_kv"],
        "head size": k if k == v else f"{k} (K), {v} (V)",
        "experts": experts,
        "vocabulary": found["vocab"],
        "context": found["context"],
        "window": window,
        "rope": ", ".join(f"{key} {value}" for key, value in found["rope"].items() if value is not None),
        "tokenizer": " ".join(filter(None, (tokenizer["model"], tokenizer["pre"]))),
        "chat template": "yes" if template["present"] else "no",
        "dialect": template["dialect"],
        "sampling": ", ".join(f"{key} {value}" for key, value in found["sampling"].items()),
        "KV cache": "".join(f"{size(row['f16'])} as f16 at {n} positions" for n, row in largest),
        "fits here": found["fits_here"],
        "tensors": found["tensors"],
    }
    for key, value in rows.items():
        if value not in (None, "", 0):
            terminal.write(f"{key:14} {value}\n")
    for share in found["formats"]:
        print(f"  {share['type']:12} {share['tensors']:4} tensors, {size(share['bytes'])}")


def _print_support(found: Support, gguf: GGUF) -> None:
    print()
    terminal.print_table(
        ["needs", "which", "state", "by"],
        [[need.kind, need.name, need.state, need.detail] for need in found.needs],
    )
    missing = ", ".join(f"{need.kind} {need.name}" for need in found.missing)
    if found.runs:
        print(f"runs here, and makes {found.makes}")
        if found.missing:
            terminal.write(f"missing: {missing}\n")
    else:
        terminal.write(f"cannot run here; missing: {missing}\n")


def _print_metadata(metadata: dict[str, Any], gguf: GGUF) -> None:
    for key, value in metadata.items():
        if isinstance(value, dict):
            first = ", ".join(map(repr, value["first"]))
            terminal.write(f"{key} = [{first}, ...] ({value['length']} elements)\n")
        else:
            terminal.write(f"{key} = {value!r}\n")


def _print_tensors(tensors: list[dict[str, Any]], gguf: GGUF) -> None:
    terminal.print_table(
        ["name", "shape", "type", "bytes"],
        [[t["name"], " x ".join(map(str, t["shape"])), t["type"], str(t["n_bytes"])] for t in tensors],
    )


def _print_template(template: str | None, gguf: GGUF) -> None:
    if template is None:
        terminal.say(f"{gguf.source} has no chat template; a built-in one is used")
    else:
        terminal.write(f"{template}\n")


def _print_lines(lines: list[str], gguf: GGUF) -> None:
    for line in lines:
        terminal.write(f"{line}\n")


def _print_tokens(tokens: list[dict[str, Any]], gguf: GGUF) -> None:
    if not tokens:
        terminal.say("no token contains that text")
        return
    similar = any(token["similarity"] is not None for token in tokens)
    terminal.print_table(
        ["id", "stored", "text", *(["similarity"] if similar else [])],
        [
            [str(t["id"]), t["raw"], repr(t["text"]), *([f"{t['similarity']:.4f}"] if similar else [])]
            for t in tokens
        ],
    )


_PRINT: dict[str, Callable[[Any, GGUF], None]] = {
    "found_tokens": _print_tokens,
    "neighbors": _print_tokens,
    "metadata": _print_metadata,
    "tensor_list": _print_tensors,
    "template_text": _print_template,
    "graph": _print_lines,
    "plan": _print_lines,
}
