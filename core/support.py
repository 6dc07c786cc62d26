"""What a model file needs, what of it is installed, and what is missing; no weight is read.

A file that lacks something is described all the same: nothing here raises for it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ggfw.errors import BackendError, GgfwError, UnknownArchitecture, UnknownQuantFormat, UnsupportedError
from ggfw.gguf import GGUF, MetadataArray, ValueType
from ggfw.graph.architecture import RunConfig
from ggfw.graph.hparams import Hparams
from ggfw.graph.pooling import pooling
from ggfw.graph.weights import WeightRef
from ggfw.model import Described, check_vocabulary
from ggfw.records import dataclass
from ggfw.registry import Registry, default_registry

if TYPE_CHECKING:
    from ggfw.execute.kernel_set import KernelSet
    from ggfw.graph.cache_layout import CacheLayout
    from ggfw.tokenizer import Tokenizer

__all__ = ["Need", "Support", "support"]

#: States of a :class:`Need`.
OK, CONVERTED, MISSING, BROKEN, ABSENT = "ok", "converted", "missing", "broken", "absent"


@dataclass(frozen=True)
class Need:
    """One thing that a file needs.

    Attributes:
        kind: architecture, tensors, format, backend, tokenizer or template.
        name: which one.
        state: ok; converted (a format that no kernel here has: tensors become F32 at load, which costs memory);
            missing (nothing installed has it); broken (the file's own is wrong); absent (the file has none, which
            only narrows what can be done with it).
        detail: what serves it, or what is wrong and the way out.
    """

    kind: str
    name: str
    state: str
    detail: str


@dataclass(frozen=True)
class Support:
    """What :func:`support` found.

    Attributes:
        needs: everything the file needs, in the order in which loading meets it.
        makes: text, embeddings or scores; "" where the architecture is missing or does not fit.
        unused: names of tensors that the architecture does not ask for.
        layout: caches that the architecture asks for; None where it is missing or does not fit.
    """

    needs: tuple[Need, ...]
    makes: str
    unused: tuple[str, ...]
    layout: CacheLayout | None = None

    @property
    def missing(self) -> tuple[Need, ...]:
        """What keeps the file from being run, or a part of it from working."""
        return tuple(need for need in self.needs if need.state in (MISSING, BROKEN))

    @property
    def runs(self) -> bool:
        """Whether token ids can be evaluated; a tokenizer or template may still be missing."""
        return all(need.kind in ("tokenizer", "template") for need in self.missing)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, for JSON."""
        return {
            "runs": self.runs,
            "makes": self.makes,
            "needs": [asdict(need) for need in self.needs],
            "missing": [need.detail for need in self.missing],
            "unused_tensors": list(self.unused),
        }


def support(gguf: GGUF, *, backend: str | None = None, registry: Registry | None = None) -> Support:
    """Find out what is needed to run an open file, and whether it is installed.

    Args:
        backend: kernel backend that would run it; None = the best one here.
        registry: None = that of the process.
    """
    registry = registry or default_registry()
    needs: list[Need] = []
    described = _architecture(gguf, registry, needs)
    needs += _formats(gguf, backend, registry)
    tokenizer = _tokenizer(gguf, needs)
    makes = _makes(described) if described is not None else ""
    if makes != "embeddings" and makes != "scores":
        needs.append(_template(gguf, tokenizer, registry))
    if described is None:
        return Support(tuple(needs), makes, ())
    return Support(tuple(needs), makes, tuple(described.weights.unused()), described.layout)


def _architecture(gguf: GGUF, registry: Registry, needs: list[Need]) -> Described | None:
    """Who serves the architecture, and whether metadata and tensors are what it asks for: the graph is built."""
    label = str(gguf.get("general.architecture", "") or "none")
    try:
        spec = registry.architecture_for(gguf.metadata)
    except UnknownArchitecture as exc:
        needs.append(Need("architecture", label, MISSING, str(exc)))
        return None
    rows = [r for r in registry.rows("architectures") if r.name == spec.name and r.state == "ok"]
    origin = f" of {rows[0].distribution} {rows[0].version}".rstrip() if rows else ""
    needs.append(Need("architecture", label, OK, f"plugin {spec.name}{origin}"))
    if not gguf.tensors:
        needs.append(Need("tensors", "none", MISSING, "the file has no tensors: a vocabulary at most"))
        return None
    try:
        n_ctx = Hparams(gguf.metadata, gguf.architecture).n_ctx_train
        described = Described(gguf, RunConfig(n_ctx), registry)
        check_vocabulary(gguf, described.graph.logits.width if described.graph.logits is not None else 0)
        pooling(described.hparams)
    except GgfwError as exc:
        needs.append(Need("tensors", f"{len(gguf.tensors)} tensors", BROKEN, str(exc)))
        return None
    n_unused = len(described.weights.unused())
    detail = f"{n_unused} are not asked for" if n_unused else "all are asked for"
    needs.append(Need("tensors", f"{len(gguf.tensors)} tensors", OK, detail))
    return described


def _makes(described: Described) -> str:
    """What the model is for."""
    if pooling(described.hparams) == "rank":
        return "scores"
    return "text" if described.architecture.causal and described.graph.logits is not None else "embeddings"


def _formats(gguf: GGUF, backend: str | None, registry: Registry) -> Iterator[Need]:
    """Every tensor type of the file: is it known, and is there a kernel for its matrices."""
    from ggfw.execute.kernel_set import KernelSet

    kernels: KernelSet | None = None
    try:
        kernels = KernelSet(backend, registry)
    except BackendError as exc:
        detail = f"{exc}; only the reference executor can run the file"
        yield Need("backend", backend or "none", MISSING, detail)
    tensors: dict[str, list[WeightRef]] = {}
    for info in gguf.tensors.values():
        ref = WeightRef(info.name, tuple(info.shape), info.ggml_type)
        tensors.setdefault(info.type_name, []).append(ref)
    for name, refs in sorted(tensors.items(), key=lambda item: -len(item[1])):
        try:
            registry.quant_format_by_type(refs[0].ggml_type)
        except UnknownQuantFormat as exc:
            yield Need("format", name, MISSING, str(exc))
            continue
        matrices = [ref for ref in refs if len(ref.shape) > 1]
        n_converted = sum(not _has_kernel(kernels, ref) for ref in matrices) if kernels is not None else 0
        served = f"{len(refs)} tensors"
        if kernels is not None:
            served += f", backend {kernels.name}"
        if n_converted:
            served += f"; {n_converted} matrices become F32 at load, because no kernel here has them"
        yield Need("format", name, CONVERTED if n_converted else OK, served)


def _has_kernel(kernels: KernelSet, ref: WeightRef) -> bool:
    """Whether a matrix is computed in its own format; tables that are only looked up count by either kernel."""
    ops = ("moe_linear",) if len(ref.shape) > 2 else ("linear", "embed")
    return any(kernels.find(op, ref.ggml_type, ref.shape[-1]) is not None for op in ops)


def _tokenizer(gguf: GGUF, needs: list[Need]) -> Tokenizer | None:
    """The vocabulary: its kind and pre-tokenizer."""
    from ggfw.tokenizer import Tokenizer

    model, pre = gguf.get("tokenizer.ggml.model"), gguf.get("tokenizer.ggml.pre")
    name = " ".join(str(part) for part in (model, pre) if part) or "none"
    try:
        tokenizer = Tokenizer.from_metadata(_without_merges(gguf.metadata))
    except GgfwError as exc:
        absent = model is None
        state = ABSENT if absent else MISSING if isinstance(exc, UnsupportedError) else BROKEN
        needs.append(Need("tokenizer", name, state, str(exc)))
        return None
    notes = "; ".join(tokenizer.warnings)
    needs.append(Need("tokenizer", name, OK, f"{tokenizer.n_vocab} tokens" + (f"; {notes}" if notes else "")))
    return tokenizer


def _without_merges(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metadata with a stand-in for merges that are there: nothing is encoded here, and they take long to read."""
    merges = metadata.get("tokenizer.ggml.merges")
    if isinstance(merges, MetadataArray) and len(merges) and merges.value_type == ValueType.STRING:
        return ChainMap({"tokenizer.ggml.merges": ["a b"]}, metadata)  # type: ignore[arg-type]  # never written to
    return metadata


def _template(gguf: GGUF, tokenizer: Tokenizer | None, registry: Registry) -> Need:
    """The chat template, tried on one message, and the dialect for calls and reasoning."""
    from ggfw.chat.template import ChatTemplate

    own = bool(gguf.get("tokenizer.chat_template"))
    if tokenizer is None:
        detail = "no vocabulary, so no chat"
        return Need("template", "file" if own else "none", ABSENT, detail)
    template = ChatTemplate.of(gguf.metadata, tokenizer)
    try:
        dialect = registry.dialect_for(template.judged(gguf.metadata)).name
    except UnsupportedError:
        dialect = "generic"
    try:
        template.render([{"role": "user", "content": "Hello"}])
    except GgfwError as exc:
        return Need("template", "file", BROKEN, f"{exc}; run --raw does without it")
    if own:
        return Need("template", template.name, OK, f"dialect {dialect}")
    return Need("template", template.name, ABSENT, "the file has none; a built-in one is used")
