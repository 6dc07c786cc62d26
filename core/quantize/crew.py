"""Threads that share one row of jobs, the calling one among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock, Thread
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ggfw.threads import start_if_possible

#: Work for one thread; it may write into the scratch memory that :class:`Scratch` gives.
Job: TypeAlias = "Callable[[Scratch], None]"


class Scratch:
    """Memory of one thread for what it makes, kept from job to job."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def bytes(self, count: int) -> NDArray[np.uint8]:
        """(count,) uint8 with anything in it, valid until the next call."""
        if len(self._memory) < count:
            self._memory = np.empty(count, np.uint8)
        return self._memory[:count]


def run_jobs(jobs: Iterator[Job], threads: int) -> None:
    """Do all jobs, each in one of ``threads`` threads, of which the calling one is the first.

    Jobs are taken when a thread is free, one thread at a time, so the iterator may be a generator and never runs
    ahead. After the first exception, of a job or of the iterator, no job is begun.

    Raises:
        BaseException: the first one, when all threads have ended.
    """
    lock = Lock()
    failures: list[BaseException] = []

    def work() -> None:
        scratch = Scratch()
        try:
            while not failures:
                with lock:
                    job = next(jobs, None)
                if job is None:
                    return
                job(scratch)
        except BaseException as exc:
            failures.append(exc)

    helpers = [Thread(target=work, name=f"ggfw-encode-{i}", daemon=True) for i in range(1, threads)]
    started = [helper for helper in helpers if start_if_possible(helper)]
    work()
    for helper in started:
        while helper.is_alive():
            try:
                helper.join()
            except BaseException as exc:  # ^C: what the jobs read and write must outlive them all the same
                failures.append(exc)
    if failures:
        raise failures[0]
