/* linear_bench.c: what the matrix products of a kernel library reach, next to a plain read in the same run.
 *
 *     gcc -O2 -mavx2 -I kernels_c/include kernels_c/bench/linear_bench.c -o linear_bench -ldl -lpthread
 *     linear_bench LIBRARY FORMAT N K [ROWS...]
 *
 * The weights are copied until they fill LINEAR_BENCH_MB (default 92) megabytes, as the layers of a model do; a pass runs all
 * copies, with a barrier after each. Per number of rows and threads it prints the best and the median pass: packed
 * bytes per second, products per second and core, and the share of the plain read of the same bytes, measured in turn
 * with it. "cpu" figures divide by the processor time of the threads instead of the clock: what is left of a
 * measurement while other programs run. One result per row is compared with a float64 product; a wrong one ends the
 * program.
 * Environment: LINEAR_BENCH_MB, LINEAR_BENCH_PREFETCH (bytes), LINEAR_BENCH_PASSES.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../src/activation.h"
#include "ggfw_kernels.h"

enum { MAX_COPIES = 4096, MAX_THREADS = 16 };

static double clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return clock_of(CLOCK_MONOTONIC); }

static void *pages(int64_t bytes)
{
    const int64_t huge = 2 << 20;
    uint8_t *at = mmap(NULL, (size_t)(bytes + 2 * huge), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(fprintf(stderr, "no memory\n"));
    at = (uint8_t *)(((uintptr_t)at + (uintptr_t)huge - 1) / (uintptr_t)huge * (uintptr_t)huge);
    madvise(at, (size_t)(bytes + huge), MADV_HUGEPAGE);
    memset(at, 0, (size_t)bytes);
    return at;
}

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

/* ---- the work of a pass ------------------------------------------------------------------------------------------- */

static struct {
    const ggfw_kernel *kernel;
    ggfw_step steps[MAX_COPIES];
    ggfw_weight weights[MAX_COPIES];
    ggfw_run run;
    void *scratch[MAX_THREADS];
    int copies, rows, threads;
    int64_t bytes; /* of one copy */
    int plain;     /* 1: read the bytes instead */
    double cpu[MAX_THREADS]; /* processor time in the chunks of this pass */
} work;

static _Atomic uint64_t sink;
static _Atomic int arrived, phase;

static void barrier(void)
{
    const int seen = atomic_load(&phase);
    if (atomic_fetch_add(&arrived, 1) == work.threads - 1) {
        atomic_store(&arrived, 0);
        atomic_store(&phase, seen + 1);
    } else {
        while (atomic_load(&phase) == seen) _mm_pause();
    }
}

static void pass(int thread)
{
    work.cpu[thread] = 0;
    for (int c = 0; c < work.copies; c++) {
        const double start = clock_of(CLOCK_THREAD_CPUTIME_ID);
        if (work.plain) {
            const __m256i *at = (const __m256i *)((const uint8_t *)work.weights[c].data
                                                  + work.bytes / 64 * thread / work.threads * 64);
            const __m256i *end = (const __m256i *)((const uint8_t *)work.weights[c].data
                                                   + work.bytes / 64 * (thread + 1) / work.threads * 64);
            __m256i a = _mm256_setzero_si256(), b = a, d = a, e = a;
            for (; at + 4 <= end; at += 4) {
                _mm_prefetch((const char *)at + work.run.prefetch, _MM_HINT_T0);
                _mm_prefetch((const char *)at + work.run.prefetch + 64, _MM_HINT_T0);
                a = _mm256_xor_si256(a, at[0]);
                b = _mm256_xor_si256(b, at[1]);
                d = _mm256_xor_si256(d, at[2]);
                e = _mm256_xor_si256(e, at[3]);
            }
            a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(d, e));
            atomic_fetch_xor(&sink, (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 2));
        } else {
            const int n = work.kernel->n_chunks(&work.steps[c], &work.run, 0, work.rows);
            for (int i = n * thread / work.threads; i < n * (thread + 1) / work.threads; i++)
                work.kernel->run(&work.steps[c], &work.run, 0, work.rows, i, work.scratch[thread]);
        }
        work.cpu[thread] += clock_of(CLOCK_THREAD_CPUTIME_ID) - start;
        barrier();
    }
}

static _Atomic int go, stop;

static void *worker(void *index)
{
    const int thread = (int)(intptr_t)index;
    int seen = 0;
    for (;;) {
        while (atomic_load(&go) == seen && !atomic_load(&stop)) _mm_pause();
        if (atomic_load(&stop)) return NULL;
        seen++;
        pass(thread);
    }
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- activations and the check ---------------------------------------------------------------------------------------- */

static float noise(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

static int64_t round64(int64_t n) { return (n + 63) / 64 * 64; }

/* Quantise as the header says and put the values that the kernel sees back into x. */
static void quantize(int type, float *x, int64_t n, uint8_t *row)
{
    const int block = activation_block(type), most = type == GGFW_Q16 ? 16256 : 127;
    float *d = (float *)(row + activation_scales(type, n)), *total = (float *)(row + activation_totals(type, n));
    int32_t *sum = (int32_t *)(row + activation_sums(type, n));
    memset(row, 0, (size_t)activation_row_bytes(type, n));
    for (int64_t b = 0; b < n / block; b++) {
        float top = 0;
        for (int k = 0; k < block; k++) top = fmaxf(top, fabsf(x[block * b + k]));
        d[b] = top / (float)most;
        for (int64_t at = block * b; at < block * (b + 1); at++) {
            const int q = (int)lrintf(x[at] / d[b]), high = (q + 64) >> 7;
            int8_t *to = (int8_t *)row + (type == GGFW_Q16 ? at / 32 * 64 + at % 32 : at);
            to[0] = (int8_t)(type == GGFW_Q16 ? high : q);
            if (type == GGFW_Q16) to[32] = (int8_t)(q - 128 * high);
            sum[at / 16] += q;
            x[at] = d[b] * (float)q;
            total[at / 32] += x[at];
        }
    }
}

static void check(const float *x, const uint8_t *y, int64_t stride, int64_t n_in)
{
    float *w = malloc((size_t)n_in * 4);
    const ggfw_weight *last = &work.weights[work.copies - 1];
    for (int r = 0; r < work.rows; r++) {
        const int32_t id = (int32_t)(rand() % last->n_out);
        work.kernel->unpack_rows(last->data, last->n_out, n_in, &id, 1, w, n_in * 4);
        double want = 0, size = 0;
        for (int64_t k = 0; k < n_in; k++) {
            want += (double)w[k] * x[r * n_in + k];
            size += fabs((double)w[k] * x[r * n_in + k]);
        }
        const double got = ((const float *)(y + r * stride))[id];
        if (!(fabs(got - want) <= 1e-5 * size)) {
            fprintf(stderr, "row %d, column %d: got %g, expected %g\n", r, id, got, want);
            exit(1);
        }
    }
    free(w);
}

int main(int argc, char **argv)
{
    if (argc < 5) return fprintf(stderr, "usage: linear_bench LIBRARY FORMAT N K [ROWS...]\n"), 2;
    static const struct {
        const char *name;
        int id, block, bytes, halves[2];
    } formats[] = {
        { "F32", 0, 1, 4, { -1, -1 } },       { "F16", 1, 1, 2, { -1, -1 } },       { "BF16", 30, 1, 2, { -1, -1 } },
        { "Q4_0", 2, 32, 18, { 0, -1 } },     { "Q4_1", 3, 32, 20, { 0, 2 } },      { "Q5_0", 6, 32, 22, { 0, -1 } },
        { "Q5_1", 7, 32, 24, { 0, 2 } },      { "Q8_0", 8, 32, 34, { 0, -1 } },     { "Q2_K", 10, 256, 84, { 80, 82 } },
        { "Q3_K", 11, 256, 110, { 108, -1 } }, { "Q4_K", 12, 256, 144, { 0, 2 } },  { "Q5_K", 13, 256, 176, { 0, 2 } },
        { "Q6_K", 14, 256, 210, { 208, -1 } }, { "IQ4_NL", 20, 32, 18, { 0, -1 } }, { "IQ4_XS", 23, 256, 136, { 0, -1 } },
        { "MXFP4", 39, 32, 17, { -1, -1 } },
    };
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    const ggfw_kernel_table *(*get)(void) = (const ggfw_kernel_table *(*)(void))dlsym(library, "ggfw_kernels");
    const ggfw_kernel_table *table = get();
    const int64_t n_out = atoll(argv[3]), n_in = atoll(argv[4]);
    size_t f = 0;
    const int wanted = (int)setting("LINEAR_BENCH_ACTIVATION", GGFW_Q16);
    while (f < sizeof formats / sizeof *formats && strcmp(formats[f].name, argv[2])) f++;
    if (f == sizeof formats / sizeof *formats) return fprintf(stderr, "unknown format %s\n", argv[2]), 2;
    const int is_float = formats[f].block == 1;
    for (int i = 0; i < table->n_kernels; i++)
        if (table->kernels[i].op == GGFW_OP_LINEAR && table->kernels[i].format == formats[f].id
            && (is_float || table->kernels[i].activation == wanted))
            work.kernel = &table->kernels[i];
    if (!work.kernel) return fprintf(stderr, "no such kernel\n"), 1;

    if (n_in % work.kernel->n_in_multiple)
        return fprintf(stderr, "%s wants columns in multiples of %d\n", argv[2], work.kernel->n_in_multiple), 2;

    /* one random matrix, packed as often as the copies ask for */
    const int64_t file_bytes = n_out * n_in / formats[f].block * formats[f].bytes;
    uint8_t *file = malloc((size_t)file_bytes);
    for (int64_t i = 0; i < file_bytes; i++) file[i] = (uint8_t)(rand() >> 7);
    for (int64_t b = 0; b < file_bytes / formats[f].bytes; b++) {
        uint8_t *at = file + b * formats[f].bytes;
        const uint16_t half = 0x2000; /* 2^-7 */
        for (int h = 0; h < 2; h++)
            if (formats[f].halves[h] >= 0) memcpy(at + formats[f].halves[h], &half, 2);
        const float value = noise();
        if (formats[f].id == 0) memcpy(at, &value, 4);
        if (formats[f].id == 1) at[1] = at[1] & 0xbf;
        if (formats[f].id == 30) memcpy(at, (const uint8_t *)&value + 2, 2);
        if (formats[f].id == 39) at[0] = 120;
    }
    work.bytes = work.kernel->pack_size(n_out, n_in);
    work.copies = (int)(setting("LINEAR_BENCH_MB", 92) * 1000000 / work.bytes);
    if (work.copies < 1) work.copies = 1;
    if (work.copies > MAX_COPIES) work.copies = MAX_COPIES;
    const int64_t copy_stride = (work.bytes + 63) / 64 * 64;
    uint8_t *packed = pages(copy_stride * work.copies + 65536);
    const double pack_start = now();
    for (int c = 0; c < work.copies; c++) work.kernel->pack(file, n_out, n_in, 0, n_out, packed + c * copy_stride);
    const double pack_time = now() - pack_start;
    const double total = (double)work.bytes * work.copies;
    printf("%s %s %lld x %lld, %.1f MB packed (one thread: %.0f ms, %.2f GB/s)\n", table->name, argv[2],
           (long long)n_out, (long long)n_in, total * 1e-6, pack_time * 1e3, total * 1e-9 / pack_time);

    static const char *standard[] = { "1", "4", "16", "512" };
    const char **list = argc > 5 ? (const char **)argv + 5 : standard;
    const int n_list = argc > 5 ? argc - 5 : 4;
    work.run.prefetch = (int32_t)setting("LINEAR_BENCH_PREFETCH", 2048);
    const int passes = (int)setting("LINEAR_BENCH_PASSES", 9);
    for (int l = 0; l < n_list; l++) {
        work.rows = atoi(list[l]);
        const int type = work.kernel->activation;
        const int64_t in_stride = round64(activation_row_bytes(type, n_in)), out_stride = round64(n_out * 4) + 64;
        float *x = malloc((size_t)(work.rows * n_in) * 4);
        uint8_t *arena = pages((in_stride + out_stride) * work.rows);
        for (int64_t i = 0; i < work.rows * n_in; i++) x[i] = noise();
        for (int r = 0; r < work.rows; r++) {
            if (type != GGFW_F32)
                quantize(type, x + r * n_in, n_in, arena + r * in_stride);
            else
                memcpy(arena + r * in_stride, x + r * n_in, (size_t)n_in * 4);
        }
        work.run.arena = arena;
        work.run.max_rows = work.rows;
        for (int c = 0; c < work.copies; c++) {
            work.weights[c] = (ggfw_weight){ packed + c * copy_stride, formats[f].id, 1, n_out, n_in, 1, 0, work.kernel };
            ggfw_step *s = &work.steps[c];
            memset(s, 0, sizeof *s);
            s->op = GGFW_OP_LINEAR;
            s->in[0] = (ggfw_view){ 0, (int32_t)in_stride, (int32_t)n_in, work.kernel->activation, 0 };
            s->out[0] = (ggfw_view){ in_stride * work.rows, (int32_t)out_stride, (int32_t)n_out, GGFW_F32, 0 };
            s->weight[0] = &work.weights[c];
            s->params.linear.n_parts = 1;
            s->params.linear.scale = 1;
        }
        for (int threads = 1; threads <= 2; threads++) {
            work.threads = work.run.n_threads = threads;
            pthread_t ids[MAX_THREADS];
            atomic_store(&go, 0);
            atomic_store(&stop, 0);
            for (int t = 0; t < threads; t++) {
                work.scratch[t] = pages(work.kernel->scratch_size(&work.steps[0], &work.run));
                if (t) pthread_create(&ids[t], NULL, worker, (void *)(intptr_t)t);
            }
            double best[2] = { 1e9, 1e9 }, times[2][1000], cpu[2] = { 1e9, 1e9 };
            /* fewer copies where a pass is long anyway */
            const int all = work.copies;
            const double macs = (double)n_out * (double)n_in * work.rows;
            if (macs * all > 4e10) work.copies = 1 + (int)(4e10 / macs);
            if (work.copies > all) work.copies = all;
            for (int i = 0; i < 2 * passes; i++) {
                work.plain = i & 1;
                const double start = now();
                atomic_fetch_add(&go, 1);
                pass(0);
                const double t = now() - start;
                times[work.plain][i / 2] = t;
                if (t < best[work.plain]) best[work.plain] = t;
                double used = 0;
                for (int c = 0; c < threads; c++) used += work.cpu[c];
                if (used < cpu[work.plain]) cpu[work.plain] = used;
            }
            for (int p = 0; p < 2; p++) qsort(times[p], (size_t)passes, sizeof(double), by_size);
            atomic_store(&stop, 1);
            for (int t = 1; t < threads; t++) pthread_join(ids[t], NULL);
            check(x, arena + in_stride * work.rows, out_stride, n_in);
            const double bytes = (double)work.bytes * work.copies * 1e-9;
            printf("  rows %3d threads %d: GB/s best %5.1f median %5.1f cpu %5.1f (plain %5.1f %5.1f %5.1f)   "
                   "GMAC/s/core best %5.1f median %5.1f cpu %5.1f\n",
                   work.rows, threads, bytes / best[0], bytes / times[0][passes / 2], threads * bytes / cpu[0],
                   bytes / best[1], bytes / times[1][passes / 2], threads * bytes / cpu[1],
                   macs * work.copies * 1e-9 / best[0] / threads,
                   macs * work.copies * 1e-9 / times[0][passes / 2] / threads, macs * work.copies * 1e-9 / cpu[0]);
            work.copies = all;
        }
        free(x);
    }
    return 0;
}
