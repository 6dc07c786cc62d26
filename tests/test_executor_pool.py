"""The thread pool and the plan runner: tiny regions, several callers, fork, abort, kernels with commit and then."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_rig import OUTPUTS, SEQUENCES, UNITS, Part, Rig, View, ffi, lib

from ggfw.execute.library import custom_kernel
from ggfw.kernels_c import get_include
from ggfw.sampling import Params
from ggfw.sampling.native import NativeSampler

OK, ABORTED, ERR_ARGUMENT, ERR_BATCH = 0, 1, -2, -3
SCALE = 2


@pytest.fixture(autouse=True)
def leave_the_pool_as_it_was() -> Iterator[None]:
    before = lib.ggfw_threads_get()
    yield
    lib.ggfw_threads_set(before, 100)


def chain(n_steps: int, width: int = 1024, rows: int = 40, threads: int = 2) -> tuple[Rig, View]:
    """x = x * 1 + 1, n_steps times over the same buffer: any lost, doubled or early chunk shows in the sum."""
    rig = Rig(UNITS[0], max_rows=rows, threads=threads)
    x = rig.buffer(width)
    for _ in range(n_steps):
        rig.step(
            "elementwise", [x], [x], union="elementwise", params={"kind": SCALE, "alpha": 1.0, "beta": 1.0}
        )
    return rig.start(), x


def run_chain(rig: Rig, x: View, n_steps: int, rows: int) -> None:
    rig.write(x, np.zeros((rows, x.width)))
    assert rig.run([Part(rows)]) == OK
    assert (rig.read(x, rows) == n_steps).all()


@pytest.mark.parametrize("threads", range(1, 9))
def test_thousands_of_tiny_regions(threads: int) -> None:
    rig, x = chain(1500, width=512, rows=32, threads=threads)
    with rig:
        for rows in (32, 7, 1, 9):  # several chunks, or one
            run_chain(rig, x, 1500, rows)


def test_workers_that_sleep_come_back() -> None:
    rig, x = chain(20)
    with rig:
        for spin in (0, 1, 1000):
            assert lib.ggfw_threads_set(3, spin) == OK
            for _ in range(30):
                run_chain(rig, x, 20, 40)
                time.sleep(0.002)


def test_resizing_between_steps() -> None:
    rig, x = chain(50)
    with rig:
        for threads in (1, 4, 2, 8, 3, 1, 2):
            assert lib.ggfw_threads_set(threads, 100) == OK
            assert lib.ggfw_threads_get() == threads
            run_chain(rig, x, 50, 40)
    for bad in [(0, 100), (-1, 100), (257, 100), (2, -1)]:
        assert lib.ggfw_threads_set(*bad) == ERR_ARGUMENT


@pytest.mark.parametrize("callers", [2, 5])
def test_several_callers_share_the_pool(callers: int) -> None:
    chains = [chain(60, threads=3) for _ in range(callers)]
    failures: list[BaseException] = []

    def work(rig: Rig, x: View) -> None:
        try:
            for _ in range(25):
                run_chain(rig, x, 60, 40)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=c) for c in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for rig, _ in chains:
        rig.__exit__()
    assert not failures


def test_two_callers_of_one_executor() -> None:
    rig, x = chain(200)
    with rig:
        batch = rig.make_batch([Part(40)])
        statuses = []
        rig.write(x, np.zeros((40, x.width)))
        run = lambda: statuses.append(lib.ggfw_executor_run(rig.executor, batch, 0, -1))  # noqa: E731
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert statuses == [OK] * 4
        assert (rig.read(x, 40) == 800).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork() -> None:
    """The child rebuilds the pool; the parent's goes on."""
    rig, x = chain(100, threads=3)
    with rig:
        run_chain(rig, x, 100, 40)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for _ in range(5):
                        run_chain(rig, x, 100, 40)
                    code = 0
                finally:
                    os._exit(code)
            run_chain(rig, x, 100, 40)
            deadline = time.monotonic() + 20
            while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
                assert time.monotonic() < deadline, "the child hangs"
                time.sleep(0.005)
            assert os.waitstatus_to_exitcode(done[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_while_another_thread_computes() -> None:
    rig, x = chain(3000, threads=3)
    with rig:
        batch = rig.make_batch([Part(40)])
        thread = threading.Thread(target=lambda: lib.ggfw_executor_run(rig.executor, batch, 0, -1))
        thread.start()
        time.sleep(0.003)
        child = os.fork()
        if child == 0:
            small, y = chain(10, threads=2)
            code = 0 if small.run([Part(40)]) == OK else 1
            os._exit(code)
        thread.join(60)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_abort() -> None:
    rig, x = chain(8000, width=8192, rows=64)
    with rig:
        batch = rig.make_batch([Part(64)])
        result: list[Any] = []

        def work() -> None:
            result.append(lib.ggfw_executor_run(rig.executor, batch, 0, -1))
            result.append(time.monotonic())

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.05)
        asked = time.monotonic()
        lib.ggfw_executor_abort(rig.executor)
        thread.join(30)
        assert result[0] == ABORTED
        assert result[1] - asked < 0.05
        assert lib.ggfw_executor_run(rig.executor, batch, 0, 20) == OK  # the next run is not concerned


def test_ranges_of_steps_and_the_clock() -> None:
    rig, x = chain(10)
    with rig:
        rig.write(x, np.zeros((40, x.width)))
        lib.ggfw_executor_profile(rig.executor, 1)
        assert rig.run([Part(40)], first=3, last=7) == OK
        assert (rig.read(x, 40) == 4).all()
        times = ffi.new("int64_t[10]")
        lib.ggfw_executor_timings(rig.executor, times)
        assert [t > 0 for t in times] == [3 <= i < 7 for i in range(10)]
        lib.ggfw_executor_profile(rig.executor, 0)
        assert rig.run([Part(40)], first=10) == OK  # nothing to do
        for bad in ((-1, 5), (4, 3), (0, 11)):
            assert rig.run([Part(40)], first=bad[0], last=bad[1]) == ERR_ARGUMENT


def test_steps_run_for_what_the_batch_wants() -> None:
    with Rig(UNITS[0]) as rig:
        x = rig.buffer(64)
        for needed_for, amount in ((0, 1.0), (1, 10.0), (2, 100.0), (3, 1000.0), (4, 10000.0)):
            rig.step("elementwise", [x], [x], union="elementwise", needed_for=needed_for,
                     params={"kind": SCALE, "alpha": 1.0, "beta": amount})  # fmt: skip
        rig.start()
        for wants, expected in ((0, 1), (1, 1011), (2, 1101), (3, 1111), (4, 10001)):
            rig.write(x, np.zeros((3, 64)))
            assert rig.run([Part(3)], wants=wants) == OK
            assert (rig.read(x, 3) == expected).all()


# -- batches are checked -----------------------------------------------------------------------------------------------


def spoil(batch: Any, name: str) -> None:
    """Break one thing of a good batch."""
    s = batch.segments
    if name == "rows":
        batch.n_rows = 65
    elif name == "negative":
        batch.n_rows = -1
    elif name == "decode rows":
        batch.n_decode_rows = 5
    elif name == "outputs":
        batch.n_outputs = 9
    elif name == "gap":
        s[1].row = 3
    elif name == "length":
        s[2].n_rows = 2
    elif name == "class":
        s[0].row_class = 2
    elif name == "position":
        s[0].position = -1
    elif name == "row positions":
        ffi.cast("int32_t *", batch.positions)[1] = 9
    elif name == "row segment":
        ffi.cast("int32_t *", batch.row_segment)[0] = 2
    elif name == "output row":
        ffi.cast("int32_t *", batch.output_rows)[0] = 64
    elif name == "output order":
        batch.n_decode_outputs = 0
    elif name == "segment output":
        s[2].output = 0
    elif name == "page":
        ffi.cast("int32_t *", batch.pages)[0] = 4
    elif name == "no page":
        ffi.cast("int32_t *", batch.pages)[0] = -1
    elif name == "no positions":
        batch.positions = ffi.NULL
    elif name == "samplers":
        batch.samplers = ffi.new("ggfw_sampler *[2]")
        batch.sampled = ffi.NULL


SPOILED = ["rows", "negative", "decode rows", "outputs", "gap", "length", "class", "position", "row positions",
           "row segment", "output row", "output order", "segment output", "page", "no page", "no positions",
           "samplers"]  # fmt: skip


@pytest.mark.parametrize("name", ["nothing", *SPOILED])
def test_bad_batches_are_refused(name: str) -> None:
    with Rig(UNITS[0], max_rows=64, max_outputs=8) as rig:
        pool = rig.pool(n_pages=4, d_k=16)
        x = rig.buffer(16)
        rig.step("rope_store", [x, x, x], [x], union="rope_store",
                 params={"n_head": 1, "n_head_kv": 1, "d_k": 16, "d_v": 16, "pool": pool, "q_scale": 1.0})  # fmt: skip
        rig.start()
        parts = [Part(1, 0, n_outputs=1, tables=[[2]]), Part(2, 3, tables=[[1]]),
                 Part(4, 14, prompt=True, n_outputs=1, tables=[[0, 3]])]  # fmt: skip
        batch = rig.make_batch(parts)
        spoil(batch, name)
        status = lib.ggfw_executor_run(rig.executor, batch, 0, -1)
        assert status == (OK if name == "nothing" else ERR_BATCH)
        assert lib.ggfw_executor_run(rig.executor, ffi.NULL, 0, -1) == ERR_ARGUMENT


def test_bad_plans_are_refused() -> None:
    def refused(build: Any) -> bool:
        rig = Rig(UNITS[0])
        build(rig)
        try:
            rig.start().__exit__()
        except AssertionError:
            return True
        return False

    def beyond(rig: Rig) -> None:
        x = rig.buffer(64)
        rig.step("copy", [x], [View(x.offset + 64, x.stride, 64)])

    def absent_elsewhere(rig: Rig) -> None:
        """No columns, and rows beyond all memory: kernels compute places of rows before they look at the width."""
        rig.step("copy", [rig.buffer(64), View(1 << 62, 1 << 20, 0)], [rig.buffer(64)])

    def wrong_pool(rig: Rig) -> None:
        rig.pool(n_pages=1, d_k=16, d_v=16)
        x = rig.buffer(32)
        rig.step("attention", [x], [x], union="attention",
                 params={"n_head": 2, "n_head_kv": 1, "d_k": 16, "d_v": 16, "layer": 1})  # fmt: skip

    def wrong_width(rig: Rig) -> None:
        rig.pool(n_pages=1, d_k=16, d_v=16)
        x = rig.buffer(32)
        rig.step(
            "attention",
            [x],
            [x],
            union="attention",
            params={"n_head": 2, "n_head_kv": 1, "d_k": 32, "d_v": 16},
        )

    def no_kernel(rig: Rig) -> None:
        rig.step("copy", kernel=(ffi.NULL, ffi.NULL))

    assert not refused(lambda rig: rig.step("copy", [rig.buffer(64)], [rig.buffer(64)]))
    assert all(map(refused, (beyond, absent_elsewhere, wrong_pool, wrong_width, no_kernel)))


def test_an_empty_batch_is_fine() -> None:
    rig, x = chain(3)
    with rig:
        rig.write(x, np.zeros((40, x.width)))
        assert rig.run([]) == OK
        assert not rig.read(x, 40).any()


# -- sampling ----------------------------------------------------------------------------------------------------------


def test_sampling_rows_and_host_rows() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    logits[3] = -np.inf
    with Rig(UNITS[0], max_outputs=4) as rig:
        x = rig.buffer(1000)
        rig.step("sample", [x], domain=OUTPUTS, needed_for=1)
        rig.start()
        rig.write(x, logits)
        samplers = [NativeSampler(ffi, lib, Params(temperature=0)) for _ in range(3)]
        first, second, third = (sampler.pointer for sampler in samplers)
        pointers = ffi.new("ggfw_sampler *[4]", [first, ffi.NULL, second, third])
        sampled = ffi.new("int32_t[4]", [77] * 4)
        batch = rig.make_batch([Part(4, n_outputs=4)], wants=1)
        batch.samplers, batch.sampled = pointers, sampled
        assert lib.ggfw_executor_run(rig.executor, batch, 0, -1) == OK
        assert list(sampled) == [logits[0].argmax(), 77, logits[2].argmax(), -1]
        sampled[0:4] = [77] * 4
        batch.wants = 2
        assert lib.ggfw_executor_run(rig.executor, batch, 0, -1) == OK
        assert list(sampled) == [77] * 4


# -- kernels of others: commit, then, shared memory, scratch -----------------------------------------------------------

FOREIGN = r"""
#include <ggfw_kernels.h>
#include <string.h>

static float *row_of(const ggfw_run *run, const ggfw_view *v, int row) {
    return (float *)(run->arena + v->offset + (long)row * v->stride);
}
/* First region: the sum of each row, through private scratch, to shared memory (in commit). Second: every row gets the
 * total of all rows of its part. */
static int32_t chunks(const ggfw_step *s, const ggfw_run *r, int32_t b, int32_t e) {
    (void)s; (void)r;
    return e - b;
}
static void sum_run(const ggfw_step *s, const ggfw_run *r, int32_t b, int32_t e, int32_t c, void *scratch) {
    (void)e;
    float *x = row_of(r, &s->in[0], b + c), total = 0;
    for (int i = 0; i < s->in[0].width; i++) total += x[i];
    *(float *)scratch = total * s->params.custom.f[0];
}
static void sum_commit(const ggfw_step *s, const ggfw_run *r, int32_t b, int32_t e, int32_t c, void *scratch) {
    (void)s; (void)e;
    ((float *)r->shared)[b + c] = *(float *)scratch;
}
static int64_t scratch_size(const ggfw_step *s, const ggfw_run *r) { (void)s; (void)r; return 64; }
static int64_t shared_size(const ggfw_step *s, const ggfw_run *r) { (void)s; return r->max_rows * 4L; }
static void spread_run(const ggfw_step *s, const ggfw_run *r, int32_t b, int32_t e, int32_t c, void *scratch) {
    (void)scratch;
    float total = 0;
    for (int i = b; i < e; i++) total += ((float *)r->shared)[i];
    for (int i = 0; i < s->out[0].width; i++) row_of(r, &s->out[0], b + c)[i] = total;
}
static const ggfw_kernel spread = {.name = "spread", .op = GGFW_OP_CUSTOM, .n_chunks = chunks, .run = spread_run};
__attribute__((visibility("default"))) const ggfw_kernel sum_decode = {
    .name = "sum_decode", .op = GGFW_OP_CUSTOM, .scratch_size = scratch_size, .n_chunks = chunks, .run = sum_run,
    .commit = sum_commit, .shared_size = shared_size, .then = &spread};
__attribute__((visibility("default"))) const ggfw_kernel sum_prompt = {
    .name = "sum_prompt", .op = GGFW_OP_CUSTOM, .scratch_size = scratch_size, .n_chunks = chunks, .run = sum_run,
    .commit = sum_commit, .shared_size = shared_size, .then = &spread};
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "op.c").write_text(FOREIGN)
    subprocess.run([*compiler.split(), "-O1", "-shared", "-fPIC", f"-I{get_include()}", "op.c", "-o", "op.so"],
                   cwd=folder, check=True)  # fmt: skip
    return folder / "op.so"


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_foreign_kernels(foreign: Path, same: bool, threads: int) -> None:
    decode, prompt = (custom_kernel(str(foreign), name) for name in ("sum_decode", "sum_prompt"))
    x = np.random.default_rng(1).integers(-50, 50, (12, 32)).astype(np.float32)
    with Rig(UNITS[0], max_rows=12, threads=threads) as rig:
        a, y = rig.buffer(32), rig.buffer(32)
        rig.step("custom", [a], [y], union="custom", kernel=(decode, decode if same else prompt))
        rig.steps[0]["params"] = {"f": [2.0, *[0.0] * 7], "state": -1}
        rig.start()
        rig.write(a, x)
        for _ in range(50):
            assert rig.run([Part(2), Part(3), Part(7, prompt=True)]) == OK
            got = rig.read(y, 12)
            totals = [2 * x.sum()] * 12 if same else [2 * x[:5].sum()] * 5 + [2 * x[5:].sum()] * 7
            np.testing.assert_array_equal(got, np.repeat(np.array(totals, np.float32)[:, None], 32, 1))
            rig.write(y, np.zeros((12, 32)))


def test_sequences_are_limited_by_the_outputs() -> None:
    with Rig(UNITS[0], max_rows=8, max_outputs=2) as rig:
        x, y = rig.buffer(16), rig.buffer(16)
        rig.step("pool", [x], [y], domain=SEQUENCES, union="pooling", params={"kind": 0})
        rig.start()
        assert rig.run([Part(1), Part(1)]) == OK
        assert rig.run([Part(1), Part(1), Part(1)]) == ERR_BATCH


def test_memory() -> None:
    n = 5 << 20
    for huge in (0, 1):
        memory = lib.ggfw_memory_new(n, huge)
        assert memory != ffi.NULL and int(ffi.cast("intptr_t", memory)) % 4096 == 0
        data = np.frombuffer(ffi.buffer(memory, n), np.uint8)
        assert not data.any()
        data[:] = 1
        lib.ggfw_memory_free(memory, n)
    assert lib.ggfw_memory_new(0, 0) == ffi.NULL
    assert lib.ggfw_memory_new(1 << 60, 0) == ffi.NULL
