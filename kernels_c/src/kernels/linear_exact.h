/* linear_exact.h: quantised weights times R rows of f32 activations, which are read where they are: each weight becomes a
 * float first. Slow beside the integer products, for those who want no rounding of activations at all.
 *
 * Even and odd columns are summed apart, each in order, for every R.
 */
#ifndef GGFW_LINEAR_EXACT_H
#define GGFW_LINEAR_EXACT_H

#include "linear_tile.h"

/* out[r][0..16) = panel times rows[r]. prefetch: distance in bytes, 0 = none. */
LINEAR_INLINE void linear_exact_tile_run(int type, int R, const uint8_t *panel, const float *const *rows, int64_t n_in,
                                         float *const *out, int64_t prefetch)
{
    const int block_bytes = linear_block_bytes(type), subs = LINEAR_TRAITS[type].block / LINEAR_BLOCK;
    const int share = block_bytes / subs, halves = linear_halves(type);
    for (int p = 0; p < LV_PARTS; p++) {
        lv_floats sum[2][LINEAR_MAX_TILE];
        LV_UNROLL
        for (int r = 0; r < R; r++) sum[0][r] = sum[1][r] = lv_zero();
        const uint8_t *block = panel;
        for (int64_t k = 0; k < n_in; block += block_bytes) {
            for (int s = 0; s < subs; s++, k += LINEAR_BLOCK) {
                if (prefetch && p == 0)
                    for (int line = 0; line < share; line += 64)
                        __builtin_prefetch(block + s * share + prefetch + line, 0, 3);
                lv_bytes w[8];
                lv_floats d[2], m[2];
                linear_codes(type, block + linear_header_bytes(type) + s * linear_sub_bytes(type), p, w);
                linear_scale(type, block, s, 0, p, &d[0], &m[0]);
                if (halves == 2) linear_scale(type, block, s, 1, p, &d[1], &m[1]);
                LV_UNROLL
                for (int i = 0; i < 8; i++) {
                    const int half = halves == 2 ? i / 4 : 0;
                    LV_UNROLL
                    for (int t = 0; t < 4; t++) {
                        const lv_floats code = lv_convert(lv_code(w[i], t));
                        const lv_floats q = lv_add(code, lv_set(-(float)LINEAR_TRAITS[type].offset));
                        const lv_floats value = lv_fma(q, d[half], m[half]);
                        LV_UNROLL
                        for (int r = 0; r < R; r++)
                            sum[t & 1][r] = lv_fma(value, lv_set(rows[r][k + 4 * i + t]), sum[t & 1][r]);
                    }
                }
            }
        }
        LV_UNROLL
        for (int r = 0; r < R; r++) lv_store(out[r] + p * LV_LANES, lv_add(sum[0][r], sum[1][r]));
    }
}

#endif
