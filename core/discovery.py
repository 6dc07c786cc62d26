"""Discovery of plugins: every entry point of the group ``ggfw``, each behind its own guard.

pluggy checks hook signatures; the loop is our own, because ``load_setuptools_entrypoints`` stops at the first
``ImportError``, lets a foreign package take a built-in's name, and accepts misspelt hooks without a word. Here a
broken plugin becomes a :class:`Row` with its stage and its error, and costs nothing else. What cannot be isolated: a
crash in native code and a hang while a plugin is imported; of the latter a warning says which plugin it is and how to
leave it out.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from itertools import islice
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pluggy

from ggfw import hookspecs
from ggfw.descriptors import KINDS, Descriptor
from ggfw.entry_points import Door, installed
from ggfw.errors import with_place
from ggfw.hookspecs import GROUP, PLUGIN_API
from ggfw.records import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: Distribution whose plugins are the built-in ones.
BUILTIN = "ggfw"

#: Seconds after which a plugin that is still being loaded is named in a warning.
SLOW = 5.0

#: Descriptors of one hook, at most: a generator that never ends would take all memory.
MOST = 10_000

#: ``kind`` of a row that stands for a plugin as a whole.
PLUGIN = "plugin"

HOOK_PREFIX = "ggfw_register_"

#: Attribute by which ``@hookimpl`` marks a function.
MARK = f"{GROUP}_impl"


@dataclass(frozen=True)
class Row:
    """One line of ``ggfw plugins list``.

    Args:
        kind: ``architectures``, ``quant_formats``, ... or ``plugin`` where no kind is known.
        name: name of the descriptor, or of the plugin where there is none.
        version: version of the distribution; empty when unknown.
        distribution: the installed package it comes from.
        state: ``ok``; ``available`` (sound, but not usable on this machine); ``disabled`` (by the user); ``failed``;
            ``incompatible`` (other plugin API); ``shadowed`` (another descriptor of that name won).
        reason: one sentence for every state but ``ok``.
        stage: where a failure happened: ``name``, ``import``, ``validate``, ``hook``, ``descriptor``, ``probe``,
            ``match``; else empty.
        plugin: name of the entry point.
        summary: the descriptor's own line.
    """

    kind: str
    name: str
    version: str
    distribution: str
    state: str
    reason: str = ""
    stage: str = ""
    plugin: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Origin:
    """The entry point a plugin came through: its name, its distribution, and that distribution's version."""

    plugin: str
    distribution: str
    version: str

    @property
    def builtin(self) -> bool:
        """Whether the plugin belongs to ggfw itself."""
        return _canonical(self.distribution) == BUILTIN

    def row(self, state: str, reason: str, stage: str = "", *, kind: str = "", name: str = "") -> Row:
        """Return a row for this plugin, or for its descriptor ``name`` of ``kind``."""
        if not kind:
            # Built-ins are named KIND.NAME, which says what a plugin would have been even if it never loads.
            head, _, tail = self.plugin.partition(".")
            kind, name = (head, tail) if head in KINDS and tail else (PLUGIN, self.plugin)
        return Row(kind, name, self.version, self.distribution, state, reason, stage, self.plugin)


@dataclass(frozen=True)
class Offer:
    """One sound descriptor and where it came from."""

    kind: str
    descriptor: Any
    origin: Origin

    def row(self, state: str = "ok", reason: str = "", stage: str = "") -> Row:
        """Return this descriptor's row."""
        d, o = self.descriptor, self.origin
        return Row(self.kind, d.name, o.version, o.distribution, state, reason, stage, o.plugin, d.summary)

    @property
    def rank(self) -> tuple[int, bool, str, str]:
        """Sort key; the smallest wins: higher priority, then built-in, then the plugin whose name sorts first."""
        return -self.descriptor.priority, not self.origin.builtin, self.origin.plugin, self.descriptor.name


@dataclass(frozen=True)
class Switches:
    """Which plugins the user wants.

    Args:
        only: names of third-party plugins to load, or None for all; built-ins are not affected.
        disabled: names that are not loaded.
        strict: whether any broken plugin is an error.

    A name is an entry point's (``architectures.llama``), the part of it behind the kind (``llama``), a distribution's
    (``ggfw-arch-toy``) or, for ``disabled``, also a descriptor's (``Q4_0``, ``quant_formats.Q4_0``).
    """

    only: frozenset[str] | None = None
    disabled: frozenset[str] = frozenset()
    strict: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Switches:
        """Read ``GGFW_PLUGINS``, ``GGFW_DISABLE_PLUGINS`` and ``GGFW_STRICT_PLUGINS``."""
        only = environ.get("GGFW_PLUGINS")
        return cls(
            only=None if only is None else _names(only),
            disabled=_names(environ.get("GGFW_DISABLE_PLUGINS", "")),
            strict=environ.get("GGFW_STRICT_PLUGINS", "0").lower() not in ("", "0", "false", "no", "off"),
        )

    def refusal(self, origin: Origin) -> str:
        """Return why this plugin is not to be loaded, or an empty string."""
        _, _, short = origin.plugin.partition(".")
        names = {origin.plugin, short, origin.distribution, _canonical(origin.distribution)} - {""}
        if names & self.disabled:
            return "named in GGFW_DISABLE_PLUGINS"
        if self.only is not None and not origin.builtin and not names & self.only:
            return "not named in GGFW_PLUGINS"
        return ""


@dataclass
class Found:
    """Result of a discovery: what plugins offer, and one row for everything that is not on offer."""

    offers: list[Offer] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


class _Manager(pluggy.PluginManager):
    """pluggy's, spared the looks at what every Python object has: there are more of them than of anything else."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        """See pluggy; names between double underscores mark no hook."""
        return None if name.startswith("__") else super().parse_hookimpl_opts(plugin, name)


def discover(entry_points: Iterable[EntryPoint] | None, switches: Switches) -> Found:
    """Load every plugin once, built-ins first, then by name.

    Args:
        entry_points: the doors to open; None means those of all installed distributions.
        switches: which to leave out.

    Returns:
        Sound descriptors, and rows for what is disabled, broken or incompatible. Never raises for a plugin's sake;
        only ``KeyboardInterrupt`` passes.
    """
    found_doors = installed(GROUP) if entry_points is None else [_door(ep) for ep in entry_points]
    doors = sorted(
        ((Origin(door.name, door.distribution, door.version), door) for door in found_doors), key=_load_order
    )
    manager = _Manager(GROUP)
    manager.add_hookspecs(hookspecs)
    found = Found()
    owners: dict[str, Origin] = {}
    for origin, door in doors:
        owner = owners.setdefault(origin.plugin, origin)
        if owner is not origin:
            reason = f"the name belongs to the distribution {owner.distribution}; rename the entry point"
            found.rows.append(origin.row("failed", reason, "name"))
        elif refusal := switches.refusal(origin):
            found.rows.append(origin.row("disabled", refusal))
        elif origin.builtin:
            _open(manager, origin, door, switches, found)
        else:
            with _watched(origin):
                _open(manager, origin, door, switches, found)
    return found


@contextmanager
def _watched(origin: Origin) -> Iterator[None]:
    """Warn if what is done inside takes longer than SLOW: it may never end, and nothing else would say why."""

    def warn() -> None:
        of = f" of the package {origin.distribution}" if origin.distribution else ""
        warnings.warn(
            f"the plugin {origin.plugin}{of} has been loading for {SLOW:g} s; if it hangs, leave it out with "
            f"GGFW_DISABLE_PLUGINS={origin.distribution or origin.plugin}",
            RuntimeWarning,
            stacklevel=2,
        )

    timer = threading.Timer(SLOW, warn)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no threads to be had: then without
        pass
    try:
        yield
    finally:
        timer.cancel()


def _open(
    manager: pluggy.PluginManager, origin: Origin, door: Door, switches: Switches, found: Found
) -> None:
    """Import, check and ask one plugin; whatever it does wrong ends up in ``found.rows``."""
    stage = "import"
    try:
        plugin = door.load()
        stage = "validate"
        api = getattr(plugin, "GGFW_PLUGIN_API", None)
        if api != PLUGIN_API:
            said = "states no GGFW_PLUGIN_API" if api is None else f"is written for plugin API {api}"
            found.rows.append(origin.row("incompatible", f"it {said}, this ggfw speaks {PLUGIN_API}", stage))
            return
        hooks = _register(manager, origin, plugin)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # SystemExit too: a plugin must not end the process that lists it
        if manager.has_plugin(origin.plugin):
            manager.unregister(name=origin.plugin)
        found.rows.append(origin.row("failed", describe(exc), stage))
        return
    offered = 0
    for kind, function in hooks:
        try:
            items = list(islice(function(), MOST + 1))
            if len(items) > MOST:
                raise ValueError(f"it offers more than {MOST} descriptors")
        except KeyboardInterrupt:
            raise
        except BaseException as exc:
            found.rows.append(origin.row("failed", f"{HOOK_PREFIX}{kind}: {describe(exc)}", "hook"))
            offered += 1
            continue
        for item in items:
            offered += 1
            if problem := _problem(kind, item):
                name = _name_of(item) or origin.plugin
                found.rows.append(origin.row("failed", problem, "descriptor", kind=kind, name=name))
            elif {item.name, f"{kind}.{item.name}"} & switches.disabled:
                found.rows.append(Offer(kind, item, origin).row("disabled", "named in GGFW_DISABLE_PLUGINS"))
            else:
                found.offers.append(Offer(kind, item, origin))
    if not offered:
        found.rows.append(origin.row("ok", "it offers nothing here"))


def _register(manager: pluggy.PluginManager, origin: Origin, plugin: Any) -> list[tuple[str, Any]]:
    """Register with pluggy and return ``(kind, implementation)`` pairs; raises for everything that breaks a spec."""
    if isinstance(
        plugin, ModuleType
    ):  # pluggy looks at every name of a plugin: show it the marked functions only
        marked = {
            name: f for name, f in vars(plugin).items() if isinstance(f, FunctionType) and hasattr(f, MARK)
        }
        plugin = SimpleNamespace(__name__=plugin.__name__, **marked)
    manager.register(plugin, name=origin.plugin)
    hooks: list[tuple[str, Any]] = []
    callers = manager.get_hookcallers(plugin) or []
    if not callers:
        raise pluggy.PluginValidationError(plugin, "it implements no hook; mark one with @hookimpl")
    for caller in callers:
        impl = next(impl for impl in caller.get_hookimpls() if impl.plugin is plugin)
        if not caller.has_spec():
            if impl.optionalhook:
                continue  # written for a later ggfw as well
            from difflib import get_close_matches  # here, because almost no start of ggfw needs it

            near = get_close_matches(caller.name, [HOOK_PREFIX + kind for kind in KINDS], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise pluggy.PluginValidationError(plugin, f"no such hook: {caller.name}{hint}")
        if impl.hookwrapper or impl.wrapper:
            raise pluggy.PluginValidationError(
                plugin, f"{caller.name} is a wrapper; registration hooks take none"
            )
        hooks.append((caller.name.removeprefix(HOOK_PREFIX), impl.function))
    order = list(KINDS)
    return sorted(hooks, key=lambda hook: order.index(hook[0]))


def _problem(kind: str, item: Any) -> str:
    """Return what is wrong with one result of a hook, or an empty string."""
    expected = KINDS[kind]
    try:
        # isinstance() would ask the object itself, which may say or raise anything.
        if not issubclass(type(item), expected):
            return f"{HOOK_PREFIX}{kind} returned {type(item).__name__}, expected {expected.__name__}"
        return "; ".join(Descriptor.problems(item) or item.problems())
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        return f"its check failed: {describe(exc)}"


def _name_of(item: Any) -> str:
    """The name of what should have been a descriptor; empty where it has none."""
    try:
        return item.name if type(item.name) is str else ""
    except KeyboardInterrupt:
        raise
    except BaseException:
        return ""


def describe(exc: BaseException) -> str:
    """Return an error as one line: ``Type: message``; a plugin's own validation error without pluggy's preamble."""
    if isinstance(exc, pluggy.PluginValidationError):
        lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
        # pluggy's texts name the plugin first and the complaint last; ours are one line.
        return lines[-1] if lines else "it does not fit the hook specification"
    return with_place(exc)


def _door(entry_point: EntryPoint | Door) -> Door:
    return entry_point if isinstance(entry_point, Door) else Door.of(entry_point)


def _load_order(door: tuple[Origin, Door]) -> tuple[bool, str, str]:
    origin, _ = door
    return not origin.builtin, origin.plugin, origin.distribution


def _canonical(name: str) -> str:
    """Normalise a distribution's name as PEP 503 does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(text: str) -> frozenset[str]:
    def parts() -> Iterator[str]:
        for part in text.split(","):
            if part := part.strip():
                yield part

    return frozenset(parts())
