/* linear_float.h: F32, F16 and BF16 weights times R rows of f32 activations, which are read where they are.
 *
 * Packed: column k of a panel is 16 neighbouring weights, in the file's type. Any number of columns; even and odd
 * columns are summed apart, each in order, for every R.
 */
#ifndef GGFW_LINEAR_FLOAT_H
#define GGFW_LINEAR_FLOAT_H

#include "linear_tile.h"

LINEAR_INLINE lv_floats linear_float_column(int type, const uint8_t *at)
{
    if (type == TYPE_F32) return lv_load_f32(at);
    return type == TYPE_F16 ? lv_load_f16(at) : lv_load_bf16(at);
}

/* out[r][0..16) = panel times rows[r]. prefetch: distance in bytes, 0 = none. */
LINEAR_INLINE void linear_float_tile_run(int type, int R, const uint8_t *panel, const float *const *rows,
                                         int64_t n_in, float *const *out, int64_t prefetch)
{
    const int bytes = linear_float_bytes(type), column = LINEAR_PANEL * bytes;
    const float *x[LINEAR_MAX_TILE];
    LV_UNROLL
    for (int r = 0; r < R; r++) x[r] = rows[r];
    lv_floats sum[2][LV_PARTS][LINEAR_MAX_TILE];
    LV_UNROLL
    for (int c = 0; c < 2; c++) {
        LV_UNROLL
        for (int p = 0; p < LV_PARTS; p++) {
            LV_UNROLL
            for (int r = 0; r < R; r++) sum[c][p][r] = lv_zero();
        }
    }
    int64_t k = 0;
    for (; k + 2 <= n_in; k += 2, panel += 2 * column) {
        if (prefetch) {
            __builtin_prefetch(panel + prefetch, 0, 3);
            if (bytes == 4) __builtin_prefetch(panel + prefetch + 64, 0, 3);
        }
        LV_UNROLL
        for (int c = 0; c < 2; c++) {
            LV_UNROLL
            for (int p = 0; p < LV_PARTS; p++) {
                const lv_floats w = linear_float_column(type, panel + c * column + p * LV_LANES * bytes);
                LV_UNROLL
                for (int r = 0; r < R; r++) sum[c][p][r] = lv_fma(w, lv_set(x[r][k + c]), sum[c][p][r]);
            }
        }
    }
    LV_UNROLL
    for (int p = 0; p < LV_PARTS; p++) {
        LV_UNROLL
        for (int r = 0; r < R; r++) {
            if (k < n_in) {
                const lv_floats w = linear_float_column(type, panel + p * LV_LANES * bytes);
                sum[0][p][r] = lv_fma(w, lv_set(x[r][k]), sum[0][p][r]);
            }
            lv_store(out[r] + p * LV_LANES, lv_add(sum[0][p][r], sum[1][p][r]));
        }
    }
}

#endif
