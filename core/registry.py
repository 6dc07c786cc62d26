"""The registry: everything plugins offer, by kind and name, and every "which one?" answered by one rule.

The rule: explicit choice of the user > higher score (``match`` or ``probe``; 0 = not mine) > higher priority >
built-in > name. The registry is loaded once per process and frozen; no hook is called after that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ggfw.arguments import as_integer
from ggfw.descriptors import (
    KINDS,
    ArchitectureSpec,
    ChatDialect,
    KernelBackend,
    ModelSource,
    QuantFormat,
    SamplerStage,
    Skill,
    resolve,
)
from ggfw.discovery import Found, Offer, Row, Switches, describe, discover
from ggfw.errors import (
    BackendError,
    PluginError,
    UnknownArchitecture,
    UnknownQuantFormat,
    UnsupportedError,
    brief,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry", "Row", "default_registry"]

_BROKEN = ("failed", "incompatible")


class Registry:
    """All descriptors on offer, and the rows of ``ggfw plugins list``. Thread-safe; make one with :meth:`load`."""

    def __init__(self, found: Found) -> None:
        self._lock = threading.Lock()
        self._scores: dict[str, int] = {}
        self._rows: dict[tuple[str, str, str], Row] = {}
        self._others: list[Row] = list(found.rows)
        self._offers: dict[str, dict[str, Offer]] = {kind: {} for kind in KINDS}
        for offer in sorted(found.offers, key=lambda offer: offer.rank):
            winner = self._offers[offer.kind].setdefault(offer.descriptor.name, offer)
            if winner is offer:
                self._rows[_key(offer)] = offer.row()
            else:
                self._others.append(offer.row("shadowed", _why_shadowed(winner, offer)))
        self._by_type: dict[int, QuantFormat] = {}
        for offer in self._ranked("quant_formats"):
            self._by_type.setdefault(offer.descriptor.ggml_type, offer.descriptor)

    @classmethod
    def load(
        cls, entry_points: Iterable[EntryPoint] | None = None, environ: Mapping[str, str] | None = None
    ) -> Registry:
        """Discover plugins and return a frozen registry.

        Args:
            entry_points: the plugins' doors; None means the group ``ggfw`` of all installed distributions.
            environ: where GGFW_PLUGINS, GGFW_DISABLE_PLUGINS and GGFW_STRICT_PLUGINS are read; None means the
                process environment.

        Raises:
            PluginError: a plugin is broken or incompatible and GGFW_STRICT_PLUGINS is set.
        """
        switches = Switches.from_environ(os.environ if environ is None else environ)
        registry = cls(discover(entry_points, switches))
        if switches.strict and (broken := registry.broken()):
            listed = "; ".join(f"{row.plugin} ({row.distribution}): {row.reason}" for row in broken)
            raise PluginError(
                f"GGFW_STRICT_PLUGINS is set and {len(broken)} plugin(s) cannot be used: {listed}; "
                "repair or uninstall them, or name them in GGFW_DISABLE_PLUGINS"
            )
        return registry

    # -- what there is -------------------------------------------------------------------------------------------

    def _ranked(self, kind: str) -> list[Offer]:
        return sorted(self._offers[kind].values(), key=lambda offer: offer.rank)

    def _mapping(self, kind: str) -> Mapping[str, Any]:
        return MappingProxyType(
            {name: offer.descriptor for name, offer in sorted(self._offers[kind].items())}
        )

    @property
    def architectures(self) -> Mapping[str, ArchitectureSpec]:
        """Architectures by name."""
        return self._mapping("architectures")

    @property
    def quant_formats(self) -> Mapping[str, QuantFormat]:
        """Quant formats by name (``Q4_K``)."""
        return self._mapping("quant_formats")

    @property
    def kernel_backends(self) -> Mapping[str, KernelBackend]:
        """Kernel backends by name, usable here or not."""
        return self._mapping("kernel_backends")

    @property
    def chat_dialects(self) -> Mapping[str, ChatDialect]:
        """Chat dialects by name."""
        return self._mapping("chat_dialects")

    @property
    def skills(self) -> Mapping[str, Skill]:
        """Skills by name."""
        return self._mapping("skills")

    @property
    def model_sources(self) -> Mapping[str, ModelSource]:
        """Model sources by scheme."""
        return self._mapping("model_sources")

    @property
    def sampler_stages(self) -> Mapping[str, SamplerStage]:
        """Sampler stages by name, in the order of the default chain."""
        stages = sorted(self._mapping("sampler_stages").values(), key=lambda stage: (stage.order, stage.name))
        return MappingProxyType({stage.name: stage for stage in stages})

    def rows(self, kind: str | None = None) -> list[Row]:
        """Return one row per descriptor and per plugin that offers none, by kind and name; probes the backends.

        Args:
            kind: only rows of this kind; ``plugin`` stands for those whose kind is unknown.
        """
        for name in self._offers["kernel_backends"]:
            self.score(name)
        with self._lock:
            rows = [*self._rows.values(), *self._others]
        order = {name: i for i, name in enumerate(KINDS)}
        rows.sort(key=lambda row: (order.get(row.kind, len(order)), row.name, row.state != "ok", row.plugin))
        return [row for row in rows if kind is None or row.kind == kind]

    def broken(self) -> list[Row]:
        """Return the rows of plugins that failed or are incompatible."""
        with self._lock:
            return [row for row in (*self._rows.values(), *self._others) if row.state in _BROKEN]

    # -- which one -----------------------------------------------------------------------------------------------

    def architecture_for(self, metadata: Mapping[str, Any], name: str | None = None) -> ArchitectureSpec:
        """Return the architecture that serves a file.

        Args:
            metadata: the file's metadata; ``general.architecture`` decides, ``match`` where it serves no one.
            name: an architecture chosen by the user; it wins.

        Raises:
            UnknownArchitecture: nobody serves it; the message names it and what is installed.
        """
        if name is not None:
            if name in self.architectures:
                return self.architectures[name]
            raise UnknownArchitecture(self._unknown_architecture(name))
        label = metadata.get("general.architecture")
        for offer in self._ranked("architectures"):
            if label in offer.descriptor.gguf_names:
                return offer.descriptor
        best = self._best_match("architectures", metadata)
        if best is None:
            raise UnknownArchitecture(self._unknown_architecture(label))
        return best

    def _unknown_architecture(self, label: Any) -> str:
        what = "the file names no architecture" if label is None else f"unknown architecture {brief(label)}"
        known = ", ".join(self.architectures) or "none"
        message = f"{what}; installed: {known}; a plugin can add it (docs/plugins.md shows how)"
        broken = [
            f"{row.plugin} ({row.reason})" for row in self.broken() if row.kind in ("architectures", "plugin")
        ]
        return message + (f"; these plugins did not load: {', '.join(broken)}" if broken else "")

    def dialect_for(self, metadata: Mapping[str, Any], name: str | None = None) -> ChatDialect:
        """Return the chat dialect of a file: the user's choice, else the highest ``match``.

        Raises:
            UnsupportedError: there is none of that name, or none matches.
        """
        if name is not None:
            if name in self.chat_dialects:
                return self.chat_dialects[name]
            raise UnsupportedError(
                f"unknown chat dialect {name!r}; installed: {', '.join(self.chat_dialects) or 'none'}"
            )
        best = self._best_match("chat_dialects", metadata)
        if best is None:
            raise UnsupportedError(
                f"no chat dialect matches this file; installed: {', '.join(self.chat_dialects) or 'none'}"
            )
        return best

    def quant_format_by_type(self, ggml_type: int) -> QuantFormat:
        """Return the format with this ggml type id.

        Raises:
            UnknownQuantFormat: no plugin knows it.
        """
        try:
            return self._by_type[ggml_type]
        except KeyError:
            known = ", ".join(f"{fmt.name}={i}" for i, fmt in sorted(self._by_type.items())) or "none"
            raise UnknownQuantFormat(
                f"unknown ggml tensor type {brief(ggml_type)}; installed: {known}; a quant format plugin can add it"
            ) from None

    def score(self, backend: str) -> int:
        """Return the probe score of a kernel backend on this machine; asked once, 0 = cannot run here."""
        with self._lock:
            if backend in self._scores:
                return self._scores[backend]
        offer = self._offers["kernel_backends"][backend]
        try:
            score = _score(resolve(offer.descriptor.probe)())
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # SystemExit, too: a plugin must not end the process that asks it
            self._set_row(offer, "failed", describe(exc), "probe")
            score = 0
        else:
            if score <= 0:
                self._set_row(offer, "available", _why_not_here(offer.descriptor))
        with self._lock:
            return self._scores.setdefault(backend, max(score, 0))

    def disqualify(self, backend: str, error: Exception) -> None:
        """Take a kernel backend whose library turned out unusable out of the choice; its row says why."""
        self._set_row(self._offers["kernel_backends"][backend], "failed", describe(error), "load")
        with self._lock:
            self._scores[backend] = 0

    def backends(self) -> list[KernelBackend]:
        """Return the kernel backends that run here, the best one first."""
        usable = [offer for offer in self._ranked("kernel_backends") if self.score(offer.descriptor.name)]
        usable.sort(key=lambda offer: -self.score(offer.descriptor.name))  # stable: rank decides ties
        return [offer.descriptor for offer in usable]

    def backend(self, name: str | None = None) -> KernelBackend:
        """Return the kernel backend to use: the user's choice, else the one with the highest score.

        Raises:
            BackendError: there is none of that name, it cannot run here, or nothing can.
        """
        usable = self.backends()
        names = ", ".join(backend.name for backend in usable) or "none"
        if name is None:
            if usable:
                return usable[0]
            raise BackendError(f"no kernel backend can run on this machine{self._backend_reasons()}")
        if not isinstance(name, str) or name not in self.kernel_backends:
            raise BackendError(f"unknown kernel backend {brief(name)}; usable here: {names}")
        if not self.score(name):
            with self._lock:
                reason = self._rows[_key(self._offers["kernel_backends"][name])].reason
            raise BackendError(f"kernel backend {name!r} cannot be used: {reason}; usable here: {names}")
        return self.kernel_backends[name]

    def _backend_reasons(self) -> str:
        rows = [f"{row.name}: {row.reason}" for row in self.rows("kernel_backends") if row.reason]
        return f" ({'; '.join(rows)})" if rows else "; none is installed"

    def _best_match(self, kind: str, metadata: Mapping[str, Any]) -> Any:
        """Return the descriptor with the highest positive ``match``, or None; a raising one is out and says so."""
        best, best_score = None, 0
        for offer in self._ranked(kind):
            if offer.descriptor.match is None:
                continue
            try:
                score = _score(offer.descriptor.match(metadata))
            except KeyboardInterrupt:
                raise
            except BaseException as exc:
                self._set_row(offer, "failed", describe(exc), "match")
                continue
            if score > best_score:
                best, best_score = offer.descriptor, score
        return best

    def _set_row(self, offer: Offer, state: str, reason: str, stage: str = "") -> None:
        with self._lock:
            key = _key(offer)
            self._rows[key] = replace(self._rows[key], state=state, reason=reason, stage=stage)


def _key(offer: Offer) -> tuple[str, str, str]:
    return offer.kind, offer.descriptor.name, offer.origin.plugin


def _score(value: Any) -> int:
    """What a probe or a match answers."""
    score = as_integer(value)
    if score is None:
        raise PluginError(f"it gives {brief(value)}; a whole number was expected, 0 for none")
    return score


def _why_not_here(backend: KernelBackend) -> str:
    try:
        missing = "" if backend.missing is None else str(resolve(backend.missing)())
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        missing = describe(exc)
    return "cannot run on this machine" + (f", which lacks {missing}" if missing else "")


def _why_shadowed(winner: Offer, loser: Offer) -> str:
    by = f"by {winner.origin.plugin} of {winner.origin.distribution or 'an unnamed distribution'}"
    if winner.descriptor.priority > loser.descriptor.priority:
        return f"{by}, whose priority is {winner.descriptor.priority} against {loser.descriptor.priority}"
    return f"{by}, in conflict: both have priority {loser.descriptor.priority}"


_default: Registry | None = None
_default_lock = threading.RLock()
_loading = False


def default_registry() -> Registry:
    """Return the process's registry, loaded on first use.

    Raises:
        PluginError: see :meth:`Registry.load`; also when a plugin asks for the registry while it is being imported.
    """
    global _default, _loading
    if _default is not None:
        return _default
    with _default_lock:
        if _default is None:
            if _loading:  # the lock is re-entrant, so only a plugin that is being imported gets here
                raise PluginError(
                    "a plugin must not use the registry while it is imported; do it in its load"
                )
            _loading = True
            try:
                _default = Registry.load()
            finally:
                _loading = False
        return _default
