"""``ggfw show MODEL``: what a model file says about itself; no weight is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ggfw.cli import terminal
from ggfw.cli.loading import models_dir_option
from ggfw.cli.settings import setting, verb

if TYPE_CHECKING:
    from ggfw.gguf import GGUF, Analysis
    from ggfw.support import Support

__all__ = ["show_verb"]

#: Longer arrays are cut, in JSON as well: a vocabulary has 262,144 strings.
MAX_SHOWN = 16


@verb("show")
@click.argument("model")
@setting("--tensors", is_flag=True, help="List the tensors.")
@setting("--metadata", is_flag=True, help="List the metadata; long arrays are cut.")
@setting("--template", is_flag=True, help="Print the chat template.")
@setting(
    "--graph", is_flag=True, help="Print the graph that the architecture describes, and the plan made of it."
)
@setting(
    "--backend", metavar="NAME", help="Kernel backend that the plan is made for; default: the best here."
)
@setting("--json", "as_json", is_flag=True, help="Print JSON.")
@models_dir_option
def show_verb(model: str, as_json: bool, models_dir: str | None, backend: str | None, **parts: bool) -> None:
    """Show what the file of MODEL says about itself: by default a summary, and what it needs to run here.

    Nothing of that has to be installed: what is missing is named.
    """
    from ggfw.cli.resolve import find_model
    from ggfw.gguf import GGUF, analyze
    from ggfw.support import support

    with GGUF.open(find_model(model, models_dir)) as gguf:
        chosen = [name for name, wanted in parts.items() if wanted]
        found: dict[str, Any] = {}
        if as_json or not chosen:
            found["summary"] = analyze(gguf)
            found["support"] = support(gguf, backend=backend)
        if parts["metadata"]:
            found["metadata"] = {key: _shown(value) for key, value in gguf.metadata.items()}
        if parts["tensors"]:
            found["tensors"] = _tensors(gguf)
        if parts["template"]:
            found["template"] = gguf.get("tokenizer.chat_template")
        if parts["graph"]:
            found |= _graph(gguf, backend)
        if as_json:
            found |= {"support": found["support"].to_dict()}
            summary = found.pop("summary").to_dict()
            terminal.print_json({**summary, "sampling": _sampling(gguf), **found})
            return
        for name, value in found.items():
            _PRINT[name](value, gguf)


def _sampling(gguf: GGUF) -> dict[str, Any]:
    """What the file recommends for sampling."""
    prefix = "general.sampling."
    return {key.removeprefix(prefix): value for key, value in gguf.metadata.items() if key.startswith(prefix)}


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


def _print_summary(found: Analysis, gguf: GGUF) -> None:
    from ggfw.cli.progress import size

    experts = f"{found.n_experts}, {found.n_experts_used} per token" if found.n_experts else None
    window = found.sliding_window and f"{found.sliding_window} positions" + (
        f" in {found.sliding_window_layers} layers" if found.sliding_window_layers is not None else ""
    )
    rows: dict[str, Any] = {
        "name": found.name,
        "architecture": found.architecture,
        "file": "\n".join(found.paths),
        "size": size(found.n_bytes),
        "parameters": f"{found.n_parameters:,} ({found.bits_per_weight:.2f} bits per weight)",
        "quantization": found.quantization,
        "layers": found.n_layer,
        "embedding": found.n_embd,
        "feed forward": found.n_ff,
        "heads": found.n_head,
        "KV heads": found.n_head_kv,
        "head size": found.head_dim_k
        if found.head_dim_k == found.head_dim_v
        else f"{found.head_dim_k} (K), {found.head_dim_v} (V)",
        "experts": experts,
        "vocabulary": found.n_vocab,
        "context": found.n_ctx_train,
        "window": window,
        "rope": ", ".join(f"{key} {value}" for key, value in found.rope.items()),
        "tokenizer": " ".join(filter(None, (found.tokenizer, found.pre_tokenizer))),
        "chat template": "yes" if found.has_chat_template else "no",
        "sampling": ", ".join(f"{key} {value}" for key, value in _sampling(gguf).items()),
        "KV cache": found.kv_full and f"{size(found.kv_full.f16)} as f16 at {found.kv_full.n_ctx} positions",
        "tensors": found.n_tensors,
    }
    for key, value in rows.items():
        if value not in (None, "", 0):
            print(f"{key:14} {value}")
    for name, share in found.types.items():
        print(f"  {name:12} {share.n_tensors:4} tensors, {size(share.n_bytes)}")


def _print_support(found: Support, gguf: GGUF) -> None:
    print()
    terminal.print_table(
        ["needs", "which", "state", "by"],
        [[need.kind, need.name, need.state, need.detail] for need in found.needs],
    )
    if found.runs:
        print(f"runs here, and makes {found.makes}")
        if found.missing:
            print(f"missing: {', '.join(f'{need.kind} {need.name}' for need in found.missing)}")
    else:
        print(f"cannot run here; missing: {', '.join(f'{need.kind} {need.name}' for need in found.missing)}")


def _print_metadata(metadata: dict[str, Any], gguf: GGUF) -> None:
    for key, value in metadata.items():
        if isinstance(value, dict):
            first = ", ".join(map(repr, value["first"]))
            print(f"{key} = [{first}, ...] ({value['length']} elements)")
        else:
            print(f"{key} = {value!r}")


def _print_tensors(tensors: list[dict[str, Any]], gguf: GGUF) -> None:
    terminal.print_table(
        ["name", "shape", "type", "bytes"],
        [[t["name"], " x ".join(map(str, t["shape"])), t["type"], str(t["n_bytes"])] for t in tensors],
    )


def _print_template(template: str | None, gguf: GGUF) -> None:
    if template is None:
        terminal.say(f"{gguf.source} has no chat template; a built-in one is used")
    else:
        print(template)


def _print_lines(lines: list[str], gguf: GGUF) -> None:
    for line in lines:
        print(line)


_PRINT: dict[str, Callable[[Any, GGUF], None]] = {
    "summary": _print_summary,
    "support": _print_support,
    "metadata": _print_metadata,
    "tensors": _print_tensors,
    "template": _print_template,
    "graph": _print_lines,
    "plan": _print_lines,
}
