"""The native libraries: one built from older sources is refused in one sentence, and none is ever closed."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

from ggfw.descriptors import resolve
from ggfw.errors import BackendError
from ggfw.execute.library import _open_executor, dlopen, native
from ggfw.registry import default_registry


def test_a_library_of_older_sources_is_told_to_be_built_again(tmp_path: Path) -> None:
    native()  # whatever it needs is there
    bindings = tmp_path / "old_abi.py"
    bindings.write_text(
        "import cffi\n\nffi = cffi.FFI()\nffi.cdef('int32_t ggfw_executor_abi(void);')\n", encoding="utf-8"
    )
    (path,) = {resolve(b.executor)() for b in default_registry().backends() if b.executor is not None}
    with pytest.raises(BackendError, match=r"older sources.*kernels_c/build\.py"):
        _open_executor(path, str(bindings))


@pytest.mark.skipif(not hasattr(os, "RTLD_NODELETE"), reason="libraries cannot be kept here")
def test_a_library_that_nobody_holds_stays_for_the_threads_that_are_in_it(tmp_path: Path) -> None:
    descriptor = default_registry().backends()[0]
    library = shutil.copy(resolve(descriptor.library)(), tmp_path / "kept.so")
    handle = dlopen(native().ffi, str(library))
    assert handle.ggfw_kernels_abi()
    del handle
    gc.collect()
    assert str(library) in Path("/proc/self/maps").read_text()
