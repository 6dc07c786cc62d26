"""The native libraries: opened once per process by cffi in ABI mode, after their ABI numbers were checked.

The C declarations come from a module that the build generated from the headers, because parsing headers would take
longer than everything else at start-up.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import threading
from functools import cache
from typing import Any

from ggfw.descriptors import KernelBackend, resolve
from ggfw.errors import BackendError, PluginError, kind_and_text
from ggfw.records import dataclass
from ggfw.registry import Registry, default_registry

#: The ABI this core speaks (GGFW_KERNELS_ABI).
KERNELS_ABI = 2

#: The executor's function that came last. Its functions change without that number, which is a promise to the kernels
#: of others; a checkout whose sources are newer than its libraries is told apart by this one.
NEWEST_FUNCTION = "ggfw_file_faults"

_lock = threading.Lock()


@dataclass(frozen=True)
class Native:
    """The executor library and the declarations all libraries share."""

    ffi: Any
    lib: Any


@dataclass(frozen=True)
class KernelLibrary:
    """An opened kernel library.

    Attributes:
        name: of its backend descriptor.
        path: of the library.
        kernels: pointers to its ``ggfw_kernel`` entries by (op, format).
    """

    name: str
    path: str
    kernels: dict[tuple[int, int], list[Any]]
    handle: Any


@cache
def _open_executor(path: str, bindings: str) -> Native:
    try:
        spec = importlib.util.spec_from_file_location("ggfw_abi", bindings)
        assert spec is not None and spec.loader is not None, "it is no Python module"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        ffi = module.ffi
    except Exception as exc:
        raise BackendError(
            f"the declarations {bindings} cannot be imported ({kind_and_text(exc)}); reinstall ggfw"
        ) from exc
    lib = _open(ffi, path)
    found = lib.ggfw_executor_abi()
    if found != KERNELS_ABI:
        raise BackendError(
            f"{path} speaks kernel ABI {found}, this core speaks {KERNELS_ABI}; reinstall ggfw"
        )
    if not hasattr(lib, NEWEST_FUNCTION):
        raise BackendError(
            f"{path} was built from older sources than this core; reinstall ggfw, or run kernels_c/build.py again"
        )
    return Native(ffi, lib)


def dlopen(ffi: Any, path: str) -> Any:
    """Open a library for as long as the process lives.

    Threads that know no Python (of the pool, or such as pack weights) may be in its code when the interpreter ends and
    lets go of what it holds; cffi would close the library under them.

    Raises:
        OSError: it cannot be opened.
    """
    return ffi.dlopen(path, ffi.RTLD_NOW | getattr(os, "RTLD_NODELETE", 0))


def _open(ffi: Any, path: str) -> Any:
    try:
        return dlopen(ffi, path)
    except OSError as exc:
        raise BackendError(f"the library {path} cannot be opened ({exc}); reinstall ggfw") from exc


def native(registry: Registry | None = None) -> Native:
    """Return the executor library, opened on first use.

    Raises:
        BackendError: no installed backend brings one, or it does not fit this core.
    """
    registry = registry or default_registry()
    failed: dict[str, BackendError] = {}
    for descriptor in registry.backends():
        if descriptor.executor is None or descriptor.bindings is None:
            continue
        try:
            path, bindings = (_said_path(descriptor, what) for what in ("executor", "bindings"))
            with _lock:
                opened = _open_executor(path, bindings)
        except BackendError as exc:
            failed[descriptor.name] = exc
            continue  # another one's may work
        for name, error in failed.items():
            registry.disqualify(name, error)
        return opened
    none = BackendError("no kernel backend brings the executor library; reinstall ggfw")
    raise next(iter(failed.values()), none)


def _said_path(descriptor: KernelBackend, what: str) -> str:
    """The path that a backend's ``library``, ``executor`` or ``bindings`` gives.

    Raises:
        BackendError: it fails.
    """
    try:
        return str(resolve(getattr(descriptor, what))())
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        raise BackendError(
            f"kernel backend {descriptor.name} cannot say where its {what} is ({kind_and_text(exc)}); "
            f"{_way_out(descriptor)}"
        ) from exc


def _way_out(descriptor: KernelBackend) -> str:
    return f"reinstall its package, or do without it: GGFW_DISABLE_PLUGINS={descriptor.name}"


def checksum(native: Native, data: bytes) -> int:
    """Return a 64-bit sum of ``data``: for telling damage and change, not forgery."""
    total = native.ffi.new("uint64_t[1]")
    native.lib.ggfw_checksums(native.ffi.from_buffer(data), len(data), max(len(data), 1), total)
    return int(total[0])


_libraries: dict[str, KernelLibrary] = {}


def kernel_library(descriptor: KernelBackend, registry: Registry | None = None) -> KernelLibrary:
    """Return a backend's library, opened on first use.

    Raises:
        BackendError: it cannot be found or opened, is no kernel library, or its ABI differs.
    """
    n = native(registry)
    path = _said_path(descriptor, "library")
    with _lock:
        if path in _libraries:
            return _libraries[path]
        try:
            handle = dlopen(n.ffi, path)
            found = handle.ggfw_kernels_abi()
        except (OSError, AttributeError, n.ffi.error) as exc:
            raise BackendError(
                f"the library {path} of kernel backend {descriptor.name} cannot be used ({exc}); "
                f"{_way_out(descriptor)}"
            ) from exc
        if found != KERNELS_ABI:
            raise BackendError(
                f"kernel backend {descriptor.name} speaks kernel ABI {found}, this core speaks {KERNELS_ABI}; "
                "install a version of it that fits"
            )
        table = handle.ggfw_kernels()
        kernels: dict[tuple[int, int], list[Any]] = {}
        for i in range(table.n_kernels):
            kernel = table.kernels + i
            kernels.setdefault((kernel.op, kernel.format), []).append(kernel)
        library = _libraries[path] = KernelLibrary(descriptor.name, path, kernels, handle)
        return library


_opened: list[ctypes.CDLL] = []  # custom libraries stay loaded as long as the process


def custom_kernel(path: str, symbol: str) -> Any:
    """Return a pointer to a ``ggfw_kernel`` variable of a plugin's own library.

    Raises:
        PluginError: the library cannot be opened or has no such variable.
    """
    n = native()
    try:
        library = ctypes.CDLL(path)
        address = ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    except (OSError, ValueError) as exc:
        raise PluginError(f"the op library {path} has no kernel {symbol!r} ({exc})") from exc
    _opened.append(library)
    return n.ffi.cast("const ggfw_kernel *", address)
