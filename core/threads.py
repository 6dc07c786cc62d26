"""How many threads are worth using: the physical cores this process may use, and not more than its CPU quota.

A second hardware thread of a core adds nothing to code that waits for memory, and a thread beyond the quota of a
container is stopped by the kernel in the middle of a step, while all others wait for it.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

from ggfw.errors import GgfwError, InvalidRequest
from ggfw.records import dataclass

__all__ = ["ThreadChoice", "choose_threads", "default_threads", "start", "start_if_possible"]


@dataclass(frozen=True)
class ThreadChoice:
    """What :func:`choose_threads` found.

    Attributes:
        threads: the choice, at least 1.
        logical: processors the process may run on (its affinity mask).
        cores: physical cores behind those processors.
        quota: processors' worth of time the control groups grant, or None without a limit.
        reason: one sentence that says what decided.
    """

    threads: int
    logical: int
    cores: int
    quota: float | None
    reason: str


def start(thread: Thread) -> Thread:
    """Start a thread that nothing can go on without.

    Raises:
        GgfwError: the system gives no more of them.
    """
    if not start_if_possible(thread):
        raise GgfwError(
            f"the system gives no thread for {thread.name}; raise the limit (ulimit -u, or pids.max of the control "
            "group), or end other programs"
        )
    return thread


def start_if_possible(thread: Thread) -> bool:
    """Start a thread that only makes something faster; False where the system gives none."""
    try:
        thread.start()
    except RuntimeError:  # of an unstarted thread: "can't start new thread"
        return False
    return True


def default_threads(root: str | os.PathLike[str] = "/", requested: int | None = None) -> int:
    """Return ``min(affinity, control group quota, physical cores)``, or ``requested``; never 0.

    Args:
        root: folder in which ``proc`` and ``sys`` are looked up.
        requested: an explicit wish; it wins.

    Raises:
        InvalidRequest: ``requested`` is below 1.
    """
    return choose_threads(root, requested).threads


def choose_threads(root: str | os.PathLike[str] = "/", requested: int | None = None) -> ThreadChoice:
    """Return the number of threads with the facts it was derived from; see :func:`default_threads`."""
    base = Path(root)
    allowed = _allowed(base)
    cores = _cores(base, allowed)
    quota = _quota(base)
    logical = len(allowed)
    if requested is not None:
        if requested < 1:
            raise InvalidRequest(f"threads is {requested}; at least 1 was expected", "threads")
        return ThreadChoice(requested, logical, cores, quota, "as asked for")
    threads, reason = logical, f"the process may run on {_many(logical, 'processor')}"
    if cores < threads:
        threads, reason = cores, f"{_many(logical, 'processor')} on {_many(cores, 'physical core')}"
    if quota is not None and quota < threads:
        # Rounded down: with a quota of 1.5, two threads would both be stopped for a quarter of the time.
        threads = max(1, int(quota))
        reason = f"the control group's quota is {quota:g} processors"
    return ThreadChoice(max(1, threads), logical, cores, quota, reason)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def cpu_list(text: str) -> set[int]:
    """Return the numbers in Linux's list format: ``"0-2,5"`` is {0, 1, 2, 5}."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last if last.isdigit() else first) + 1))
    return found


def _allowed(base: Path) -> set[int]:
    """Processors this process may run on; {0} when nothing says so."""
    if base == Path("/") and hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    for line in (_read(base / "proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return cpu_list(line.partition(":")[2]) or {0}
    for name in ("online", "present"):
        if listed := _read(base / "sys/devices/system/cpu" / name):
            return cpu_list(listed) or {0}
    present = {
        int(path.name[3:])
        for path in base.glob("sys/devices/system/cpu/cpu[0-9]*")
        if path.name[3:].isdigit()
    }
    if present or base != Path("/"):
        return present or {0}
    return set(range(os.cpu_count() or 1))  # macOS, Windows


def _cores(base: Path, allowed: set[int]) -> int:
    """Physical cores among ``allowed``; a processor without topology counts as one."""
    cores: set[frozenset[int]] = set()
    for cpu in allowed:
        topology = base / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _read(topology / "core_cpus_list") or _read(topology / "thread_siblings_list")
        cores.add(frozenset(cpu_list(siblings or "") or {cpu}))
    return len(cores)


def _quota(base: Path) -> float | None:
    """The smallest CPU quota of the process's control groups and their parents, in processors; None = unlimited."""
    groups = {"": "/", "cpu": "/"}  # version 2 is the empty controller; inside a container the root is ours
    for line in (_read(base / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        for controller in controllers.split(","):
            if controller in groups:
                groups[controller] = path
    mount = base / "sys/fs/cgroup"
    found = [_quota_v2(folder) for top in (mount, mount / "unified") for folder in _up(top, groups[""])]
    found += [
        _quota_v1(folder)
        for top in (mount / "cpu", mount / "cpu,cpuacct")
        for folder in _up(top, groups["cpu"])
    ]
    return min((quota for quota in found if quota is not None), default=None)


def _up(top: Path, group: str) -> list[Path]:
    """The folder of a control group and of all groups above it."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [top.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    return _processors(*words) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return _processors(quota.strip(), period.strip()) if quota and period else None


def _processors(quota: str, period: str) -> float | None:
    """Microseconds per period as processors; ``max`` and -1 mean no limit."""
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return None
