/* kernels_driver.c: the products of a kernel library, driven without Python, for processors that only an emulator has here.
 *
 *     kernels_driver LIBRARY VECTORS RESULTS
 *
 * VECTORS: records of int64 [type, activation, n_out, n_in, n_rows, bytes of a file row, bytes of an activation row], then
 * the file's rows, then the rows of activations. RESULTS: per record the product (n_rows, n_out), then the matrix (n_out,
 * n_in) as unpack_rows() gives it, float32. Every row is computed with all others, and by itself: other bits are an error,
 * as is a write behind the memory that a kernel asked for. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggfw_kernels.h"

enum { GUARD = 64 };

static void fail(const char *what, const char *about) {
    fprintf(stderr, "%s: %s\n", what, about);
    exit(1);
}

static uint8_t *memory(int64_t n) {
    n = (n + 63) / 64 * 64;
    uint8_t *p = aligned_alloc(64, (size_t)n + GUARD);
    if (p == NULL) fail("out of memory", "");
    memset(p, 0xff, (size_t)n);
    memset(p + n, 0x5a, GUARD);
    return p;
}

static void checked_free(uint8_t *p, int64_t n, const char *name) {
    n = (n + 63) / 64 * 64;
    for (int i = 0; i < GUARD; i++)
        if (p[n + i] != 0x5a) fail("wrote behind its memory", name);
    free(p);
}

static const ggfw_kernel *find(const ggfw_kernel_table *table, int64_t type, int64_t activation) {
    for (int32_t i = 0; i < table->n_kernels; i++) {
        const ggfw_kernel *k = &table->kernels[i];
        if (k->op == GGFW_OP_LINEAR && k->format == type && k->activation == activation) return k;
    }
    fail("no such kernel in", table->name);
    return NULL;
}

/* Rows [begin, end) of the step. */
static void multiply(const ggfw_kernel *k, const ggfw_step *step, const ggfw_run *run, int32_t begin, int32_t end) {
    int64_t n_scratch = k->scratch_size ? k->scratch_size(step, run) : 0;
    uint8_t *scratch = memory(n_scratch);
    int32_t n = k->n_chunks(step, run, begin, end);
    for (int32_t chunk = n - 1; chunk >= 0; chunk--) k->run(step, run, begin, end, chunk, scratch);
    checked_free(scratch, n_scratch, k->name);
}

static void record(const ggfw_kernel_table *table, const int64_t h[7], FILE *from, FILE *to) {
    const int64_t n_out = h[2], n_in = h[3], n_rows = h[4], file_bytes = h[2] * h[5], x_bytes = h[4] * h[6];
    const ggfw_kernel *k = find(table, h[0], h[1]);
    uint8_t *rows = memory(file_bytes), *packed = memory(k->pack_size(n_out, n_in));
    const int64_t y_bytes = (n_out * 4 + 63) / 64 * 64;
    uint8_t *arena = memory(x_bytes + n_rows * y_bytes);
    if (fread(rows, 1, (size_t)file_bytes, from) != (size_t)file_bytes ||
        fread(arena, 1, (size_t)x_bytes, from) != (size_t)x_bytes)
        fail("a record is cut off", k->name);
    const int64_t half = n_out / 32 * 16;
    if (half > 0) k->pack(rows, n_out, n_in, 0, half, packed);
    k->pack(rows, n_out, n_in, half, n_out - half, packed);

    ggfw_weight weight = {.data = packed, .format = (int32_t)h[0], .layout = GGFW_LAYOUT_PACKED, .n_out = n_out,
                          .n_in = n_in, .n_expert = 1, .kernel = k};
    ggfw_step step = {.op = GGFW_OP_LINEAR, .weight = {&weight}};
    step.in[0] = (ggfw_view){0, (int32_t)h[6], (int32_t)n_in, (int32_t)h[1], 0};
    step.out[0] = (ggfw_view){x_bytes, (int32_t)y_bytes, (int32_t)n_out, GGFW_F32, 0};
    step.params.linear.n_parts = 1;
    step.params.linear.scale = 1;
    ggfw_run run = {.arena = arena, .n_threads = 2, .max_rows = (int32_t)n_rows, .max_outputs = 1, .prefetch = 512};
    multiply(k, &step, &run, 0, (int32_t)n_rows);
    uint8_t *together = malloc((size_t)(n_rows * y_bytes));
    memcpy(together, arena + x_bytes, (size_t)(n_rows * y_bytes));
    memset(arena + x_bytes, 0xff, (size_t)(n_rows * y_bytes));
    for (int32_t row = 0; row < n_rows; row++) multiply(k, &step, &run, row, row + 1);
    for (int64_t row = 0; row < n_rows; row++) {
        const uint8_t *alone = arena + x_bytes + row * y_bytes;
        if (memcmp(together + row * y_bytes, alone, (size_t)(n_out * 4)) != 0) fail("other bits alone", k->name);
        fwrite(alone, 4, (size_t)n_out, to);
    }
    float *values = (float *)memory(n_in * 4);
    for (int32_t row = 0; row < n_out; row++) {
        k->unpack_rows(packed, n_out, n_in, &row, 1, values, n_in * 4);
        fwrite(values, 4, (size_t)n_in, to);
    }
    checked_free((uint8_t *)values, n_in * 4, k->name);
    checked_free(arena, x_bytes + n_rows * y_bytes, k->name);
    checked_free(packed, k->pack_size(n_out, n_in), k->name);
    free(together);
    free(rows);
}

int main(int argc, char **argv) {
    if (argc != 4) fail("usage", "kernels_driver LIBRARY VECTORS RESULTS");
    void *library = dlopen(argv[1], RTLD_NOW);
    if (library == NULL) fail("cannot open", dlerror());
    const ggfw_kernel_table *(*get)(void) = (const ggfw_kernel_table *(*)(void))dlsym(library, "ggfw_kernels");
    const char *(*missing)(void) = (const char *(*)(void))dlsym(library, "ggfw_kernels_missing");
    if (get == NULL || missing == NULL) fail("not a kernel library", argv[1]);
    if (!get()->usable()) {
        printf("missing: %s\n", missing());
        return 3;
    }
    FILE *from = fopen(argv[2], "rb"), *to = fopen(argv[3], "wb");
    if (from == NULL || to == NULL) fail("cannot open", argv[2]);
    int64_t header[7];
    int n = 0;
    for (; fread(header, sizeof header, 1, from) == 1; n++) record(get(), header, from, to);
    if (fclose(to) != 0) fail("cannot write", argv[3]);
    printf("%s: %d records\n", get()->name, n);
    return 0;
}
