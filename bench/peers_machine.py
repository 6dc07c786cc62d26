"""What machine this is, and whether anybody else is using it.

Everything here reads ``/proc`` and ``/sys`` (Linux); nothing is changed. A benchmark beside another busy
process measures the other process, so `busy_reason` decides whether a comparison may start at all, and
`CpuClock` tells for every single run how much of the machine went to others while it ran.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

PROC = Path("/proc")

# The CPU features that decide which kernels either side can use, in the spelling of /proc/cpuinfo.
FLAGS_OF_INTEREST = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
)


@dataclass(frozen=True)
class Machine:
    """The facts of a machine that a figure depends on.

    ``logical_cpus`` are those this process may use, ``physical_cores`` the distinct cores among them;
    ``cgroup_cpus`` is the CPU quota in CPUs or None; ``features`` is the sorted part of
    `FLAGS_OF_INTEREST` that the CPU has; ``memory_bytes`` is MemTotal.
    """

    cpu: str
    logical_cpus: int
    physical_cores: int
    cgroup_cpus: float | None
    features: tuple[str, ...]
    governor: str
    memory_bytes: int
    kernel: str

    @property
    def key(self) -> str:
        """A short stable name: results of different machines never mix. Governor and kernel are not in it."""
        text = f"{self.cpu}|{self.logical_cpus}|{self.physical_cores}|{','.join(self.features)}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def default_threads(self) -> int:
        """min(CPUs allowed, cgroup quota rounded down, physical cores), at least 1."""
        quota = int(self.cgroup_cpus) if self.cgroup_cpus is not None else self.logical_cpus
        return max(1, min(self.logical_cpus, quota, self.physical_cores))

    def has(self, feature: str) -> bool:
        """Whether the CPU has ``feature`` (spelled as in `FLAGS_OF_INTEREST`)."""
        return feature in self.features

    def as_dict(self) -> dict[str, object]:
        """JSON-ready fields plus ``key``."""
        return {**asdict(self), "features": list(self.features), "key": self.key}


def parse_cpuinfo(text: str, allowed: set[int]) -> tuple[str, tuple[str, ...], int]:
    """Model name, features of interest and number of distinct physical cores among ``allowed`` CPUs.

    ``text`` is /proc/cpuinfo. Cores are told apart by (physical id, core id); where the kernel does not
    give these, every CPU counts as a core.
    """
    name, flags, cores = "unknown", set[str](), set[tuple[str, str]]()
    for block in text.strip().split("\n\n"):
        fields = {
            key.strip(): value.strip()
            for key, sep, value in (line.partition(":") for line in block.splitlines())
            if sep
        }
        if not fields.get("processor", "").isdigit() or int(fields["processor"]) not in allowed:
            continue
        name = fields.get("model name", name)
        flags |= set(fields.get("flags", "").split())
        cpu = fields["processor"]
        cores.add((fields.get("physical id", cpu), fields.get("core id", cpu)))
    return name, tuple(f for f in FLAGS_OF_INTEREST if f in flags), max(1, len(cores))


def parse_cpu_max(text: str) -> float | None:
    """CPUs granted by a cgroup v2 ``cpu.max`` ("quota period", or "max period" -> None)."""
    quota, _, period = text.strip().partition(" ")
    if quota == "max" or not period:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def describe_machine() -> Machine:
    """Read this machine's facts."""
    allowed = os.sched_getaffinity(0)
    name, features, cores = parse_cpuinfo(_read(PROC / "cpuinfo") or "", set(allowed))
    quota = _read(Path("/sys/fs/cgroup/cpu.max"))
    meminfo = _read(PROC / "meminfo") or ""
    kib = next((int(line.split()[1]) for line in meminfo.splitlines() if line.startswith("MemTotal:")), 0)
    governor = _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    return Machine(
        cpu=name,
        logical_cpus=len(allowed),
        physical_cores=cores,
        cgroup_cpus=parse_cpu_max(quota) if quota else None,
        features=features,
        governor=governor.strip() if governor else "not visible",
        memory_bytes=kib * 1024,
        kernel=platform.release(),
    )


# ------------------------------------------------------------------------------------ who uses the CPUs


def parse_stat(text: str) -> tuple[int, int]:
    """(busy, total) clock ticks over all CPUs from /proc/stat's first line.

    Idle and iowait are not busy; guest time is already part of user time; steal counts as busy, since
    another guest of the host took it from us.
    """
    line = text.splitlines()[0]
    if not line.startswith("cpu "):
        raise ValueError(f"/proc/stat begins with {line[:20]!r}, expected the 'cpu ' line")
    ticks = [int(field) for field in line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


class CpuClock:
    """Share of the machine's CPU time used by others between construction and `foreign_share`."""

    def __init__(self) -> None:
        self.busy, self.total = parse_stat((PROC / "stat").read_text())

    def foreign_share(self, own_seconds: float = 0.0) -> float:
        """Busy time that is not ``own_seconds`` (user + system of the measured process), as a share 0…1."""
        busy, total = parse_stat((PROC / "stat").read_text())
        if total == self.total:
            return 0.0
        ticks = os.sysconf("SC_CLK_TCK")
        return min(1.0, max(0.0, ((busy - self.busy) - own_seconds * ticks) / (total - self.total)))


def parse_pid_stat(text: str) -> tuple[str, int]:
    """(command name, user + system ticks) from /proc/PID/stat; the name may itself contain parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], int(fields[11]) + int(fields[12])


def _process_ticks() -> dict[int, tuple[str, int]]:
    found: dict[int, tuple[str, int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            text = _read(folder / "stat")
            if text:
                found[int(folder.name)] = parse_pid_stat(text)
    return found


@dataclass(frozen=True)
class Load:
    """How busy the machine was during a short look. ``used`` is a share of all CPUs, 0…1."""

    used: float
    load_average: float
    cpus: int
    top: tuple[tuple[int, str, float], ...]  # (pid, command, share of one CPU), busiest first


def observe_load(seconds: float = 2.0) -> Load:
    """Watch /proc for ``seconds`` and name the three busiest processes."""
    clock, before, start = CpuClock(), _process_ticks(), time.monotonic()
    time.sleep(seconds)
    used = clock.foreign_share()
    after, elapsed = _process_ticks(), time.monotonic() - start
    ticks = os.sysconf("SC_CLK_TCK")
    shares = [
        (pid, name, (total - before[pid][1] if pid in before else total) / ticks / elapsed)
        for pid, (name, total) in after.items()
    ]
    top = sorted((row for row in shares if row[2] >= 0.02), key=lambda row: -row[2])[:3]
    return Load(used, os.getloadavg()[0], os.cpu_count() or 1, tuple(top))


def busy_reason(load: Load, max_used: float = 0.10) -> str | None:
    """Why this load forbids a measurement, or None.

    ``max_used`` is the share of all CPUs that others may use. The one-minute load average is looked at as
    well, because a process that sleeps just now may run in the middle of a measurement.
    """
    names = ", ".join(f"{name} (pid {pid}, {share:.0%} of a CPU)" for pid, name, share in load.top)
    if load.used > max_used:
        return f"other processes use {load.used:.0%} of the CPUs: {names or 'none of them visible here'}"
    if load.load_average >= load.cpus:
        return f"the load average of the last minute is {load.load_average:.2f} on {load.cpus} CPUs" + (
            f"; busiest now: {names}" if names else "; it falls within a minute or two of quiet"
        )
    return None
