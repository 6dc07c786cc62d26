/* quantize.h: float rows to GGFW_Q8 rows (see ggfw_kernels.h); the same bits in every unit. */
#ifndef GGFW_QUANTIZE_H
#define GGFW_QUANTIZE_H

#include "rows.h"

#include <math.h>

/* Bytes of the q part; d, sum and total follow. */
VF_INLINE int64_t q8_bytes(int32_t n) { return ((int64_t)n + 63) / 64 * 64; }

VF_INLINE int64_t q8_row_bytes(int32_t n) { return (q8_bytes(n) + n / 16 * 8 + n / 32 * 4 + 63) / 64 * 64; }

/* Quantise columns [begin, end) (multiples of 32) of a row of n columns; x points to column `begin`. A block with an
 * infinity or a NaN gets the scale NaN, so that it is seen downstream; scales that are no normal numbers are zero. */
static void quantize_columns(const float *x, int32_t n, int32_t begin, int32_t end, uint8_t *row) {
    int8_t *q = (int8_t *)row;
    float *d = (float *)(row + q8_bytes(n));
    int32_t *sum = (int32_t *)(d + n / 16);
    float *total = (float *)(sum + n / 16);
    for (int32_t at = begin; at < end; at += 16, x += 16) {
        uint32_t bits = vf_largest_bits16(x);
        float largest;
        memcpy(&largest, &bits, 4);
        float scale = largest / 127.0f;
        if (bits >= 0x7f800000u || !(scale >= 1.17549435e-38f)) {
            d[at / 16] = bits >= 0x7f800000u ? NAN : 0.0f;
            memset(q + at, 0, 16);
            sum[at / 16] = 0;
            continue;
        }
        d[at / 16] = scale;
        sum[at / 16] = vf_quantize16(x, scale, q + at);
    }
    /* Products of a float and a small integer are exact in double, so the sum is rounded once in every unit. */
    for (int32_t i = begin / 32; i < end / 32; i++)
        total[i] = (float)((double)d[2 * i] * sum[2 * i] + (double)d[2 * i + 1] * sum[2 * i + 1]);
}

VF_INLINE void quantize_row(const float *x, int32_t n, uint8_t *row) { quantize_columns(x, n, 0, n, row); }

static void quantize_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                         void *scratch) {
    (void)scratch;
    int32_t slots = step->params.quantize.slots > 1 ? step->params.quantize.slots : 1, n = step->in[0].width / slots;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        uint8_t *to = row_of(run, &step->out[0], row);
        for (int32_t slot = 0; slot < slots; slot++)
            quantize_row(floats_of(run, &step->in[0], row) + (int64_t)slot * n, n, to + slot * q8_row_bytes(n));
    }
}

#define GGFW_QUANTIZE_KERNELS                                                                                          \
    {.name = "quantize", .op = GGFW_OP_QUANTIZE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,             \
     .n_in_multiple = 32, .n_chunks = row_chunks, .run = quantize_run},

#endif
