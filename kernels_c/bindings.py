"""The Python side of the C contract: ``ggfw_abi.py``, generated from the headers when the libraries are built.

cffi's out-of-line ABI mode: no C compiler and no Python headers are needed for it, and at run time nothing is parsed.
Imported by ``build.py`` from its own folder, so it needs only the standard library and cffi.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

#: Headers whose marked parts make up the declarations, in this order.
HEADERS = ("ggfw_kernels.h", "ggfw_sampler.h", "ggfw_executor.h", "ggfw_encode.h")

#: Name of the generated module.
MODULE = "ggfw_abi"


def declarations(include: Path) -> str:
    """Return what stands between the markers of the headers, for ``ffi.cdef``."""
    parts = []
    for name in HEADERS:
        text = (include / name).read_text(encoding="utf-8")
        parts.append(text[text.index("/* cffi: begin */") : text.index("/* cffi: end */")])
    return "\n".join(parts)


def write_bindings(include: Path, folder: Path) -> bool:
    """Write ``ggfw_abi.py`` into ``folder``; returns whether it is new or has changed."""
    from cffi import FFI

    ffi = FFI()
    ffi.set_source(MODULE, None)
    ffi.cdef(declarations(include))
    target, fresh = folder / f"{MODULE}.py", folder / f".{MODULE}.new"
    with contextlib.redirect_stdout(io.StringIO()):  # cffi announces the file
        ffi.emit_python_code(str(fresh))
    if target.exists() and target.read_bytes() == fresh.read_bytes():
        fresh.unlink()
        return False
    fresh.replace(target)
    return True
