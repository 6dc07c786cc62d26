"""The default number of threads, on faked systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggfw.errors import InvalidRequest
from ggfw.threads import choose_threads, cpu_list, default_threads


def system(
    root: Path,
    n_cpus: int,
    *,
    smt: int = 1,
    mask: str | None = None,
    files: dict[str, str] | None = None,
) -> Path:
    """A root with ``n_cpus`` processors, ``smt`` of them per core (numbered as Linux does: siblings far apart)."""
    cpus = root / "sys/devices/system/cpu"
    n_cores = n_cpus // smt
    for cpu in range(n_cpus):
        topology = cpus / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        siblings = ",".join(str(cpu % n_cores + i * n_cores) for i in range(smt))
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    (cpus / "online").write_text(f"0-{n_cpus - 1}\n")
    written = {
        "proc/self/status": f"Name:\tx\nCpus_allowed_list:\t{mask or f'0-{n_cpus - 1}'}\n",
        **(files or {}),
    }
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_two_threads_per_core(tmp_path: Path) -> None:
    choice = choose_threads(system(tmp_path, 16, smt=2))
    assert (choice.threads, choice.logical, choice.cores, choice.quota) == (8, 16, 8, None)
    assert choice.reason == "16 processors on 8 physical cores"


def test_affinity_mask(tmp_path: Path) -> None:
    assert default_threads(system(tmp_path, 16, mask="3,9")) == 2


def test_both_threads_of_one_core_are_one(tmp_path: Path) -> None:
    assert default_threads(system(tmp_path, 16, smt=2, mask="3,11")) == 1


def test_one_processor(tmp_path: Path) -> None:
    assert default_threads(system(tmp_path, 1)) == 1


def test_explicit_value(tmp_path: Path) -> None:
    assert default_threads(system(tmp_path, 2), 5) == 5
    with pytest.raises(InvalidRequest, match="threads is 0; at least 1"):
        default_threads(tmp_path, 0)


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/a/b\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),  # a container sees its own group as the root
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "200000 100000\n"}, 2),
        (
            {**V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"},
            3,
        ),
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 16),
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "10000 100000\n"}, 1),
        ({**V2, "sys/fs/cgroup/a/b/cpu.max": "nonsense\n"}, 16),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            16,
        ),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert default_threads(system(tmp_path, 16, files=files)) == expected


def test_an_empty_system_gives_one(tmp_path: Path) -> None:
    assert default_threads(tmp_path) == 1


def test_this_machine() -> None:
    choice = choose_threads()
    assert 1 <= choice.threads <= choice.logical


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_lists(cpus: set[int]) -> None:
    assert cpu_list(",".join(map(str, cpus)) + "\n") == cpus


def test_cpu_ranges() -> None:
    assert cpu_list("0-3,7,10-11\n") == {0, 1, 2, 3, 7, 10, 11}
    assert cpu_list("\n") == set()
