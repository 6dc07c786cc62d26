"""Helpers that several test modules import."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def check_logits() -> ModuleType:
    """Import ``tests/check_logits.py``, the comparison with the reference data."""
    spec = importlib.util.spec_from_file_location("check_logits", Path(__file__).parent / "check_logits.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
