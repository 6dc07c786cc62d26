"""The conformance kit: what a plugin's own tests, and ``ggfw plugins check``, ask of it.

:func:`check` applies all rules of a descriptor's kind and returns what each found. ``check_architecture`` and its six
siblings raise ``AssertionError`` with one sentence per broken rule, and return nothing when all is well.
:func:`tiny_gguf` makes the files they run on, :func:`registry_with` a registry that holds what is not installed.
:class:`ScriptedModel` is a model that says what a test wants (:mod:`ggfw.testing.scripted`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ggfw.arguments import instance
from ggfw.descriptors import (
    ArchitectureSpec,
    ChatDialect,
    Descriptor,
    KernelBackend,
    ModelSource,
    QuantFormat,
    SamplerStage,
    Skill,
)
from ggfw.testing.checks import Checks, Finding, failures
from ggfw.testing.tiny import registry_with, tiny_gguf

if TYPE_CHECKING:
    from ggfw.testing.scripted import ScriptedModel

__all__ = [
    "Finding",
    "ScriptedModel",
    "check",
    "check_architecture",
    "check_chat_dialect",
    "check_kernel_backend",
    "check_model_source",
    "check_quant_format",
    "check_sampler_stage",
    "check_skill",
    "checks_of",
    "registry_with",
    "tiny_gguf",
]


def __getattr__(name: str) -> Any:
    if name == "ScriptedModel":  # it brings the engine along, which the checks of a descriptor need not load
        from ggfw.testing.scripted import ScriptedModel

        return ScriptedModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def checks_of(kind: str) -> type[Checks]:
    """The class with the rules of a kind (``architectures``, ``quant_formats``, …)."""
    from ggfw.testing.architecture import ArchitectureChecks
    from ggfw.testing.chat_dialect import ChatDialectChecks
    from ggfw.testing.kernel_backend import KernelBackendChecks
    from ggfw.testing.model_source import ModelSourceChecks
    from ggfw.testing.quant_format import QuantFormatChecks
    from ggfw.testing.sampler_stage import SamplerStageChecks
    from ggfw.testing.skill import SkillChecks

    classes: tuple[type[Checks], ...] = (
        ArchitectureChecks, QuantFormatChecks, KernelBackendChecks, ChatDialectChecks, SkillChecks,
        ModelSourceChecks, SamplerStageChecks,
    )  # fmt: skip
    return {cls.kind.kind: cls for cls in classes}[kind]


def check(item: Descriptor) -> list[Finding]:
    """Apply all rules of the descriptor's kind to it, in order.

    Returns:
        One finding per rule.
    """
    instance("item", item, Descriptor, "a descriptor of a plugin")
    return checks_of(type(item).kind)(item).run()


def _raise(item: Descriptor, kind: type[Descriptor]) -> None:
    broken = failures(item, checks_of(kind.kind)(item).run())
    assert not broken, broken


def check_architecture(spec: ArchitectureSpec) -> None:
    """Check an architecture: its class, and a tiny file on both executors, whole and in pieces, alone and together.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.architecture.ArchitectureChecks`.
    """
    _raise(spec, ArchitectureSpec)


def check_quant_format(fmt: QuantFormat) -> None:
    """Check a quant format: dequantising, its own quantising, extreme blocks, row sizes, a tiny model.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.quant_format.QuantFormatChecks`.
    """
    _raise(fmt, QuantFormat)


def check_kernel_backend(backend: KernelBackend) -> None:
    """Check a kernel backend: its library, each matrix product and row look-up, tiny models in each of its formats.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.kernel_backend.KernelBackendChecks`.
    """
    _raise(backend, KernelBackend)


def check_chat_dialect(dialect: ChatDialect) -> None:
    """Check a chat dialect: its samples at every cut, and that its parser reads what its grammar allows.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.chat_dialect.ChatDialectChecks`.
    """
    _raise(dialect, ChatDialect)


def check_skill(skill: Skill) -> None:
    """Check a skill: description, body and tools.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.skill.SkillChecks`.
    """
    _raise(skill, Skill)


def check_model_source(source: ModelSource) -> None:
    """Check a model source: what it refuses, that files stay in its folder, and its sample.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.model_source.ModelSourceChecks`.
    """
    _raise(source, ModelSource)


def check_sampler_stage(stage: SamplerStage) -> None:
    """Check a sampler stage: candidates in and out, nothing written to, the same draws from the same seed.

    Raises:
        AssertionError: a rule is broken; see :class:`ggfw.testing.sampler_stage.SamplerStageChecks`.
    """
    _raise(stage, SamplerStage)
