"""bench/peers*.py: the pure parts (parsing, choosing, ratios, keys), and one real short process."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import peers
import peers_build
import peers_machine
import peers_results
import peers_run

CPUINFO = """processor\t: 0
model name\t: Some CPU
flags\t\t: fpu avx2 fma avx512f avx512_vnni amx_tile
physical id\t: 0
core id\t\t: 0

processor\t: 1
model name\t: Some CPU
flags\t\t: fpu avx2 fma avx512f avx512_vnni amx_tile
physical id\t: 0
core id\t\t: 0

processor\t: 2
model name\t: Some CPU
flags\t\t: fpu avx2 fma avx512f avx512_vnni amx_tile
physical id\t: 0
core id\t\t: 1
"""


def machine(
    *features: str, cpus: int = 4, cores: int = 2, quota: float | None = None
) -> peers_machine.Machine:
    return peers_machine.Machine(
        "Some CPU", cpus, cores, quota, tuple(features), "performance", 8 << 30, "6.1"
    )


def build(tmp_path: Path) -> peers_build.Build:
    return peers_build.Build("best", tmp_path, "0.3.36", "clang version 19", ("-DGGML_NATIVE=ON",), "abc")


# ------------------------------------------------------------------------------------------------ machine


def test_cpuinfo_counts_cores_among_allowed_cpus() -> None:
    name, features, cores = peers_machine.parse_cpuinfo(CPUINFO, {0, 1, 2})
    assert (name, cores) == ("Some CPU", 2)
    assert features == ("avx2", "fma", "avx512f", "avx512_vnni", "amx_tile")
    assert peers_machine.parse_cpuinfo(CPUINFO, {0, 1})[2] == 1


def test_threads_are_the_least_of_affinity_quota_and_cores() -> None:
    assert machine(cpus=8, cores=4).default_threads == 4
    assert machine(cpus=8, cores=4, quota=2.5).default_threads == 2
    assert machine(cpus=8, cores=4, quota=0.5).default_threads == 1


def test_machine_key_depends_on_features_only_where_results_do() -> None:
    assert machine("avx2").key != machine("avx2", "avx512f").key
    other = peers_machine.Machine("Some CPU", 4, 2, None, ("avx2",), "powersave", 8 << 30, "6.9")
    assert machine("avx2").key == other.key


def test_cpu_max() -> None:
    assert peers_machine.parse_cpu_max("max 100000\n") is None
    assert peers_machine.parse_cpu_max("150000 100000\n") == 1.5


def test_proc_stat_idle_and_iowait_are_not_busy_and_steal_is() -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    busy, total = peers_machine.parse_stat("cpu  10 1 5 100 20 2 3 4 50 60\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert (busy, total) == (25, 145)
    with pytest.raises(ValueError, match="expected the 'cpu ' line"):
        peers_machine.parse_stat("intr 1 2\n")


def test_pid_stat_survives_parentheses_in_the_name() -> None:
    text = "42 (a (b) c) S 1 42 42 0 -1 4194560 100 0 0 0 17 5 0 0 20 0 1 0 100 0 0"
    assert peers_machine.parse_pid_stat(text) == ("a (b) c", 22)


def test_busy_reason_names_the_processes() -> None:
    load = peers_machine.Load(0.5, 0.1, 2, ((7, "ninja", 1.0),))
    assert "ninja (pid 7" in (peers_machine.busy_reason(load) or "")
    assert "load average" in (peers_machine.busy_reason(peers_machine.Load(0.0, 2.5, 2, ())) or "")
    assert peers_machine.busy_reason(peers_machine.Load(0.05, 0.9, 2, ())) is None


def test_a_busy_machine_is_refused_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "observe_load", lambda: peers_machine.Load(0.9, 3.0, 2, ((7, "ninja", 1.8),)))
    with pytest.raises(peers_build.PeersError, match="ninja"):
        peers.quiet_or_refuse(force=False, wait=0)
    assert "90%" in (peers.quiet_or_refuse(force=True, wait=0) or "")
    monkeypatch.setattr(peers, "observe_load", lambda: peers_machine.Load(0.0, 0.0, 2, ()))
    assert peers.quiet_or_refuse(force=True, wait=0) is None


# -------------------------------------------------------------------------------------------------- build


def test_missing_packages_are_named_once() -> None:
    everything = dict.fromkeys(peers_build.TOOLS, "/usr/bin/x")
    assert peers_build.missing_packages(dict(everything)) == []
    nothing: dict[str, str | None] = dict.fromkeys(peers_build.TOOLS)
    assert peers_build.missing_packages(nothing) == ["clang-19", "cmake", "ninja-build"]
    assert peers_build.missing_packages({**everything, "ninja": None}) == ["ninja-build"]


def test_noamx_is_best_on_a_cpu_without_amx() -> None:
    assert peers_build.resolve_variant("noamx", machine("avx2")) == "best"
    assert peers_build.resolve_variant("noamx-openmp", machine("avx2")) == "best-openmp"
    assert peers_build.resolve_variant("noamx", machine("avx2", "amx_tile")) == "noamx"
    with pytest.raises(peers_build.PeersError, match="unknown build variant 'fast'"):
        peers_build.resolve_variant("fast", machine("avx2"))
    with pytest.raises(peers_build.PeersError, match="no AVX2"):
        peers_build.resolve_variant("avx2", machine())


def test_all_builds_are_taken_once_and_only_those_that_run() -> None:
    amx = machine("avx2", "avx512_vnni", "amx_tile")
    assert peers.resolve_variants("all", amx) == ["best", "noamx", "avx2"]
    assert peers.resolve_variants("all", machine("avx2", "avx512_vnni")) == ["best", "avx2"]
    assert peers.resolve_variants("all", machine()) == ["best"]
    assert peers.resolve_variants("avx2, best-openmp", amx) == ["avx2", "best-openmp"]
    with pytest.raises(peers_build.PeersError, match="has no AVX2"):
        peers.resolve_variants("avx2", machine())


def test_a_busy_row_says_what_share_is_kept() -> None:
    def row(measure: str, build: str, llama: float, ggfw: float | None) -> dict[str, object]:
        return {"model": "m", "build": build, "measure": measure, "llama": llama, "ggfw": ggfw}

    rows = [row("busy", "best", 30, 80), row("decode", "best", 60, 100), row("busy", "avx2", 30, None)]
    peers.keep_shares(rows)
    assert rows[0]["kept"] == {"llama": 0.5, "ggfw": 0.8}
    assert rows[2]["kept"] == {}
    assert "kept" not in rows[1]


def test_variant_flags_say_what_the_variant_is() -> None:
    assert "-DGGML_OPENMP=OFF" in peers_build.variant_flags("best", machine())
    assert "-DGGML_OPENMP=ON" in peers_build.variant_flags("best-openmp", machine())
    assert any("-mno-amx-tile" in flag for flag in peers_build.variant_flags("noamx", machine("amx_tile")))
    avx2 = peers_build.variant_flags("avx2", machine("avx2", "avx512f"))
    assert "-DGGML_NATIVE=OFF" in avx2 and not any("AVX512" in flag for flag in avx2)
    assert "-DGGML_AVX_VNNI=OFF" in avx2
    assert "-DGGML_AVX_VNNI=ON" in peers_build.variant_flags("avx2", machine("avx2", "avx_vnni"))


def test_build_digest_changes_with_every_input() -> None:
    base = ("aa", ("-DX=1",), "clang 19", machine("avx2"))
    digests = {peers_build.build_digest(*base)}
    for index, other in enumerate(("bb", ("-DX=2",), "clang 20", machine("avx2", "fma"))):
        changed = list(base)
        changed[index] = other  # type: ignore[call-overload]
        digests.add(peers_build.build_digest(*changed))  # type: ignore[arg-type]
    assert len(digests) == 5


def test_archive_version() -> None:
    assert peers_build.archive_version("x/llama_cpp_python-0.3.36.tar.gz") == "0.3.36"
    for name in ("numpy-2.0.tar.gz", "llama_cpp_python.tar.gz"):
        with pytest.raises(peers_build.PeersError, match="is not a source distribution"):
            peers_build.archive_version(name)


def archive_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_000_000_000
            tar.addfile(info, io.BytesIO(data))
    return path


def test_unpack_takes_llama_cpp_only_and_is_skipped_when_done(tmp_path: Path) -> None:
    top = "llama_cpp_python-1.0"
    archive = archive_of(
        tmp_path / f"{top}.tar.gz",
        {
            f"{top}/setup.py": b"no",
            f"{top}/vendor/llama.cpp/CMakeLists.txt": b"yes",
            f"{top}/vendor/llama.cpp/../../../evil": b"no",
        },
    )
    source = peers_build.unpack_source(archive, "00", tmp_path / "out")
    files = sorted(
        str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    assert files == [".archive-sha256", "vendor/llama.cpp/CMakeLists.txt"]
    assert (source / "CMakeLists.txt").stat().st_mtime == 1_000_000_000
    assert not (tmp_path / "evil").exists()
    (source / "CMakeLists.txt").write_text("kept")
    peers_build.unpack_source(archive, "00", tmp_path / "out")
    assert (source / "CMakeLists.txt").read_text() == "kept"
    peers_build.unpack_source(archive, "01", tmp_path / "out")
    assert (source / "CMakeLists.txt").read_text() == "yes"


def test_archive_without_llama_cpp_is_named(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "llama_cpp_python-1.0.tar.gz", {"llama_cpp_python-1.0/setup.py": b""})
    with pytest.raises(peers_build.PeersError, match="holds no vendor/llama.cpp"):
        peers_build.unpack_source(archive, "00", tmp_path / "out")


# ---------------------------------------------------------------------------------------------------- run


def test_llama_bench_output() -> None:
    assert peers_run.parse_llama_bench(json.dumps([{"samples_ts": [100.0, 300.0, 200.0]}])) == 200.0
    for bad in ([], [{"samples_ts": []}], [{"samples_ts": [1.0]}, {"samples_ts": [2.0]}]):
        with pytest.raises(ValueError, match="expected one test"):
            peers_run.parse_llama_bench(json.dumps(bad))


def test_batched_bench_output() -> None:
    line = json.dumps({"pp": 32, "tg": 32, "pl": 16, "speed_pp": 9.0, "speed_tg": 204.8})
    assert peers_run.parse_batched_bench(f"noise\n{line}\n") == 204.8
    with pytest.raises(ValueError, match="context"):
        peers_run.parse_batched_bench("noise\n")


def test_ggfw_bench_output_follows_the_contract() -> None:
    rows = [{"parallel": 16, "prompt_tokens_per_second": 10.0, "decode_tokens_per_second": 20.0}]
    assert peers_run.parse_ggfw_bench_any(json.dumps(rows), "decode_tokens_per_second") == 20.0
    with pytest.raises(ValueError, match="parallel = 1"):
        peers_run.parse_ggfw_bench(json.dumps(rows), "decode_tokens_per_second")
    rows[0]["decode_tokens_per_second"] = 0.0
    with pytest.raises(ValueError, match="positive"):
        peers_run.parse_ggfw_bench(json.dumps(rows), "decode_tokens_per_second", 16)


def words(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize("name", list(peers_run.MEASURES))
def test_both_sides_get_the_same_file_threads_and_backend(name: str, tmp_path: Path) -> None:
    task = peers_run.Task(Path("/m/x.gguf"), 3, peers_run.Lengths(), ggfw_backend="avx2")
    measure = peers_run.MEASURES[name]
    for fa in (0, 1):
        llama = measure.llama(build(tmp_path), task, fa)
        assert words(llama, "-m") == "/m/x.gguf" and words(llama, "-t") == "3"
        assert words(llama, "-fa") in (str(fa), ("off", "on")[fa])
    ggfw = measure.ggfw(["ggfw"], task)
    assert ggfw[2] == "/m/x.gguf" and words(ggfw, "--threads") == "3" and words(ggfw, "--backend") == "avx2"


def test_lengths_agree_on_both_sides(tmp_path: Path) -> None:
    lengths = peers_run.Lengths(prompt=100, new=20, depth=50, parallel=4, ctx=256)
    task = peers_run.Task(Path("x.gguf"), 2, lengths, raw=True)
    made = {
        name: (measure.llama(build(tmp_path), task, 0), measure.ggfw(["ggfw"], task))
        for name, measure in peers_run.MEASURES.items()
    }
    assert words(made["prompt"][0], "-p") == words(made["prompt"][1], "-p") == "100"
    assert words(made["decode"][0], "-n") == words(made["decode"][1], "-n") == "20"
    assert words(made["decode"][0], "-d") == words(made["decode"][1], "-p") == "50"
    assert words(made["parallel"][0], "-npl") == words(made["parallel"][1], "--parallel") == "4"
    assert words(made["parallel"][0], "-npp") == words(made["parallel"][1], "-p") == "32"
    assert words(made["parallel"][0], "-c") == "1024"
    for name in ("start", "memory"):
        assert words(made[name][0], "-c") == words(made[name][1], "--ctx") == "256"
    assert [("--raw" in ggfw) for _, ggfw in made.values()] == [True, True, True, True, False, True]


def test_a_process_is_measured() -> None:
    code = (
        "import sys, time; time.sleep(0.2); print('x', flush=True); a = bytearray(60 << 20); time.sleep(0.2)"
    )
    outcome = peers_run.run_process([sys.executable, "-c", code])
    assert outcome.stdout == "x\n" and outcome.first_byte is not None
    assert 0.2 <= outcome.first_byte < outcome.wall - 0.15
    # Between fork and exec the child is as large as this process, and Linux counts that in.
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert 60 << 20 <= outcome.peak_rss < max(400 << 20, floor + (60 << 20))
    assert 0 <= outcome.foreign <= 1


def test_a_spinner_runs_beside_and_does_not_count_as_others() -> None:
    with peers_run.Spinner() as spinner:
        os.kill(spinner._child.pid, 0)
    assert spinner.cpu > 0
    with pytest.raises(ProcessLookupError):
        os.kill(spinner._child.pid, 0)
    code = "import time; end = time.monotonic() + 0.2\nwhile time.monotonic() < end: pass\nprint(1)"
    outcome = peers_run.run_process([sys.executable, "-c", code], beside=True)
    assert outcome.stdout == "1\n"
    assert 0 <= outcome.foreign <= 1


def test_a_failing_process_shows_its_last_words() -> None:
    with pytest.raises(peers_build.PeersError, match=r"(?s)exit code 3.*no such model"):
        peers_run.run_process(
            [sys.executable, "-c", "import sys; print('no such model', file=sys.stderr); sys.exit(3)"]
        )
    with pytest.raises(peers_build.PeersError, match="signal 9"):
        peers_run.run_process([sys.executable, "-c", "import time; time.sleep(30)"], timeout=0.3)
    with pytest.raises(peers_build.PeersError, match="could not be started"):
        peers_run.run_process(["/nowhere/ggfw"])
    with pytest.raises(peers_build.PeersError, match=r"cannot be read .*: \(nothing\)"):
        peers_run.take_sample([sys.executable, "-c", ""], peers_run.MEASURES["start"].read_ggfw)


def test_an_interrupted_run_ends_its_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(30)"

    def interrupt(*_: object) -> None:
        if pid.is_file() and pid.read_text():  # it runs: now the benchmark is interrupted
            sys.exit(143)

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(SystemExit):
            peers_run.run_process([sys.executable, "-c", code])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_llama_variables_do_not_reach_the_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    assert "LLAMA_ARG_THREADS" not in peers_run.child_environment()


@pytest.mark.parametrize(("name", "chosen"), [("prompt", 1), ("start", 0)])
def test_the_better_flash_attention_setting_wins(
    name: str, chosen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"off": 0, "on": 0}

    def sample(argv: list[str], read: object, beside: bool = False) -> peers_run.Sample:
        setting = "on" if words(argv, "-fa") in ("1", "on") else "off"
        runs[setting] += 1
        if runs["off"] == 1:  # a disturbed run whose value would turn the choice round
            return peers_run.Sample(99.0 if name == "prompt" else 1.0, 1.0, 1.0, 1, 0.5)
        return peers_run.Sample(20.0 if setting == "on" else 10.0, 1.0, 1.0, 1, 0.0)

    monkeypatch.setattr(peers_run, "take_sample", sample)
    task = peers_run.Task(Path("x.gguf"), 2, peers_run.Lengths())
    choice = peers_run.choose_flash_attention(peers_run.MEASURES[name], build(tmp_path), task)
    assert choice["chosen"] == chosen
    assert runs == {"off": 3, "on": 3}  # two rounds, and one more in place of the disturbed one


# ------------------------------------------------------------------------------------------------ results


def pair(llama: float, ggfw: float | None, foreign: float = 0.0) -> dict[str, object]:
    def side(value: float) -> dict[str, float]:
        return {"value": value, "foreign_cpu": foreign}

    return {"llama": side(llama), "ggfw": None if ggfw is None else side(ggfw), "forced": None}


def test_ratio_is_the_median_of_the_pairs_ratios_not_the_ratio_of_medians() -> None:
    summary = peers_results.summarise([pair(100, 200), pair(10, 30), pair(50, 50)], 3)
    assert (summary.llama, summary.ggfw, summary.ratio) == (50, 50, 2.0)
    assert summary.spread == (1.0, 3.0) and summary.disturbed == 0
    alone = peers_results.summarise([pair(100, None)], 1)
    assert alone.ratio is None and alone.llama == 100
    with pytest.raises(ValueError, match="no finished pair"):
        peers_results.summarise([], 1)


def test_disturbed_pairs_are_run_again_and_left_out() -> None:
    calm, loud = pair(100, 200), pair(10, 90, foreign=0.5)
    assert peers_results.wants_pair([calm, loud, calm], 3) and not peers_results.wants_pair(
        [calm, loud, calm], 2
    )
    assert not peers_results.wants_pair([loud] * 6, 3)
    assert not peers_results.wants_pair([loud] * 3, 3, timed=False)
    assert peers_results.summarise([loud] * 3, 3, timed=False).disturbed == 0
    summary = peers_results.summarise([calm, loud, calm, loud], 3)
    assert (summary.ratio, summary.pairs, summary.disturbed, summary.calm) == (2.0, 2, 2, True)
    summary = peers_results.summarise([loud, loud, loud, calm, loud, loud], 3)
    assert (summary.ratio, summary.pairs, summary.disturbed, summary.calm) == (9.0, 6, 5, False)


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=9), st.floats(0.01, 100.0)
)
def test_ratio_ignores_a_drift_that_hits_both_sides_of_a_pair(
    values: list[tuple[float, float]], drift: float
) -> None:
    plain = peers_results.summarise([pair(a, b) for a, b in values], len(values))
    drifted = peers_results.summarise(
        [pair(a * drift**i, b * drift**i) for i, (a, b) in enumerate(values)], len(values)
    )
    assert drifted.ratio == pytest.approx(plain.ratio)


def test_results_survive_and_entries_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    results = peers_results.Results(path)
    facts = {"machine": "m", "measure": "prompt"}
    results.entry(facts)["pairs"].append(pair(1, 2))
    results.save()
    again = peers_results.Results(path)
    assert len(again.entry(facts)["pairs"]) == 1
    assert again.entry({**facts, "measure": "decode"})["pairs"] == []
    assert again.entry(facts, fresh=True)["pairs"] == []
    assert peers_results.entry_key({"a": 1, "b": 2}) == peers_results.entry_key({"b": 2, "a": 1})
    path.write_text("{")
    with pytest.raises(ValueError, match="--fresh"):
        peers_results.Results(path)


def test_run_pairs_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def sample(argv: list[str], read: object, beside: bool = False) -> peers_run.Sample:
        order.append("ggfw" if argv[0] == "ggfw" else "llama")
        if len(order) == 4:
            raise KeyboardInterrupt
        return peers_run.Sample(float(len(order)), 1.0, 1.0, 1, 0.0)

    monkeypatch.setattr(peers, "take_sample", sample)
    results = peers_results.Results(tmp_path / "r.json")
    task = peers_run.Task(Path("x.gguf"), 2, peers_run.Lengths())
    entry = results.entry({"m": 1})
    entry["flash_attention"] = {"chosen": 1}
    measure = peers_run.MEASURES["prompt"]
    with pytest.raises(KeyboardInterrupt):
        peers.run_pairs(measure, build(tmp_path), task, ["ggfw"], entry, results, 3, None)
    resumed = peers_results.Results(tmp_path / "r.json")
    entry = resumed.entry({"m": 1})
    assert len(entry["pairs"]) == 1
    peers.run_pairs(measure, build(tmp_path), task, ["ggfw"], entry, resumed, 3, "busy")
    assert len(entry["pairs"]) == 3 and [one["forced"] for one in entry["pairs"]] == [None, "busy", "busy"]
    assert order == ["llama", "ggfw"] * 4
    report = peers.report_of(Path("x.gguf"), measure, task, entry, 2)
    assert report["pairs"] == 2 and report["forced"] and report["title"] == "prompt 512 tokens"


def test_table_has_one_line_per_row_and_marks_forced() -> None:
    report = {
        "model": "x.gguf", "build": "avx2", "title": "prompt 512 tokens", "unit": "tok/s", "higher_is_better": True,
        "llama": 100.0, "ggfw": 250.0, "ratio": 2.5, "spread": (2.4, 2.6), "pairs": 5, "disturbed": 1,
        "foreign_cpu": 0.02, "forced": True, "calm": True, "flash_attention": {"chosen": 0},
    }  # fmt: skip
    text = peers_results.format_table(peers_results.table_rows([report]))
    lines = text.splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    for part in (
        "100 tok/s",
        "250 tok/s",
        "2.50x (higher is better)",
        "FORCED",
        "1 disturbed pairs left out",
        "| off",
    ):
        assert part in lines[2]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "s", "–"), (0.3664, "s", "0.366 s"), (166e6, "bytes", "166 MB"), (69.74, "tok/s", "69.7 tok/s")],
)
def test_values_are_readable(value: float | None, unit: str, text: str) -> None:
    assert peers_results.format_value(value, unit) == text


# ------------------------------------------------------------------------------------------- command line


def test_only() -> None:
    assert peers.parse_only("") == ("prompt", "decode", "parallel", "busy", "start", "memory")
    assert peers.parse_only("start, prompt") == ("prompt", "start")
    with pytest.raises(peers_build.PeersError, match="unknown measure 'speed'"):
        peers.parse_only("prompt,speed")


def test_default_models_are_found_by_name_in_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("gemma-3-270m-it-Q4_K_M.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf", "other.gguf"):
        (tmp_path / "a" / "b" / name).touch()
    found = peers.find_models([tmp_path / "absent", tmp_path])
    assert [path.name for path in found] == ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-it-Q4_K_M.gguf"]
    folders = peers.model_folders({"GGFW_TEST_MODELS": "/one:/two", "XDG_CACHE_HOME": "/cache"})
    assert folders[:3] == [Path("/one"), Path("/two"), Path("/cache/ggfw")]


def test_backend_follows_the_build() -> None:
    amx = machine("avx2", "avx512_vnni", "amx_tile")
    assert peers.default_backend("avx2", amx) == "avx2"
    assert peers.default_backend("noamx", amx) == "avx512"
    assert peers.default_backend("noamx", machine("avx2", "avx512_vnni")) is None
    assert peers.default_backend("best", amx) is None


def test_fingerprint_follows_the_source(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text("1")
    first = peers.source_fingerprint(tmp_path)
    (tmp_path / "core" / "notes.txt").write_text("ignored")
    assert peers.source_fingerprint(tmp_path) == first
    (tmp_path / "core" / "a.py").write_text("2")
    assert peers.source_fingerprint(tmp_path) != first


def test_mistakes_are_one_sentence_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peers.main(["--only", "nonsense"]) == 1
    assert peers.main([str(tmp_path / "absent.gguf")]) == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 2 and "unknown measure" in errors[0] and "is not a file" in errors[1]
    for wrong in (["--pairs", "0"], ["--ctx", "100"]):
        with pytest.raises(SystemExit) as stop:
            peers.main(wrong)
        assert stop.value.code == 2
