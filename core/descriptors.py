"""What plugins return: frozen, keyword-only records of cheap data with a lazy ``load``.

A new field always comes with a default, so a plugin written for an older minor version keeps working. The registry
checks every descriptor at the door (:meth:`Descriptor.problems`), so that a bad one is a row in
``ggfw plugins list`` and never an error of the first request.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar

from ggfw.errors import PluginError, kind_and_text
from ggfw.records import dataclass

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve(load: str | Callable[..., Any]) -> Any:
    """Return the object that a ``load`` field names: ``"package.module:Name"`` is imported, a callable is itself.

    Raises:
        PluginError: it cannot be imported.
    """
    if not isinstance(load, str):
        return load
    module, _, name = load.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # a module may even ask to leave
        raise PluginError(
            f"{load}, which a plugin names, cannot be imported ({kind_and_text(exc)}); repair or uninstall "
            "its package, or name the plugin in GGFW_DISABLE_PLUGINS"
        ) from exc


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Common part of all descriptors.

    Args:
        name: unique within its kind; ``[A-Za-z0-9_.-]+``.
        priority: the higher one replaces another descriptor of the same kind and name; on equal priority the
            built-in, then the plugin whose name sorts first, stays.
        summary: one line for ``ggfw plugins list``.
        sample: what ``ggfw plugins check`` tries it on, where the kit cannot make that up: a function, or
            ``"package.module:function"``; what it returns depends on the kind and is said in docs/plugins.md.
    """

    kind: ClassVar[str] = ""

    name: str
    priority: int = 0
    summary: str = ""
    sample: str | Callable[[], Any] | None = None

    def problems(self) -> list[str]:
        """Return what is wrong with this descriptor, one sentence each; empty when it is usable."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            return [f"the name {self.name!r} does not match {_NAME.pattern}"]
        found: list[str] = []
        if not isinstance(self.priority, int):
            found.append(f"priority is {self.priority!r}; an integer was expected")
        if not isinstance(self.summary, str):
            found.append(f"summary is {self.summary!r}; a string was expected")
        if self.sample is not None:
            found += _target_problems("sample", self.sample)
        return found


def _target_problems(what: str, load: Any) -> list[str]:
    if callable(load) or (isinstance(load, str) and _TARGET.fullmatch(load)):
        return []
    return [f"{what} is {load!r}; expected a callable or 'package.module:Name'"]


@dataclass(frozen=True, kw_only=True)
class ArchitectureSpec(Descriptor):
    """An architecture.

    Args:
        gguf_names: the values of ``general.architecture`` it serves.
        load: ``"package.module:Class"`` (or the class) of a :class:`ggfw.graph.Architecture`.
        match: optional score for files whose label is missing or misspelt: metadata -> int, 0 = not mine.
    """

    kind: ClassVar[str] = "architectures"

    gguf_names: Sequence[str]
    load: str | Callable[..., Any]
    match: Callable[[Mapping[str, Any]], int] | None = None

    def problems(self) -> list[str]:
        found = super().problems() + _target_problems("load", self.load)
        names = self.gguf_names
        good = isinstance(names, Sequence) and not isinstance(names, str | bytes)
        if not good or not names or not all(isinstance(n, str) and n for n in names):
            found.append("gguf_names must be a non-empty sequence of strings")
        if self.match is not None and not callable(self.match):
            found.append(f"match is {self.match!r}; expected a callable")
        return found


@dataclass(frozen=True, kw_only=True)
class QuantFormat(Descriptor):
    """A ggml tensor type: its block layout and its NumPy reference.

    Args:
        ggml_type: the type id in GGUF files.
        block_size: elements per block.
        type_size: bytes per block.
        dequantize: ``(blocks: uint8 (n, type_size), out: float32 (n, block_size)) -> None``.
        quantize: ``(values: float32 (n, block_size), out: uint8 (n, type_size)) -> None``, or None.
        vec_dot_type: the activation format ggml pairs it with; informative.
    """

    kind: ClassVar[str] = "quant_formats"

    ggml_type: int
    block_size: int
    type_size: int
    dequantize: str | Callable[..., None]
    quantize: str | Callable[..., None] | None = None
    vec_dot_type: str | None = None

    def problems(self) -> list[str]:
        found = super().problems() + _target_problems("dequantize", self.dequantize)
        if self.quantize is not None:
            found += _target_problems("quantize", self.quantize)
        for what in ("ggml_type", "block_size", "type_size"):
            value = getattr(self, what)
            if not isinstance(value, int) or value < (0 if what == "ggml_type" else 1):
                found.append(f"{what} is {value!r}; expected a positive integer")
        return found


@dataclass(frozen=True, kw_only=True)
class KernelBackend(Descriptor):
    """A shared library of kernels (see ``ggfw_kernels.h``).

    Args:
        probe: score on this processor; 0 = cannot run here, the highest usable one is preferred and gaps are
            filled from the next score.
        library: returns the path of the library; called only when the backend is used.
        abi: the ``ggfw_kernels_abi()`` it was built for.
        executor: returns the path of an executor library, for the one package that ships it.
        bindings: returns the path of the generated cffi module (``ffi``) of the headers the executor was built with.
        missing: returns what this machine lacks where ``probe`` gives 0 ("AMX-TILE, AMX-BF16"), "" where that cannot be
            said; for the message of those who choose it by name.
    """

    kind: ClassVar[str] = "kernel_backends"

    probe: str | Callable[[], int]
    library: str | Callable[[], str]
    abi: int = 2
    executor: str | Callable[[], str] | None = None
    bindings: str | Callable[[], str] | None = None
    missing: str | Callable[[], str] | None = None

    def problems(self) -> list[str]:
        return (
            super().problems()
            + _target_problems("probe", self.probe)
            + _target_problems("library", self.library)
            + [
                problem
                for what in ("executor", "bindings", "missing")
                if getattr(self, what) is not None
                for problem in _target_problems(what, getattr(self, what))
            ]
            + ([] if isinstance(self.abi, int) else [f"abi is {self.abi!r}; expected an integer"])
        )


@dataclass(frozen=True, kw_only=True)
class ChatDialect(Descriptor):
    """How a model family writes tools, calls, results and reasoning.

    Args:
        match: score for a file's metadata (reads ``tokenizer.chat_template``), 0 = not mine.
        load: class of a :class:`ggfw.chat.dialect.Dialect`.
    """

    kind: ClassVar[str] = "chat_dialects"

    match: Callable[[Mapping[str, Any]], int]
    load: str | Callable[..., Any]

    def problems(self) -> list[str]:
        found = super().problems() + _target_problems("load", self.load)
        if not callable(self.match):
            found.append(f"match is {self.match!r}; expected a callable")
        return found


@dataclass(frozen=True, kw_only=True)
class Skill(Descriptor):
    """Instructions that a model can load on demand.

    Args:
        description: always visible to the model.
        load: returns the body (Markdown) when asked for.
        tools: tool definitions that come with it.
    """

    kind: ClassVar[str] = "skills"

    description: str
    load: str | Callable[[], str]
    tools: Sequence[Mapping[str, Any]] = ()

    def problems(self) -> list[str]:
        found = super().problems() + _target_problems("load", self.load)
        if not isinstance(self.description, str) or not self.description:
            found.append(f"description is {self.description!r}; expected text")
        tools = self.tools
        if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
            found.append(f"tools is {tools!r}; expected a sequence of definitions")
        return found


@dataclass(frozen=True, kw_only=True)
class ModelSource(Descriptor):
    """How a reference ``SCHEME:REST`` becomes model files; ``name`` is the scheme.

    Args:
        load: class of a :class:`ggfw.model_source.Source` (``resolve(rest, progress) -> list[Path]``).
        remote: whether it needs a network.
    """

    kind: ClassVar[str] = "model_sources"

    load: str | Callable[..., Any]
    remote: bool = True

    def problems(self) -> list[str]:
        return super().problems() + _target_problems("load", self.load)


@dataclass(frozen=True, kw_only=True)
class SamplerStage(Descriptor):
    """A step of the sampling chain.

    Args:
        order: its place in the default chain (llama.cpp's stages stand at 100, 200, ...).
        load: ``make(params) -> stage | None``; None when its parameters switch it off.
        params: names of request parameters it reads, with their "off" values.
        profile: for a stage that can be chosen as ``sampling_profile``: defaults of :class:`ggfw.sampling.Params` that
            stand in for llama.cpp's; ``samplers`` among them names the stage.
    """

    kind: ClassVar[str] = "sampler_stages"

    order: int
    load: str | Callable[..., Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    profile: Mapping[str, Any] | None = None

    def problems(self) -> list[str]:
        found = super().problems() + _target_problems("load", self.load)
        if (
            isinstance(self.order, bool)
            or not isinstance(self.order, int | float)
            or self.order != self.order
        ):
            found.append(f"order is {self.order!r}; expected a number")
        for what, value in (("params", self.params), ("profile", self.profile or {})):
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
                found.append(f"{what} is {value!r}; expected a mapping from names")
        return found


#: All kinds, in the order ``ggfw plugins list`` shows them; a kind names its hook ``ggfw_register_<kind>``.
KINDS: dict[str, type[Descriptor]] = {
    cls.kind: cls
    for cls in (ArchitectureSpec, QuantFormat, KernelBackend, ChatDialect, Skill, ModelSource, SamplerStage)
}

Descriptors = Iterable[Descriptor]
