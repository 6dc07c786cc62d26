/* quantize.h: float rows to GGFW_Q8 and GGFW_Q16 rows (see ggfw_kernels.h); the same bits in every unit. */
#ifndef GGFW_QUANTIZE_H
#define GGFW_QUANTIZE_H

#include "activation.h"
#include "rows.h"

#include <math.h>

/* Scale of a block whose largest bit pattern is `bits`. A block with an infinity or a NaN gets the scale NaN, so that it
 * is seen downstream; scales that are no normal numbers are zero. The q of both are zero. */
VF_INLINE float quantize_scale(uint32_t bits, float most) {
    float largest;
    memcpy(&largest, &bits, 4);
    float scale = largest / most;
    if (bits >= 0x7f800000u) return NAN;
    return scale >= 1.17549435e-38f ? scale : 0.0f;
}

static void quantize_columns8(const float *x, int32_t n, int32_t begin, int32_t end, uint8_t *row) {
    int8_t *q = (int8_t *)row;
    float *d = (float *)(row + activation_scales(GGFW_Q8, n));
    int32_t *sum = (int32_t *)(row + activation_sums(GGFW_Q8, n));
    float *total = (float *)(row + activation_totals(GGFW_Q8, n));
    for (int32_t at = begin; at < end; at += 16, x += 16) {
        float scale = d[at / 16] = quantize_scale(vf_largest_bits16(x), 127.0f);
        if (scale > 0.0f) {
            sum[at / 16] = vf_quantize16(x, scale, q + at);
        } else {
            memset(q + at, 0, 16);
            sum[at / 16] = 0;
        }
    }
    /* Products of a float and a small integer are exact in double, so the sum is rounded once in every unit. */
    for (int32_t i = begin / 32; i < end / 32; i++)
        total[i] = (float)((double)d[2 * i] * sum[2 * i] + (double)d[2 * i + 1] * sum[2 * i + 1]);
}

static void quantize_columns16(const float *x, int32_t n, int32_t begin, int32_t end, uint8_t *row) {
    float *d = (float *)(row + activation_scales(GGFW_Q16, n));
    int32_t *sum = (int32_t *)(row + activation_sums(GGFW_Q16, n));
    float *total = (float *)(row + activation_totals(GGFW_Q16, n));
    for (int32_t at = begin; at < end; at += 32, x += 32) {
        int8_t *high = (int8_t *)row + 2 * at, *low = high + 32;
        float scale = d[at / 32] = quantize_scale(vf_largest_bits32(x), 16256.0f);
        int32_t *s = sum + at / 16;
        if (scale > 0.0f) {
            s[0] = vf_quantize_planes16(x, scale, high, low);
            s[1] = vf_quantize_planes16(x + 16, scale, high + 16, low + 16);
        } else {
            memset(high, 0, 64);
            s[0] = s[1] = 0;
        }
        total[at / 32] = (float)((double)scale * (s[0] + s[1]));
    }
}

/* Quantise columns [begin, end) (multiples of 32) of a row of n columns to `type`; x points to column `begin`. */
VF_INLINE void quantize_columns(int32_t type, const float *x, int32_t n, int32_t begin, int32_t end, uint8_t *row) {
    if (type == GGFW_Q16) quantize_columns16(x, n, begin, end, row);
    else quantize_columns8(x, n, begin, end, row);
}

VF_INLINE void quantize_row(int32_t type, const float *x, int32_t n, uint8_t *row) {
    quantize_columns(type, x, n, 0, n, row);
}

static void quantize_run(const ggfw_step *step, const ggfw_run *run, int32_t row_begin, int32_t row_end, int32_t chunk,
                         void *scratch) {
    (void)scratch;
    int32_t slots = step->params.quantize.slots > 1 ? step->params.quantize.slots : 1, n = step->in[0].width / slots;
    row_range r = rows_of(step, row_begin, row_end, chunk);
    for (int32_t row = r.begin; row < r.end; row++) {
        uint8_t *to = row_of(run, &step->out[0], row);
        for (int32_t slot = 0; slot < slots; slot++)
            quantize_row(step->out[0].type, floats_of(run, &step->in[0], row) + (int64_t)slot * n, n,
                         to + slot * activation_row_bytes(step->out[0].type, n));
    }
}

#define GGFW_QUANTIZE_KERNELS                                                                                          \
    {.name = "quantize", .op = GGFW_OP_QUANTIZE, .format = GGFW_FORMAT_NONE, .row_classes = GGFW_ROWS_ANY,             \
     .n_in_multiple = 32, .n_chunks = row_chunks, .run = quantize_run},

#endif
