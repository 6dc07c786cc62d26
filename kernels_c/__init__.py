"""The C side of ggfw: where its header and its compiled libraries are, and whether a library runs here.

The libraries are made by ``kernels_c/build.py`` (``make run``, ``pip install``) and opened by the core; this package
only says where they are, so importing it is cheap.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

from ggfw.errors import BackendError

__all__ = ["bindings_path", "executor_path", "get_include", "library_path", "missing", "usable"]

_HERE = os.path.dirname(os.path.abspath(__file__))
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")

#: ``ggfw_kernels_abi()`` of the header this package installs.
ABI = 2


def get_include() -> str:
    """Return the folder of the public C headers, for building a kernel library elsewhere."""
    return os.path.join(_HERE, "include")


def bindings_path() -> str:
    """Return the path of ``ggfw_abi.py``, the generated declarations of the C contract.

    Raises:
        BackendError: it has not been generated.
    """
    path = os.path.join(_HERE, "lib", "ggfw_abi.py")
    if not os.path.exists(path):
        raise BackendError(
            "the generated module ggfw_abi.py is missing; install ggfw anew with a C compiler, "
            "or run `python kernels_c/build.py` in a checkout"
        )
    return path


def built(name: str) -> bool:
    """Whether the library ``name`` (``generic``, ``avx2``, ``executor``, ...) has been compiled."""
    return os.path.exists(_path(name))


def library_path(name: str) -> str:
    """Return the path of a compiled library.

    Args:
        name: ``generic``, ``avx2``, ``avx512``: an instruction set; or ``executor``.

    Raises:
        BackendError: it has not been compiled.
    """
    path = _path(name)
    if not os.path.exists(path):
        raise BackendError(
            f"the kernel library {os.path.basename(path)} has not been compiled; install ggfw anew with a C compiler, "
            "or run `python kernels_c/build.py` in a checkout"
        )
    return path


def executor_path() -> str:
    """Return the path of the executor library; see :func:`library_path` for the error."""
    return library_path("executor")


@cache
def usable(path: str) -> bool:
    """Ask a kernel library whether this processor *and* operating system can run it (CPUID and XGETBV, in C).

    Args:
        path: path of a library that exports ``ggfw_kernels_abi`` and ``ggfw_kernels``.

    Raises:
        BackendError: it cannot be opened, or was built for another ABI.
    """
    import ctypes  # standard library, and quicker to start than cffi: a probe runs for every `ggfw plugins list`

    class Table(ctypes.Structure):  # the head of ggfw_kernel_table
        _fields_ = [
            ("name", ctypes.c_char_p),
            ("abi", ctypes.c_int32),
            ("n_kernels", ctypes.c_int32),
            ("kernels", ctypes.c_void_p),
            ("usable", ctypes.CFUNCTYPE(ctypes.c_int32)),
        ]

    library = _opened(path)
    library.ggfw_kernels.restype = ctypes.POINTER(Table)
    return bool(library.ggfw_kernels().contents.usable())


def missing(path: str) -> str:
    """Return what processor and system lack to run a kernel library, by name; "" when nothing, or when it does not say.

    Raises:
        BackendError: see :func:`usable`.
    """
    import ctypes

    try:
        say = _opened(path).ggfw_kernels_missing
    except AttributeError:  # a library of somebody else need not have it
        return ""
    say.restype = ctypes.c_char_p
    return (say() or b"").decode("ascii", "replace")


@cache
def _opened(path: str) -> Any:
    import ctypes

    try:
        library = ctypes.CDLL(path)
        library.ggfw_kernels_abi.restype = ctypes.c_int32
        abi = library.ggfw_kernels_abi()
    except (OSError, AttributeError) as exc:
        raise BackendError(f"{path} is not a kernel library: {exc}") from exc
    if abi != ABI:
        raise BackendError(f"{path} was built for kernel ABI {abi}, this ggfw has {ABI}; build it anew")
    return library


def _path(name: str) -> str:
    return os.path.join(_HERE, "lib", f"libggfw_{name}{_SUFFIX}")
