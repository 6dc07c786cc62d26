"""The thread that computes masks beside the model."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def submit(job: Callable[[], None]) -> Future[None]:
    """Run ``job`` in the helper thread; llguidance gives the interpreter free while it computes."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(1, thread_name_prefix="ggfw-masks")
        return _pool.submit(job)


def _after_fork() -> None:
    """The thread did not come along."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
