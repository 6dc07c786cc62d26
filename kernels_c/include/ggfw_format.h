/* ggfw_format.h: a kernel library for one quant format, made of one function. For third parties; include it once.
 *
 *     #define FORMAT_NAME "q6_0"        name of the library
 *     #define FORMAT_TYPE 133           ggml type id
 *     #define FORMAT_BLOCK 32           columns of a block
 *     #define FORMAT_BLOCK_BYTES 26
 *     static inline void format_unpack(const uint8_t *block, float *out) { ... }
 *     #include "ggfw_format.h"
 *
 * The weights stay as they are in the file. A chunk is 16 rows of a matrix: each is unpacked once and multiplied with
 * all rows of activations, in float32. Results go to scratch and are committed with bias, scale, soft cap and
 * residual, so a chunk may be run twice. Needs the GNU vector extension (gcc, clang).
 */
#ifndef GGFW_FORMAT_H
#define GGFW_FORMAT_H

#include <math.h>
#include <string.h>

#include "ggfw_kernels.h"

/* One copy of the product for each class of processor, chosen when the library is opened. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define FORMAT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FORMAT_CLONES
#endif

enum { FORMAT_ROWS = 16, FORMAT_LANES = 16 };
typedef float format_lanes __attribute__((vector_size(FORMAT_LANES * 4), aligned(4)));

static inline float format_half(const uint8_t *at) {
    uint16_t h;
    memcpy(&h, at, 2);
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t bits;
    if (rest >= 0x7c00) bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    else if (rest >= 0x400) bits = sign | ((rest << 13) + 0x38000000);
    else {
        float small = (float)rest * 0x1p-24f;
        memcpy(&bits, &small, 4);
        bits |= sign;
    }
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

static int64_t format_row_bytes(int64_t n_in) { return n_in / FORMAT_BLOCK * FORMAT_BLOCK_BYTES; }

static inline __attribute__((always_inline)) void format_unpack_row(const uint8_t *row, int64_t n_in, float *out) {
    for (int64_t k = 0; k < n_in; k += FORMAT_BLOCK, row += FORMAT_BLOCK_BYTES) format_unpack(row, out + k);
}

static void format_unpack_rows(const void *data, int64_t n_out, int64_t n_in, const int32_t *ids, int64_t n, float *out,
                               int64_t out_stride_bytes) {
    (void)n_out;
    for (int64_t i = 0; i < n; i++)
        format_unpack_row((const uint8_t *)data + ids[i] * format_row_bytes(n_in), n_in,
                          (float *)((uint8_t *)out + i * out_stride_bytes));
}

/* Part and first row of a chunk. */
static int32_t format_place(const ggfw_step *step, int32_t chunk, int64_t *first) {
    int32_t part = 0;
    for (;; part++) {
        int32_t n = (int32_t)((step->weight[part]->n_out + FORMAT_ROWS - 1) / FORMAT_ROWS);
        if (chunk < n) break;
        chunk -= n;
    }
    *first = (int64_t)chunk * FORMAT_ROWS;
    return part;
}

static int32_t format_n_chunks(const ggfw_step *step, const ggfw_run *run, int32_t begin, int32_t end) {
    (void)run, (void)begin, (void)end;
    int64_t n = 0;
    for (int32_t i = 0; i < step->params.linear.n_parts; i++)
        n += (step->weight[i]->n_out + FORMAT_ROWS - 1) / FORMAT_ROWS;
    return (int32_t)n;
}

/* Results of all rows of activations, [n][FORMAT_ROWS], then one unpacked row. */
static int64_t format_scratch_size(const ggfw_step *step, const ggfw_run *run) {
    int64_t rows = step->domain == GGFW_DOMAIN_ROWS ? run->max_rows : run->max_outputs;
    return (rows * FORMAT_ROWS + step->weight[0]->n_in + FORMAT_BLOCK) * 4;
}

FORMAT_CLONES static void format_run(const ggfw_step *step, const ggfw_run *run, int32_t begin, int32_t end,
                                     int32_t chunk, void *scratch) {
    int64_t first;
    const ggfw_weight *w = step->weight[format_place(step, chunk, &first)];
    const int64_t n_in = w->n_in, last = first + FORMAT_ROWS < w->n_out ? first + FORMAT_ROWS : w->n_out;
    const ggfw_view *in = &step->in[0];
    float *results = (float *)scratch, *row = results + (int64_t)(end - begin) * FORMAT_ROWS;
    for (int64_t o = first; o < last; o++) {
        format_unpack_row((const uint8_t *)w->data + o * format_row_bytes(n_in), n_in, row);
        for (int32_t r = begin; r < end; r++) {
            const float *x = (const float *)(run->arena + in->offset + (int64_t)r * in->stride);
            format_lanes a, b, sums = {0};
            int64_t k = 0;
            for (; k + FORMAT_LANES <= n_in; k += FORMAT_LANES) {
                memcpy(&a, row + k, sizeof a);
                memcpy(&b, x + k, sizeof b);
                sums += a * b;
            }
            float sum = 0;
            for (; k < n_in; k++) sum += row[k] * x[k];
            for (int i = 0; i < FORMAT_LANES; i++) sum += sums[i];
            results[(int64_t)(r - begin) * FORMAT_ROWS + (o - first)] = sum;
        }
    }
}

static void format_commit(const ggfw_step *step, const ggfw_run *run, int32_t begin, int32_t end, int32_t chunk,
                          void *scratch) {
    int64_t first;
    const int32_t part = format_place(step, chunk, &first);
    const ggfw_linear *p = &step->params.linear;
    const int64_t left = step->weight[part]->n_out - first, n = left < FORMAT_ROWS ? left : FORMAT_ROWS;
    const ggfw_view *out = &step->out[part], *add = &step->in[1 + part];
    for (int32_t r = begin; r < end; r++) {
        const float *y = (const float *)scratch + (int64_t)(r - begin) * FORMAT_ROWS;
        float *to = (float *)(run->arena + out->offset + (int64_t)r * out->stride) + first;
        const float *more = (const float *)(run->arena + add->offset + (int64_t)r * add->stride) + first;
        for (int64_t i = 0; i < n; i++) {
            float value = y[i];
            if (p->bias[part]) value += p->bias[part][first + i];
            value *= p->scale;
            if (p->softcap != 0) value = p->softcap * tanhf(value / p->softcap);
            to[i] = add->width ? value + more[i] : value;
        }
    }
}

static const ggfw_kernel format_kernels[] = {
    {.name = FORMAT_NAME " linear", .op = GGFW_OP_LINEAR, .format = FORMAT_TYPE, .row_classes = GGFW_ROWS_ANY,
     .activation = GGFW_F32, .n_in_multiple = FORMAT_BLOCK, .unpack_rows = format_unpack_rows,
     .scratch_size = format_scratch_size, .n_chunks = format_n_chunks, .run = format_run, .commit = format_commit},
    {.name = FORMAT_NAME " embed", .op = GGFW_OP_EMBED, .format = FORMAT_TYPE, .row_classes = GGFW_ROWS_ANY,
     .unpack_rows = format_unpack_rows},
};

static int32_t format_usable(void) { return 1; }

static const ggfw_kernel_table format_table = {.name = FORMAT_NAME, .abi = GGFW_KERNELS_ABI, .n_kernels = 2,
                                               .kernels = format_kernels, .usable = format_usable};

int32_t ggfw_kernels_abi(void) { return GGFW_KERNELS_ABI; }
const ggfw_kernel_table *ggfw_kernels(void) { return &format_table; }

#endif
